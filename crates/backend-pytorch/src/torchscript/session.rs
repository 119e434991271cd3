//! An instance's session: a loaded TorchScript model.

use std::ffi::CString;
use std::sync::Arc;

use galatea_infer::Status;
use galatea_runtime::{ByteRegion, OutputPlace, Session};
use galatea_tensor::elements::BytesElements;
use galatea_tensor::{DataType, Shape};
use smallvec::SmallVec;

use crate::api::{BorrowedTensor, InputValue, Library, ScriptModule, TorchOutputs};

/// The names and types that all of a model's instances share.
pub(super) struct Signature {
    /// The input names, in the model's order.
    pub(super) input_keys: Vec<CString>,
    /// The output names and types, in the model's order.
    pub(super) outputs: Vec<(String, DataType)>,
}

/// A loaded model.
pub(crate) struct TorchScriptSession {
    pub(super) library: Arc<Library>,
    pub(super) module: Arc<ScriptModule>,
    pub(super) signature: Arc<Signature>,
    /// The number of threads per operation.
    pub(super) threads: i32,
}

impl Session for TorchScriptSession {
    type Tensor<'data> = InputValue<'data>;
    type Outputs<'data> = TorchOutputs<'data>;

    fn tensor<'data>(
        &self,
        datatype: DataType,
        shape: &Shape,
        data: ByteRegion<'data>,
    ) -> Result<InputValue<'data>, Status> {
        BorrowedTensor::new(datatype, shape, data).map(InputValue::Tensor)
    }

    fn strings<'data>(&self, _: &Shape, parts: &[&[u8]]) -> Result<InputValue<'data>, Status> {
        let (mut content, mut ends) = (Vec::new(), Vec::new());
        for part in parts {
            for element in BytesElements::new(part) {
                let element = element.map_err(|error| Status::internal(error.to_string()))?;
                content.extend_from_slice(element);
                ends.push(content.len());
            }
        }
        Ok(InputValue::Strings(content, ends))
    }

    fn run<'data>(
        &mut self,
        inputs: &[(usize, Self::Tensor<'data>)],
        outputs: &[(usize, OutputPlace)],
    ) -> Result<Self::Outputs<'data>, Status> {
        self.library.set_threads(self.threads);
        let mut ordered: SmallVec<[(&InputValue<'data>, &CString); 8]> = SmallVec::new();
        for (index, key) in self.signature.input_keys.iter().enumerate() {
            let tensor = inputs.iter().find(|(given, _)| *given == index);
            let (_, tensor) = tensor
                .ok_or_else(|| Status::invalid_argument(format!("input {index} is not given")))?;
            ordered.push((tensor, key));
        }
        let wanted = outputs.iter().map(|(index, _)| *index);
        let (made, count) = self
            .module
            .run(&ordered, wanted)
            .map_err(|status| status.prefixed("PyTorch execute failure: "))?;
        self.check(&made, count, outputs)?;
        Ok(made)
    }
}

impl TorchScriptSession {
    /// Compares the outputs with the configuration, using Triton's error texts.
    fn check(
        &self,
        made: &TorchOutputs<'_>,
        count: usize,
        wanted: &[(usize, OutputPlace)],
    ) -> Result<(), Status> {
        let scalar = made.first_scalar()?;
        for (position, (index, _)) in wanted.iter().enumerate() {
            let Some((name, datatype)) = self.signature.outputs.get(*index) else { continue };
            if *index >= count {
                return Err(Status::invalid_argument(format!(
                    "The output {name} in the model configuration refers to an output index which \
                     doesn't exist. This model has {count} outputs"
                )));
            }
            let provided = made.datatype(position)?;
            if provided != Some(*datatype) {
                return Err(Status::invalid_argument(format!(
                    "configuration expects datatype TYPE_{} for output '{name}', model provides \
                     TYPE_{}",
                    datatype.protocol_name(),
                    provided.map_or("INVALID", DataType::protocol_name)
                )));
            }
            if scalar == Some(position) {
                return Err(Status::invalid_argument(format!(
                    "output '{name}' is a scalar which is not supported."
                )));
            }
        }
        Ok(())
    }
}
