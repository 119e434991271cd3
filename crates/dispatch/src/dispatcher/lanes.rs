//! A dispatcher's lanes, which may be added and removed while it is running.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use galatea_infer::Status;
use galatea_policy::{InstanceId, SchedulerEvent};
use galatea_stdx::{Condvar, Lock};

use super::Dispatcher;
use crate::lane::Lane;

/// The lanes by instance. Instance numbers are never reused.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    current: ArcSwap<BTreeMap<InstanceId, Arc<Lane>>>,
    /// Stopped lanes that have to be joined. The thread that stops a lane may be the lane's own, so
    /// another thread joins it.
    stopped: Lock<Vec<Arc<Lane>>>,
    /// Notified when a lane has been stopped.
    changed: Condvar,
    next_id: AtomicU32,
    /// The instances that were asked to leave. An instance change and the loss of a device may both
    /// decide to remove the same instance.
    leaving: Lock<BTreeSet<InstanceId>>,
}

impl Lanes {
    pub(super) fn get(&self, instance: InstanceId) -> Option<Arc<Lane>> {
        self.current.load().get(&instance).cloned()
    }

    pub(super) fn instances(&self) -> Vec<InstanceId> {
        self.current.load().keys().copied().collect()
    }

    pub(super) fn names(&self) -> BTreeMap<InstanceId, String> {
        let lanes = self.current.load();
        lanes.iter().map(|(instance, lane)| (*instance, String::from(lane.name()))).collect()
    }

    /// Marks an instance as asked to leave; returns true the first time.
    fn begin_removal(&self, instance: InstanceId) -> bool {
        self.leaving.lock("tell an instance to leave").insert(instance)
    }

    fn insert(&self, added: &[(InstanceId, Arc<Lane>)]) {
        self.current.rcu(|lanes| {
            let mut lanes = BTreeMap::clone(lanes);
            lanes.extend(added.iter().cloned());
            lanes
        });
    }

    /// Makes a lane end after its last batch.
    fn stop(&self, instance: InstanceId) {
        let Some(lane) = self.get(instance) else { return };
        self.current.rcu(|lanes| {
            let mut lanes = BTreeMap::clone(lanes);
            lanes.remove(&instance);
            lanes
        });
        lane.stop();
        self.stopped.lock("add a stopped lane").push(lane);
        self.changed.notify_all();
    }

    /// Waits up to `time_max` until these instances have no lanes left. Returns true if they have
    /// none.
    fn wait_for_stop(&self, instances: &[InstanceId], time_max: Duration) -> bool {
        let is_left = || instances.iter().any(|instance| self.get(*instance).is_some());
        let stopped = self.stopped.lock("wait for lanes to stop");
        if is_left() {
            drop(self.changed.wait_timeout(stopped, time_max));
        }
        !is_left()
    }

    /// Waits for stopped lanes to end.
    pub(super) fn join(&self) {
        let lanes = std::mem::take(&mut *self.stopped.lock("take the stopped lanes"));
        lanes.iter().for_each(|lane| lane.join());
    }
}

impl Dispatcher {
    /// Starts either all of these lanes or none. Started lanes receive batches.
    ///
    /// # Errors
    ///
    /// `Internal` if a thread can't be started, `InvalidArgument` if the rate limiter refuses
    /// an instance.
    pub(crate) fn add_lanes(&self, lanes: Vec<Lane>) -> Result<Vec<InstanceId>, Status> {
        let Some(this) = self.this.upgrade() else { return Ok(Vec::new()) };
        let next_id = || InstanceId(self.lanes.next_id.fetch_add(1, Ordering::Relaxed));
        let lanes: Vec<(InstanceId, Arc<Lane>)> =
            lanes.into_iter().map(|lane| (next_id(), Arc::new(lane))).collect();
        self.register(&lanes)?;
        for (instance, lane) in &lanes {
            if let Err(status) = lane.start(*instance, &this, &self.timer) {
                lanes.iter().for_each(|(instance, _)| self.unregister(*instance));
                lanes.iter().for_each(|(_, lane)| lane.stop());
                lanes.iter().for_each(|(_, lane)| lane.join());
                return Err(status);
            }
        }
        self.lanes.insert(&lanes);
        let instances: Vec<InstanceId> = lanes.into_iter().map(|(instance, _)| instance).collect();
        for instance in &instances {
            self.step_and_perform(SchedulerEvent::AddInstance(*instance));
        }
        Ok(instances)
    }

    /// Removes lanes, each after its current batch and, with sequences, after the sequences that it
    /// serves. Returns immediately.
    pub(crate) fn remove_lanes(&self, instances: &[InstanceId]) {
        self.dismiss_lanes(instances);
        self.join_removed();
    }

    /// Like [`Self::remove_lanes`], but can be called on any thread, even a lane's own, because it
    /// doesn't wait for lanes to end. Once it returns, none of these lanes gets a new batch, even
    /// if another thread dismissed the lane.
    pub(crate) fn dismiss_lanes(&self, instances: &[InstanceId]) {
        for instance in instances {
            let effects = {
                let mut state = self.lock("tell an instance to leave");
                if !self.lanes.begin_removal(*instance) {
                    continue;
                }
                self.step(&mut state, SchedulerEvent::RemoveInstance(*instance))
            };
            self.perform(effects);
        }
    }

    /// Joins the removed lanes that are idle.
    pub(crate) fn join_removed(&self) {
        self.lanes.join();
    }

    /// Fails all later batches of a lane because its device is lost. Returns true the first time.
    pub(crate) fn lose_lane(&self, instance: InstanceId, why: &Status) -> bool {
        self.lanes.get(instance).is_some_and(|lane| lane.lose(why.clone()))
    }

    /// Sets the check for lost GPUs that runs after each batch.
    pub(crate) fn watch_losses(&self, settle: impl Fn(&Self) + Send + Sync + 'static) {
        let _ = self.settle_losses.set(Box::new(settle));
    }

    /// Checks for lost GPUs after a lane has executed a batch. A lane whose GPU is lost must not
    /// get another batch.
    pub(super) fn settle_losses(&self) {
        if let Some(settle) = self.settle_losses.get() {
            settle(self);
        }
    }

    /// Waits until removed lanes have executed their batches and their instances are destroyed. A
    /// broken scheduler removes no lanes before the model is unloaded.
    pub(crate) fn wait_for_removed(&self, instances: &[InstanceId]) {
        const PAUSE: Duration = Duration::from_millis(100);
        let is_broken = || self.lock("look whether it is broken").is_broken;
        while !self.lanes.wait_for_stop(instances, PAUSE) && !is_broken() {}
        self.lanes.join();
    }

    pub(super) fn stop_lane(&self, instance: InstanceId) {
        self.lanes.stop(instance);
        self.unregister(instance);
    }

    /// Stops all lanes after the last request.
    pub(super) fn finish_drain(&self) {
        for instance in self.lanes.instances() {
            if !self.lock("look whether it is broken").is_broken
                && self.lanes.begin_removal(instance)
            {
                self.step_and_perform(SchedulerEvent::RemoveInstance(instance));
            }
            // This event itself may have broken the scheduler.
            if self.lock("look whether it is broken").is_broken {
                self.stop_lane(instance);
            }
        }
        self.lock("finish the drain").is_drained = true;
        if let Some(on_drained) = self.on_drained.get() {
            on_drained();
        }
    }
}
