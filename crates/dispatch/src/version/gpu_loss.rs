//! What a version does when GPUs are lost: the driver of [`DeviceLossPlan`].
//!
//! A server's lost GPUs are in one list. Versions learn of a new entry in two ways, of which
//! either suffices for the end: the engine tells them all, which takes idle instances out of
//! service; and a lane that has executed a batch looks before it takes the next one. So a lane
//! whose device failed its batch gets no further one, however busy the engine's thread is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use galatea_backend::LogLevel;
use galatea_infer::Status;
use galatea_policy::{DeviceLossPlan, InstanceId};
use galatea_stdx::Lock;

use super::LoadedModel;
use crate::LogSink;
use crate::dispatcher::Dispatcher;
use crate::instances::InstanceKey;

/// The lost GPUs of a server. None is ever found again.
#[derive(Debug, Default)]
pub struct LostGpus {
    /// Why each is lost, by its number.
    reasons: Lock<BTreeMap<u32, String>>,
    count: AtomicUsize,
}

impl LostGpus {
    /// Adds a GPU. Returns whether it is new; the first reason is the cause of later ones.
    pub fn add(&self, gpu: u32, reason: &str) -> bool {
        let mut reasons = self.reasons.lock("add a lost GPU");
        let is_new = !reasons.contains_key(&gpu);
        if is_new {
            reasons.insert(gpu, String::from(reason));
            self.count.store(reasons.len(), Ordering::Release);
        }
        is_new
    }

    /// Why each is lost, by its number.
    pub(crate) fn reasons(&self) -> BTreeMap<u32, String> {
        if self.count() == 0 {
            return BTreeMap::new();
        }
        self.reasons.lock("look at lost GPUs").clone()
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }
}

/// The instances of a version's lanes, and the lost GPUs that may take them out of service.
pub(crate) struct Placements {
    current: Lock<Current>,
    lost: Arc<LostGpus>,
    /// How many lost GPUs the lanes were told of.
    told: AtomicUsize,
    subject: Subject,
}

#[derive(Default)]
struct Current {
    instances: Vec<(InstanceId, InstanceKey)>,
    /// Those that left, or are about to.
    dismissed: Vec<InstanceId>,
    /// How often the instances were set.
    generation: u64,
}

/// The version, for texts.
pub(crate) struct Subject {
    pub(crate) id: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) version: i64,
    pub(crate) log: LogSink,
}

impl Placements {
    pub(crate) fn new(
        instances: Vec<(InstanceId, InstanceKey)>,
        lost: Arc<LostGpus>,
        subject: Subject,
    ) -> Self {
        let current = Lock::new(Current { instances, dismissed: Vec::new(), generation: 0 });
        Self { current, lost, told: AtomicUsize::new(0), subject }
    }

    /// The instances that take requests.
    pub(super) fn instances(&self) -> Vec<(InstanceId, InstanceKey)> {
        self.current.lock("list the instances").instances.clone()
    }

    /// Sets the instances. Lanes are told anew of what was lost.
    pub(super) fn set(&self, instances: Vec<(InstanceId, InstanceKey)>) {
        let mut current = self.current.lock("set the instances");
        current.instances = instances;
        current.generation += 1;
        self.told.store(0, Ordering::Release);
    }

    /// Takes the instances on lost GPUs out of service, if they are not yet. For any thread
    /// that holds no lock: it waits for nothing.
    pub(crate) fn settle(&self, dispatcher: &Dispatcher) {
        if self.told.load(Ordering::Acquire) == self.lost.count() {
            return;
        }
        let mut current = self.current.lock("plan a loss");
        let lost = self.lost.reasons();
        let devices: Vec<(InstanceId, Option<u32>)> =
            current.instances.iter().map(|(instance, key)| (*instance, key.gpu())).collect();
        let plan = DeviceLossPlan::new(&devices, &lost.keys().copied().collect());
        current.instances.retain(|(instance, _)| !plan.leaving.contains(instance));
        current.dismissed.extend(&plan.leaving);
        let (dismissed, generation) = (current.dismissed.clone(), current.generation);
        drop(current);
        // First, so that none of them is given another batch meanwhile. Also those of another
        // thread's plan: one of them may be the lane of this thread.
        dispatcher.dismiss_lanes(&dismissed);
        let mut fresh = BTreeSet::new();
        for (instance, gpu) in devices {
            let Some((gpu, why)) = gpu.and_then(|gpu| Some((gpu, lost.get(&gpu)?))) else {
                continue;
            };
            if dispatcher.lose_lane(instance, &self.gpu_is_lost(gpu, why))
                || plan.leaving.contains(&instance)
            {
                fresh.insert(gpu);
            }
        }
        if !fresh.is_empty() {
            self.log_loss(&fresh, &lost, &plan);
        }
        // Only now, so that no other lane goes on before. Instances that were set meanwhile
        // have not been told.
        if self.current.lock("note what was told").generation == generation {
            self.told.store(lost.len(), Ordering::Release);
        }
    }

    fn log_loss(&self, fresh: &BTreeSet<u32>, lost: &BTreeMap<u32, String>, plan: &DeviceLossPlan) {
        let mut gpus = String::new();
        for gpu in fresh {
            let reason = lost.get(gpu).map_or("", String::as_str);
            let _ = write!(gpus, "GPU {gpu} is lost ({reason}): ");
        }
        let (count, leaving) = (plan.failing.len(), plan.leaving.len());
        let line = format_args!(
            "'{}' version {}: {gpus}{count} instances are on lost GPUs, {leaving} of them are \
             removed{}",
            self.subject.id,
            self.subject.version,
            if plan.is_usable { "" } else { ", and none is left: the model isn't ready" },
        );
        self.subject.log.write(LogLevel::Error, line);
    }

    /// Whether an instance is left that can execute.
    ///
    /// # Errors
    ///
    /// Which GPU is lost, and why.
    fn check(&self) -> Result<(), Status> {
        let lost = self.lost.reasons();
        if lost.is_empty() {
            return Ok(());
        }
        let current = self.current.lock("look for an instance");
        let gpus = current.instances.iter().map(|(_, key)| key.gpu());
        let gpus = gpus.map(|gpu| gpu.filter(|gpu| lost.contains_key(gpu)));
        let first = gpus.collect::<Option<Vec<u32>>>().and_then(|gpus| gpus.first().copied());
        match first.and_then(|gpu| Some((gpu, lost.get(&gpu)?))) {
            Some((gpu, reason)) => Err(self.gpu_is_lost(gpu, reason)),
            None => Ok(()),
        }
    }

    fn gpu_is_lost(&self, gpu: u32, reason: &str) -> Status {
        Status::unavailable(format!(
            "GPU {gpu}, which executed requests to model '{}', is lost: {reason}",
            self.subject.name
        ))
    }
}

impl LoadedModel {
    /// Takes the instances on lost GPUs out of service: what they execute fails, and so does
    /// what they are given meanwhile. Requests that wait go to the other instances. Without
    /// others the version isn't ready any more, and refuses every request.
    ///
    /// Not for the thread of an instance, which this may wait for.
    pub fn settle_lost_gpus(&self) {
        self.placements.settle(&self.dispatcher);
        self.dispatcher.join_removed();
    }

    /// Whether an instance is left that can execute.
    pub(super) fn check_gpus(&self) -> Result<(), Status> {
        self.placements.check()
    }
}
