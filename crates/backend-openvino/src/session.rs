//! An instance's session: an infer request for a compiled model.

use std::sync::Arc;

use galatea_backend::ExecutionTerminator;
use galatea_infer::Status;
use galatea_runtime::{ByteRegion, OutputPlace, Session};
use galatea_tensor::{DataType, Shape};

use crate::api::{InferRequest, OvOutputs, OvTensor};

/// A compiled model and an infer request.
pub(crate) struct OpenVinoSession(pub(crate) InferRequest);

impl Session for OpenVinoSession {
    type Tensor<'data> = OvTensor<'data>;
    type Outputs<'data> = OvOutputs<'data>;

    fn tensor<'data>(
        &self,
        datatype: DataType,
        shape: &Shape,
        data: ByteRegion<'data>,
    ) -> Result<OvTensor<'data>, Status> {
        OvTensor::borrowed(datatype, shape, data)
    }

    fn strings<'data>(&self, _: &Shape, _: &[&[u8]]) -> Result<OvTensor<'data>, Status> {
        Err(Status::unsupported("OpenVINO's models have no tensors of strings"))
    }

    fn run<'data>(
        &mut self,
        inputs: &[(usize, Self::Tensor<'data>)],
        outputs: &[(usize, OutputPlace)],
    ) -> Result<Self::Outputs<'data>, Status> {
        self.0.run(inputs, outputs.iter().map(|(index, _)| *index))
    }

    fn terminator(&self) -> Option<Arc<dyn ExecutionTerminator>> {
        Some(self.0.terminator())
    }
}
