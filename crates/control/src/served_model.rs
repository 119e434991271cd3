//! A model version that a door has looked up for a request.

use std::any::Any;
use std::sync::Arc;

use crate::{ModelConfigDocument, PriorityLevels};

/// A model version in service, with the facts that a door needs before it hands a request over.
///
/// The door puts this value into the request as
/// [`found_model`](galatea_infer::InferenceRequest::found_model), so the server looks up a
/// request's model only once. The version stays in service until this value is dropped, so a door
/// keeps it only once the request has arrived completely.
pub trait ServedModel: Any + Send + Sync {
    /// Returns true if the model is decoupled, that is, may send any number of responses to a
    /// request.
    fn is_decoupled(&self) -> bool;
    /// The configuration, used to interpret an inference request.
    fn config(&self) -> Arc<ModelConfigDocument>;
    /// The priorities that requests may have.
    fn priority_levels(&self) -> PriorityLevels;
}
