//! The lease that a model's repository agents hold on it.
//!
//! The agents approve a model's load when the model is defined, and are notified of every change
//! from then on. At the end, the reaper thread drops the agents. It drops them after the model,
//! because they may own the model's files. As a result, agents are never called while the engine
//! holds a lock, and the end is never reported early.
//!
//! ```text
//! unclaimed in the AgentLeaseSlot of a defined model → shared by the versions of a load
//!     → expired, once the model is about to be removed → ended, with the last version
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use galatea_backend::ModelRepositoryAgents;
use galatea_stdx::Lock;

use crate::reaper::Reaper;

/// A model's agents. All versions loaded after the agents agree share the lease, and dropping the
/// last reference ends it.
pub(crate) struct AgentLease {
    /// The agents; `None` once the lease has been dropped.
    agents: Option<Box<dyn ModelRepositoryAgents>>,
    is_expired: Arc<AtomicBool>,
    reaper: Reaper,
}

impl AgentLease {
    /// Notifies the agents that the model is about to enter service.
    pub(crate) fn report_loaded(&self) {
        self.agents.iter().for_each(|agents| agents.loaded());
    }

    /// Notifies the agents that the model failed to load.
    pub(crate) fn report_load_failed(&self) {
        self.agents.iter().for_each(|agents| agents.load_failed());
    }

    /// Notifies the agents that the model is about to go out of service. A new load must ask new
    /// agents.
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

/// The slot for a defined model's lease. It owns the lease until the first load claims it; from
/// then on the loaded versions own it.
pub(crate) struct AgentLeaseSlot {
    unclaimed: Lock<Option<Arc<AgentLease>>>,
    /// The lease; `None` if the model has no agents.
    lease: Option<LeaseReference>,
}

struct LeaseReference {
    lease: Weak<AgentLease>,
    /// Set once the model is about to be removed. The agents may be notified later, and draining
    /// versions keep the lease longer.
    is_expired: Arc<AtomicBool>,
}

/// The result of a load's attempt to claim a lease.
pub(crate) enum ClaimedLease {
    /// The model has no agents.
    None,
    /// The lease of the agents that agreed to the load.
    Lease(Arc<AgentLease>),
    /// The agents agreed to an earlier load, which has ended.
    Expired,
}

impl AgentLeaseSlot {
    pub(crate) fn new(agents: Option<Box<dyn ModelRepositoryAgents>>, reaper: &Reaper) -> Self {
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

    /// Returns true if the model has agents but can no longer be loaded with them.
    pub(crate) fn is_expired(&self) -> bool {
        self.lease.as_ref().is_some_and(|reference| {
            reference.is_expired.load(Ordering::SeqCst) || reference.lease.strong_count() == 0
        })
    }

    /// Expires the lease, because the model is about to be removed. A new load must ask new agents.
    pub(crate) fn expire(&self) {
        if let Some(reference) = &self.lease {
            reference.is_expired.store(true, Ordering::SeqCst);
        }
    }

    /// Hands the lease to a load.
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
