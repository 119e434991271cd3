//! A dispatcher's lanes, which may come and go while it works.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use galatea_infer::Status;
use galatea_policy::{Event, InstanceId};

use super::Dispatcher;
use crate::lane::Lane;

/// The lanes by instance; numbers are never used again.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    current: ArcSwap<BTreeMap<InstanceId, Arc<Lane>>>,
    /// Lanes that were told to stop. Whoever told them may be one of their own
    /// threads, so somebody else joins them.
    departed: Mutex<Vec<Arc<Lane>>>,
    next: AtomicU32,
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

    fn insert(&self, added: &[(InstanceId, Arc<Lane>)]) {
        self.current.rcu(|lanes| {
            let mut lanes = BTreeMap::clone(lanes);
            lanes.extend(added.iter().cloned());
            lanes
        });
    }

    /// Lets a lane end after its last batch.
    pub(super) fn stop(&self, instance: InstanceId) {
        let Some(lane) = self.get(instance) else { return };
        self.current.rcu(|lanes| {
            let mut lanes = BTreeMap::clone(lanes);
            lanes.remove(&instance);
            lanes
        });
        lane.stop();
        self.departed.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
    }

    /// Waits for the ends of lanes that were told to stop.
    pub(super) fn join(&self) {
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        let lanes = std::mem::take(&mut *departed);
        drop(departed);
        lanes.iter().for_each(|lane| lane.join());
    }
}

impl Dispatcher {
    /// Starts lanes and lets them take batches: all of them, or none.
    ///
    /// # Errors
    ///
    /// `Internal` if a thread can't be started, `InvalidArgument` if the rate
    /// limiter refuses one.
    pub(crate) fn add_lanes(&self, lanes: Vec<Lane>) -> Result<Vec<InstanceId>, Status> {
        let Some(this) = self.this.upgrade() else { return Ok(Vec::new()) };
        let number = || InstanceId(self.lanes.next.fetch_add(1, Ordering::Relaxed));
        let lanes: Vec<(InstanceId, Arc<Lane>)> =
            lanes.into_iter().map(|lane| (number(), Arc::new(lane))).collect();
        self.register(&lanes)?;
        for (instance, lane) in &lanes {
            if let Err(status) = lane.start(*instance, &this) {
                lanes.iter().for_each(|(instance, _)| self.unregister(*instance));
                lanes.iter().for_each(|(_, lane)| lane.stop());
                lanes.iter().for_each(|(_, lane)| lane.join());
                return Err(status);
            }
        }
        self.lanes.insert(&lanes);
        let instances: Vec<InstanceId> = lanes.into_iter().map(|(instance, _)| instance).collect();
        instances.iter().for_each(|instance| self.event(Event::AddInstance(*instance)));
        Ok(instances)
    }

    /// Takes lanes away, each after what it does and, with sequences, after
    /// those that it serves. Returns at once.
    pub(crate) fn remove_lanes(&self, instances: &[InstanceId]) {
        for instance in instances {
            self.event(Event::RemoveInstance(*instance));
        }
        // Those that had nothing to do, and any that went before.
        self.lanes.join();
    }
}
