//! GPU loss: the protocol from the driver's error to the removal of instances, and the driver for
//! [`DeviceLossPlan`].
//!
//! A GPU that has failed once is never used again by this process. The failed batch ends with the
//! error, waiting requests go to other instances, and no request is left waiting for a lost GPU.
//! (`backend-python/supervisor.rs` describes the death of a worker process.)
//!
//! # The steps
//!
//! 1. **A call reports the loss.** The report is a driver result that says so (`State::check` in
//!    `devices`), an ONNX Runtime error that contains such a result (`Executor::run`,
//!    `is_of_device`), or a reading from the library that measures GPUs (`Devices::read`). Each
//!    declares the device lost. The first reason is kept. From then on `State::make_current`
//!    refuses every `devices` call on the GPU before the call reaches the driver.
//! 2. **The server records the loss.** The device calls the handler from `Server::gpu_loss_handler`
//!    once, on the thread that detected the loss: `GpuLosses::report` adds the GPU to [`LostGpus`],
//!    logs a line, and has a separate thread notify the ready versions. Later loads are placed
//!    without the GPU (`VersionLoader::support`).
//! 3. **A version settles.** The engine's thread calls [`LoadedModel::retire_lost_gpus`], which
//!    takes idle instances out of service; and a thread that has executed a batch calls
//!    `Dispatcher::settle_losses` before it frees the lane. Either call is enough, so a lane whose
//!    device failed its batch gets no further one, however busy the engine's thread is.
//! 4. **Instances leave.** [`Placements::remove_lost_instances`] makes the plan. First
//!    `Dispatcher::dismiss_lanes` removes the leaving instances from the scheduler
//!    (`Event::RemoveInstance`), so that none gets another batch; then `Dispatcher::lose_lane`
//!    marks every lane on the GPU.
//! 5. **Their batches fail.** The batch on the device ends with the error from its call. A batch
//!    that a marked lane has not begun is refused with `GPU N, which executed requests to model …,
//!    is lost`, and counts as failed by the backend (`execute` in `lane/mod.rs`).
//! 6. **Waiting requests go to the others.** A sequence does not move: its instance fails the
//!    sequence's requests, and leaves after its last sequence.
//! 7. **The last one stays.** If no instance on another device is left, the plan keeps all of them:
//!    a lane must take the waiting requests, which it then fails. `Placements::check` makes the
//!    version unready.
//!
//! # The races
//!
//! - **Two threads settle.** The plan is made from the remaining instances under the lock of
//!   [`Placements`], so the second thread finds less to do. It removes *all* dismissed instances
//!   from the scheduler, because its own lane may be one that the first thread has not removed yet.
//!   The scheduler receives only one removal per instance: `Lanes::begin_removal` is checked under
//!   the dispatcher's lock.
//! - **Two GPUs at once.** The plan depends on all lost GPUs, in either order. If a GPU is added in
//!   the meantime, `told` differs from the count again, and the next check settles it.
//! - **A loss while a batch is handed over.** A lane takes its batch before step 4, or not at all.
//!   If the lane is marked in time, it refuses the batch; if not, the device does, in step 1.
//! - **A loss while a version is loaded.** The engine's thread does not know the version yet. The
//!   version's readiness check reads [`LostGpus`] itself, and the version settles after its first
//!   batch. A device that is lost before the server has set its handler calls the handler once it
//!   is set (`Device::on_lost`).
//! - **A loss while instances change.** `Placements::set` increments the generation and resets
//!   `told`, so a plan for the old instances is not mistaken for one for the new instances. The
//!   change settles afterwards. Until then a plan does not know the new instances, and may have
//!   dismissed all instances that the change keeps. `Placements::set` does not list those again,
//!   and if no instance on another device is left, one that the change would remove stays in their
//!   place.
//! - **A loss while a version drains.** `Dispatcher::finish_drain` and `dismiss_lanes` share
//!   `begin_removal`, so each lane is removed by only one of them. A removed lane is not marked.
//! - **A loss on a lane's own thread.** The thread waits for no lane: a dismissed lane is joined by
//!   the engine's thread, or by the reaper together with the version (`Lanes::join`).
//! - **The server ends.** The engine's thread holds only a weak reference to the registry, and ends
//!   when the registry is gone.

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

/// A server's lost GPUs. A lost GPU is never used again.
#[derive(Debug, Default)]
pub struct LostGpus {
    /// The reason for each loss, by GPU number.
    reasons: Lock<BTreeMap<u32, String>>,
    count: AtomicUsize,
}

impl LostGpus {
    /// Adds a GPU. Returns true if it is new. The first reason is kept, because it causes the later
    /// ones.
    pub fn add(&self, gpu: u32, reason: &str) -> bool {
        let mut reasons = self.reasons.lock("add a lost GPU");
        let is_new = !reasons.contains_key(&gpu);
        if is_new {
            reasons.insert(gpu, String::from(reason));
            self.count.store(reasons.len(), Ordering::Release);
        }
        is_new
    }

    /// The reason for each loss, by GPU number.
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

/// The instances in a version's lanes, and the lost GPUs that may take them out of service.
pub(crate) struct Placements {
    current: Lock<CurrentInstances>,
    lost: Arc<LostGpus>,
    /// The number of lost GPUs of which the lanes have been notified.
    told: AtomicUsize,
    subject: VersionLabel,
}

#[derive(Default)]
struct CurrentInstances {
    instances: Vec<(InstanceId, InstanceKey)>,
    /// The instances that have left or are about to leave.
    dismissed: Vec<InstanceId>,
    /// The number of times that the instances have been set.
    generation: u64,
}

/// The names used in messages about the version.
pub(crate) struct VersionLabel {
    pub(crate) id: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) version: i64,
    pub(crate) log: LogSink,
}

impl CurrentInstances {
    /// Implements [`Placements::set`].
    fn replace(
        &mut self,
        mut instances: Vec<(InstanceId, InstanceKey)>,
        is_lost: impl Fn(u32) -> bool,
    ) -> Option<InstanceId> {
        let can_execute = |(_, key): &(InstanceId, InstanceKey)| !key.gpu().is_some_and(&is_lost);
        // A version without executing instances doesn't need any.
        let needs_none = instances.is_empty();
        instances.retain(|(instance, _)| !self.dismissed.contains(instance));
        let staying = if needs_none || instances.iter().any(can_execute) {
            None
        } else {
            let mut before = self.instances.iter().filter(|one| !instances.contains(one));
            let last = before.clone().next().filter(|_| instances.is_empty());
            before.find(|one| can_execute(one)).or(last).cloned()
        };
        instances.extend(staying.clone());
        self.instances = instances;
        self.generation += 1;
        Some(staying?.0)
    }
}

impl Placements {
    pub(crate) fn new(
        instances: Vec<(InstanceId, InstanceKey)>,
        lost: Arc<LostGpus>,
        subject: VersionLabel,
    ) -> Self {
        let current =
            Lock::new(CurrentInstances { instances, dismissed: Vec::new(), generation: 0 });
        Self { current, lost, told: AtomicUsize::new(0), subject }
    }

    /// The instances that accept requests.
    pub(super) fn instances(&self) -> Vec<(InstanceId, InstanceKey)> {
        self.current.lock("list the instances").instances.clone()
    }

    /// Sets the instances, without those that have left in the meantime. Lanes are notified of lost
    /// GPUs again. If no instance that can execute would be left, returns an earlier instance that
    /// stays as well.
    pub(super) fn set(&self, instances: Vec<(InstanceId, InstanceKey)>) -> Option<InstanceId> {
        let mut current = self.current.lock("set the instances");
        let lost = self.lost.reasons();
        let staying = current.replace(instances, |gpu| lost.contains_key(&gpu));
        self.told.store(0, Ordering::Release);
        staying
    }

    /// Takes the instances on lost GPUs out of service, unless that has already been done. Can be
    /// called on any thread that holds no lock, because it never waits.
    pub(crate) fn remove_lost_instances(&self, dispatcher: &Dispatcher) {
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
        // This comes first, so that none of them gets another batch. It includes those from another
        // thread's plan, because one of them may be this thread's lane.
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
        // This comes last, so that no other lane continues too early. Instances that were set in
        // the meantime have not been notified.
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

    /// Checks that at least one instance that can execute is left.
    ///
    /// # Errors
    ///
    /// The lost GPU, and the reason.
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
    /// Takes the instances on lost GPUs out of service. Their current batches fail, and so do
    /// batches that they receive in the meantime. Waiting requests go to the other instances. If no
    /// other instance exists, the version is no longer ready and refuses every request.
    ///
    /// Must not be called on an instance's thread, because this may wait for that instance.
    pub fn retire_lost_gpus(&self) {
        self.placements.remove_lost_instances(&self.dispatcher);
        self.dispatcher.join_removed();
    }

    /// Checks that at least one instance that can execute is left.
    pub(super) fn check_gpus(&self) -> Result<(), Status> {
        self.placements.check()
    }
}
