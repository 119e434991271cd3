//! A response, which a plug-in creates for a request and sends.

pub(crate) mod factory;
pub(crate) mod functions;
pub(crate) mod output;

use std::sync::Arc;

use galatea_abi::TRITONSERVER_RESPONSE_COMPLETE_FINAL;
use galatea_infer::{InferenceResponse, OutputTensor, Parameter, Status};
use galatea_stdx::Lock;

use crate::instance::InstanceGuard;
use crate::owned::Owned;
use crate::response_channel::{ResponseChannel, ResponseResult};
use output::OutputObject;

/// A response as C sees it.
pub(crate) struct ResponseObject {
    channel: Arc<ResponseChannel>,
    contents: Lock<ResponseContents>,
    instance_guard: InstanceGuard,
}
galatea_c_objects::object!(ResponseObject as TRITONBACKEND_Response, kind 28);

#[derive(Default)]
struct ResponseContents {
    parameters: Vec<Parameter>,
    outputs: Vec<Owned<OutputObject>>,
}

impl ResponseObject {
    pub(crate) fn new(channel: Arc<ResponseChannel>, instance_guard: InstanceGuard) -> Self {
        Self { channel, contents: Lock::default(), instance_guard }
    }

    /// Converts the object to the response that the caller receives.
    fn into_response(self) -> (Arc<ResponseChannel>, InstanceGuard, ResponseResult) {
        let contents = std::mem::take(&mut *self.contents.lock("take the contents"));
        let outputs = contents.outputs.into_iter().filter_map(Owned::into_inner);
        let outputs: Result<Vec<OutputTensor>, Status> =
            outputs.map(OutputObject::into_tensor).collect();
        let response = outputs.map(|outputs| InferenceResponse {
            model_name: self.channel.model_name(),
            model_version: self.channel.model_version(),
            id: self.channel.request_id().to_owned(),
            parameters: contents.parameters.into(),
            outputs,
        });
        (self.channel, self.instance_guard, response)
    }
}

/// Returns true if the flags mark the last response.
const fn is_final(send_flags: u32) -> bool {
    send_flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL.0 != 0
}
