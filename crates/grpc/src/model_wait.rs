//! Requests that wait for a model that is loaded on demand.

use std::sync::Arc;

use bytes::Bytes;
use galatea_control::ServedModel;
use galatea_infer::{CancelToken, Deadline, Parameter, Status};

use crate::budget::RequestCharge;
use crate::call_trace::{Received, TraceContext};

/// A unary inference that waits for its model.
pub(crate) struct WaitingCall {
    pub(crate) message: Bytes,
    /// The parameters that the call's metadata adds.
    pub(crate) forwarded: Result<Vec<Parameter>, Status>,
    pub(crate) received: Option<Received>,
    pub(crate) trace_context: TraceContext,
    pub(crate) answer_by: Deadline,
    pub(crate) cancel: CancelToken,
    /// Charges the message. Dropped when the inference begins, which charges the request.
    pub(crate) charge: RequestCharge,
}

/// The model for which a request has waited, or the reason why the request is refused.
pub(crate) struct ModelResult(pub(crate) Result<Arc<dyn ServedModel>, Status>);

impl std::fmt::Debug for WaitingCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingCall").field("bytes", &self.message.len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ModelResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ModelResult").field(&self.0.as_ref().map(|_| ())).finish()
    }
}
