//! The trait through which doors submit requests to the server.
//!
//! It requires an inference pass, which only a door's gate can issue.

use galatea_gate::access::{AccessPass, GrantMismatch, api};

use crate::{InferenceRequest, ResponseSender, Status};

/// Serves inference requests: the engine, or a layer in front of it.
pub trait InferenceService: Send + Sync {
    /// Replies to `request` through `sender`, now or later, on any thread.
    ///
    /// It never blocks and never fails: errors are sent through the sender. The request is boxed
    /// because it is large and moves often.
    fn infer(
        &self,
        pass: AccessPass<api::Inference>,
        request: Box<InferenceRequest>,
        sender: ResponseSender,
    );
}

/// The error for a door that asked for a different pass than its gate admitted.
impl From<GrantMismatch> for Status {
    fn from(mistake: GrantMismatch) -> Self {
        Self::internal(mistake.to_string())
    }
}
