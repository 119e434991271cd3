//! Demands: models that are needed and aren't resident, and the requests that wait for them.

use super::event::RequestOrigin;
use super::model::ModelIndex;
use crate::ids::RequestKey;
use crate::time::Time;

/// A model that is needed and isn't resident.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    pub(crate) target: ModelIndex,
    /// The model after its dependencies, each after its own dependencies.
    pub(crate) closure: Vec<ModelIndex>,
    pub(crate) waiters: Vec<RequestKey>,
    /// The latest time for which a refused request was told to come back.
    pub(crate) promised: Option<Time>,
    /// True if a client loads the model explicitly.
    pub(crate) is_client_load: bool,
    /// The predicted time of admission.
    pub(crate) ready_at: Time,
}

impl Demand {
    /// Returns true if the model is loaded even if no request waits for it.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.waiters.is_empty() || self.promised.is_some() || self.is_client_load
    }
}

/// A request that waits.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) target: ModelIndex,
    pub(crate) deadline: Time,
    pub(crate) purpose: WaitPurpose,
}

/// The purpose for which a request waits.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum WaitPurpose {
    Use(RequestOrigin),
    ClientLoad(RequestOrigin),
}
