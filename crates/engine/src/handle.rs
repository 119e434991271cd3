//! Handles: the right to send requests to a version of a model.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use galatea_dispatch::LoadedModel;

use crate::agent_lease::AgentLease;
use crate::reaper::{Reaper, RetiredVersion};

/// A version that requests can be sent to. The reaper destroys the version when the last
/// share of its handle is dropped.
pub(crate) struct ModelHandle {
    model: Arc<LoadedModel>,
    lease: Option<Arc<AgentLease>>,
    reaper: Reaper,
}

impl ModelHandle {
    /// The handle of a version that was loaded. `lease` is that of its model's repository
    /// agents.
    pub(crate) fn new(
        model: Arc<LoadedModel>,
        lease: Option<Arc<AgentLease>>,
        reaper: &Reaper,
    ) -> Arc<Self> {
        Arc::new(Self { model, lease, reaper: reaper.clone() })
    }

    /// Identifies the version when it is destroyed.
    pub(crate) fn downgrade(&self) -> Weak<LoadedModel> {
        Arc::downgrade(&self.model)
    }

    /// The lease of the model's repository agents, if it has any.
    pub(crate) const fn lease(&self) -> Option<&Arc<AgentLease>> {
        self.lease.as_ref()
    }
}

impl Deref for ModelHandle {
    type Target = LoadedModel;

    fn deref(&self) -> &LoadedModel {
        &self.model
    }
}

impl Drop for ModelHandle {
    fn drop(&mut self) {
        let lease = self.lease.take().map(|lease| lease as Arc<dyn Send + Sync>);
        self.reaper.retire(RetiredVersion { model: self.model.clone(), lease });
    }
}

impl std::fmt::Debug for ModelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.model.fmt(f)
    }
}
