//! A dispatcher's lanes, which may be added and removed while it works.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use galatea_infer::Status;
use galatea_policy::{Event, InstanceId};
use galatea_stdx::{Condvar, Lock};

use super::Dispatcher;
use crate::lane::Lane;

/// The lanes by instance. Numbers are never reused.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    current: ArcSwap<BTreeMap<InstanceId, Arc<Lane>>>,
    /// Lanes that were stopped and have to be joined. The thread that stops a lane may be the
    /// lane's own, so another one joins it.
    stopped: Lock<Vec<Arc<Lane>>>,
    /// Notified when a lane was stopped.
    changed: Condvar,
    next_id: AtomicU32,
    /// Those that were told to leave: a change of the instances and a loss of their device may
    /// come to that at the same time.
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

    /// Returns true if this is the first time that the instance is told to leave.
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

    /// Lets a lane end after its last batch.
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

    /// Waits until none of the lanes is left, but not longer than `time_max`. Returns whether
    /// none is left.
    fn wait_for_stop(&self, instances: &[InstanceId], time_max: Duration) -> bool {
        let is_left = || instances.iter().any(|instance| self.get(*instance).is_some());
        let stopped = self.stopped.lock("wait for lanes to stop");
        if is_left() {
            drop(self.changed.wait_timeout(stopped, time_max));
        }
        !is_left()
    }

    /// Waits for the ends of stopped lanes.
    pub(super) fn join(&self) {
        let lanes = std::mem::take(&mut *self.stopped.lock("take the stopped lanes"));
        lanes.iter().for_each(|lane| lane.join());
    }
}

impl Dispatcher {
    /// Starts lanes, and gives them batches from then on: all of them, or none.
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
            self.step_and_perform(Event::AddInstance(*instance));
        }
        Ok(instances)
    }

    /// Removes lanes, each after its batch and, with sequences, after those that it serves.
    /// Returns at once.
    pub(crate) fn remove_lanes(&self, instances: &[InstanceId]) {
        self.dismiss_lanes(instances);
        self.join_removed();
    }

    /// The same for any thread, also that of a lane: it waits for the end of none. None of them
    /// gets a new batch when this returns, whichever thread told them to leave.
    pub(crate) fn dismiss_lanes(&self, instances: &[InstanceId]) {
        for instance in instances {
            let effects = {
                let mut state = self.lock("tell an instance to leave");
                if !self.lanes.begin_removal(*instance) {
                    continue;
                }
                self.step(&mut state, Event::RemoveInstance(*instance))
            };
            self.perform(effects);
        }
    }

    /// Joins the lanes that were removed and are idle.
    pub(crate) fn join_removed(&self) {
        self.lanes.join();
    }

    /// Fails the batches of a lane from now on: its device is lost. Returns whether that is new.
    pub(crate) fn lose_lane(&self, instance: InstanceId, why: &Status) -> bool {
        self.lanes.get(instance).is_some_and(|lane| lane.lose(why.clone()))
    }

    /// Sets what looks behind each batch whether GPUs were lost.
    pub(crate) fn watch_losses(&self, settle: impl Fn(&Self) + Send + Sync + 'static) {
        let _ = self.settle_losses.set(Box::new(settle));
    }

    /// A lane has executed a batch. One whose GPU is lost must not get the next one.
    pub(super) fn settle_losses(&self) {
        if let Some(settle) = self.settle_losses.get() {
            settle(self);
        }
    }

    /// Waits until removed lanes have executed their batches and their instances are
    /// destroyed. A scheduler that is broken removes none before the model is unloaded.
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

    /// Stops all lanes behind the last request.
    pub(super) fn finish_drain(&self) {
        for instance in self.lanes.instances() {
            if !self.lock("look whether it is broken").is_broken
                && self.lanes.begin_removal(instance)
            {
                self.step_and_perform(Event::RemoveInstance(instance));
            }
            // This event itself may have broken it.
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
