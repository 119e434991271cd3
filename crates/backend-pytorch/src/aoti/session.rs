//! An instance's session: a runner of a compiled model.

use std::sync::Arc;

use galatea_infer::Status;
use galatea_runtime::{ByteRegion, OutputPlace, Session};
use galatea_tensor::{DataType, Shape};
use smallvec::SmallVec;

use super::shared::SharedModel;
use crate::api::{BorrowedTensor, TorchOutputs};

/// A compiled model as one instance executes it.
pub(crate) struct AotiSession {
    model: Arc<SharedModel>,
}

impl AotiSession {
    pub(super) const fn new(model: Arc<SharedModel>) -> Self {
        Self { model }
    }
}

impl Session for AotiSession {
    type Tensor<'data> = BorrowedTensor<'data>;
    type Outputs<'data> = TorchOutputs<'data>;

    fn tensor<'data>(
        &self,
        datatype: DataType,
        shape: &Shape,
        data: ByteRegion<'data>,
    ) -> Result<BorrowedTensor<'data>, Status> {
        BorrowedTensor::new(datatype, shape, data)
    }

    fn strings<'data>(&self, _: &Shape, _: &[&[u8]]) -> Result<BorrowedTensor<'data>, Status> {
        Err(Status::unsupported("compiled models have no tensors of strings"))
    }

    fn run<'data>(
        &mut self,
        inputs: &[(usize, Self::Tensor<'data>)],
        outputs: &[(usize, OutputPlace)],
    ) -> Result<Self::Outputs<'data>, Status> {
        self.model.library.set_threads(self.model.threads);
        let mut ordered: SmallVec<[&BorrowedTensor<'data>; 8]> = SmallVec::new();
        for index in 0..inputs.len() {
            let tensor = inputs.iter().find(|(given, _)| *given == index);
            let (_, tensor) = tensor
                .ok_or_else(|| Status::invalid_argument(format!("input {index} is not given")))?;
            ordered.push(tensor);
        }
        let model = &self.model;
        let shapes: SmallVec<[&[i64]; 8]> = ordered.iter().map(|tensor| tensor.dims()).collect();
        model.shapes.check(&shapes)?;
        let wanted = outputs.iter().map(|(index, _)| *index);
        let instance = format_args!("Inductor model instance \"{}\"", model.shapes.model());
        let made = TorchOutputs::compute(&model.container, &ordered, wanted).map_err(|status| {
            let text = format!("{instance} execution failure: {}", status.message());
            Status::new(status.code(), text)
        })?;
        // The same behaviour as in Triton.
        let scalar = made.first_scalar()?.and_then(|position| outputs.get(position));
        if let Some(name) = scalar.and_then(|(index, _)| model.output_names.get(*index)) {
            let text =
                format!("{instance} output tensor \"{name}\" is a scalar which is not supported.");
            return Err(Status::internal(text));
        }
        Ok(made)
    }
}
