//! The lease that a model's repository agents have on it.
//!
//! The agents of a model agree to its load while it is defined. From then on they are told what
//! happens to the model. Last, the reaper's thread drops them after the model, because they
//! may own its files. So agents are never called under a lock of the engine, and the end is
//! never reported early.
//!
//! ```text
//! unclaimed in the AgentLeaseSlot of a defined model → shared by the versions of a load
//!     → expired, once the model is to go → ended, with the last version
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use galatea_backend::ModelAgents;
use galatea_stdx::Lock;

use crate::reaper::Reaper;

/// The agents of a model. Every version that was loaded after they agreed shares the lease.
/// The last share ends it.
pub(crate) struct AgentLease {
    /// `None` once it is dropped.
    agents: Option<Box<dyn ModelAgents>>,
    is_expired: Arc<AtomicBool>,
    reaper: Reaper,
}

impl AgentLease {
    /// Tells the agents that the model is about to serve.
    pub(crate) fn report_loaded(&self) {
        self.agents.iter().for_each(|agents| agents.loaded());
    }

    /// Tells the agents that the model could not be loaded.
    pub(crate) fn report_load_failed(&self) {
        self.agents.iter().for_each(|agents| agents.load_failed());
    }

    /// Tells the agents that the model is about to go out of service. Another load has to
    /// ask other agents.
    pub(crate) fn report_unloading(&self) {
        self.is_expired.store(true, Ordering::SeqCst);
        self.agents.iter().for_each(|agents| agents.unloading());
    }
}

impl Drop for AgentLease {
    fn drop(&mut self) {
        if let Some(agents) = self.agents.take() {
            self.reaper.end_agents(agents);
        }
    }
}

/// The place of a defined model's lease. The slot owns the lease until the first load
/// claims it; then the loaded versions own it.
pub(crate) struct AgentLeaseSlot {
    unclaimed: Lock<Option<Arc<AgentLease>>>,
    /// `None` if the model has no agents.
    lease: Option<LeaseReference>,
}

struct LeaseReference {
    lease: Weak<AgentLease>,
    /// Set once the model is to go. The agents may be told later, and versions that drain
    /// keep the lease longer.
    is_expired: Arc<AtomicBool>,
}

/// The lease with which a load may begin.
pub(crate) enum ClaimedLease {
    /// The model has no agents.
    None,
    /// The lease of the agents that agreed to the load.
    Lease(Arc<AgentLease>),
    /// The agents agreed to a load that is over.
    Expired,
}

impl AgentLeaseSlot {
    pub(crate) fn new(agents: Option<Box<dyn ModelAgents>>, reaper: &Reaper) -> Self {
        let unclaimed = agents.map(|agents| {
            let (is_expired, reaper) = (Arc::default(), reaper.clone());
            Arc::new(AgentLease { agents: Some(agents), is_expired, reaper })
        });
        let lease = unclaimed.as_ref().map(|lease| LeaseReference {
            lease: Arc::downgrade(lease),
            is_expired: lease.is_expired.clone(),
        });
        Self { unclaimed: Lock::new(unclaimed), lease }
    }

    /// Returns true if the model has no agents.
    pub(crate) const fn is_empty(&self) -> bool {
        self.lease.is_none()
    }

    /// Returns true if the model has agents, but can't be loaded with them any more.
    pub(crate) fn is_expired(&self) -> bool {
        self.lease.as_ref().is_some_and(|reference| {
            reference.is_expired.load(Ordering::SeqCst) || reference.lease.strong_count() == 0
        })
    }

    /// The model is to go. Another load has to ask other agents.
    pub(crate) fn expire(&self) {
        if let Some(reference) = &self.lease {
            reference.is_expired.store(true, Ordering::SeqCst);
        }
    }

    /// Gives the lease to a load.
    pub(crate) fn claim(&self) -> ClaimedLease {
        let Some(reference) = &self.lease else { return ClaimedLease::None };
        let lease = self.take_unclaimed().or_else(|| reference.lease.upgrade());
        let lease = lease.filter(|_| !reference.is_expired.load(Ordering::SeqCst));
        lease.map_or(ClaimedLease::Expired, ClaimedLease::Lease)
    }

    /// Takes the lease if no load has claimed it.
    pub(crate) fn take_unclaimed(&self) -> Option<Arc<AgentLease>> {
        self.unclaimed.lock("take an unclaimed lease").take()
    }
}
