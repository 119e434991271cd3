//! Handles, which grant the right to send requests to a model version.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use galatea_config::SchedulingChoice;
use galatea_control::{ModelConfigDocument, PriorityLevels, ServedModel};
use galatea_dispatch::LoadedModel;

use crate::agent_lease::AgentLease;
use crate::reaper::{Reaper, RetiredVersion};

/// A version that can receive requests. The reaper destroys the version once the last reference to
/// its handle is dropped.
pub(crate) struct ModelHandle {
    /// The version; `None` once the drop has handed it to the reaper, which then has the only
    /// reference and destroys the version.
    model: Option<Arc<LoadedModel>>,
    lease: Option<Arc<AgentLease>>,
    reaper: Reaper,
    /// True if the reaper counts the version.
    is_counted: AtomicBool,
}

impl ModelHandle {
    /// Creates a handle for a loaded version. `lease` is the lease of the model's repository
    /// agents.
    pub(crate) fn new(
        model: Arc<LoadedModel>,
        lease: Option<Arc<AgentLease>>,
        reaper: &Reaper,
    ) -> Arc<Self> {
        let (reaper, is_counted) = (reaper.clone(), AtomicBool::new(false));
        Arc::new(Self { model: Some(model), lease, reaper, is_counted })
    }

    /// Marks the version as about to serve. From now on, the reaper counts the version until it is
    /// destroyed, because code that finds it in a snapshot, such as a readiness check or a change
    /// of its instances, may hold this handle after the version has gone out of service.
    pub(crate) fn begin_service(&self) {
        if !self.is_counted.swap(true, Ordering::SeqCst) {
            self.reaper.expect_version();
        }
    }

    /// Returns a weak reference that identifies the version when it is destroyed.
    pub(crate) fn downgrade(&self) -> Weak<LoadedModel> {
        Arc::downgrade(self.model())
    }

    /// The lease of the model's repository agents, if any.
    pub(crate) const fn lease(&self) -> Option<&Arc<AgentLease>> {
        self.lease.as_ref()
    }

    fn model(&self) -> &Arc<LoadedModel> {
        self.model.as_ref().unwrap_or_else(|| panic!("a handle has its model until it is dropped"))
    }
}

impl Deref for ModelHandle {
    type Target = LoadedModel;

    fn deref(&self) -> &LoadedModel {
        self.model()
    }
}

impl ServedModel for ModelHandle {
    fn is_decoupled(&self) -> bool {
        self.spec().decoupled
    }

    fn config(&self) -> Arc<ModelConfigDocument> {
        self.model().config()
    }

    fn priority_levels(&self) -> PriorityLevels {
        match &self.spec().scheduling {
            SchedulingChoice::Dynamic(dynamic) => PriorityLevels {
                count: dynamic.priority_levels,
                default: dynamic.default_priority_level,
            },
            // An ensemble passes every priority on to its composing models.
            SchedulingChoice::Ensemble(_) => PriorityLevels { count: u64::MAX, default: 0 },
            SchedulingChoice::Default | SchedulingChoice::Sequence(_) => PriorityLevels::default(),
        }
    }
}

impl Drop for ModelHandle {
    fn drop(&mut self) {
        // A version that has never served is counted only from its end.
        self.begin_service();
        let lease = self.lease.take().map(|lease| lease as Arc<dyn Send + Sync>);
        if let Some(model) = self.model.take() {
            self.reaper.retire(RetiredVersion { model, lease });
        }
    }
}

impl std::fmt::Debug for ModelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.model().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use galatea_backend::{ExecutionPolicy, ModelRepositoryAgents};
    use galatea_dispatch::LogSink;

    use super::*;
    use crate::testing::{FakeBackend, LONG, load_version};

    /// Agents whose end the test delays.
    struct SlowAgents(Mutex<mpsc::Receiver<()>>);

    impl ModelRepositoryAgents for SlowAgents {
        fn loaded(&self) {}

        fn load_failed(&self) {}

        fn unloading(&self) {}
    }

    impl Drop for SlowAgents {
        fn drop(&mut self) {
            let _ = self.0.lock().unwrap().recv_timeout(LONG);
        }
    }

    #[test]
    fn the_reaper_gets_the_only_share_of_a_retired_version() {
        let log = LogSink::new(|_, _, _| {});
        let reaper = Reaper::start(Box::new(|_, _, _| {}), log).unwrap();
        let (release, wait) = mpsc::channel();
        let handle = ModelHandle::new(
            load_version(FakeBackend::new(ExecutionPolicy::Inline)),
            None,
            &reaper,
        );
        let model = handle.downgrade();
        reaper.end_agents(Box::new(SlowAgents(Mutex::new(wait))));
        drop(handle);
        assert_eq!(model.strong_count(), 1, "that of the reaper, which is busy");
        release.send(()).unwrap();
        assert_eq!(reaper.wait_idle(LONG), 0);
        assert!(model.upgrade().is_none());
    }
}
