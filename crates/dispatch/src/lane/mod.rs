//! A lane is one instance in service, which executes one batch at a time.
//!
//! The thread that executes a batch depends on the instance:
//!
//! - An instance whose backend never waits ([`ExecutionPolicy::Inline`]) has no thread. The thread
//!   that formed the batch executes it ([`Lane::execute_threadless`]).
//! - Any other instance has its own thread, which receives the batch through its inbox
//!   ([`Lane::send`]). Handing over a batch and handing back the responses costs two wake-ups.
//! - **Inline execution.** Two wake-ups take longer than a small model. An I/O thread that formed a
//!   batch therefore executes it itself, if it has time left in its [`InlineBudget`] and the batch
//!   will be short ([`Lane::try_execute_inline`]); the lane's thread stays asleep. This requires
//!   that the instance guarantees predictability: it waits for nothing, and its execution time
//!   depends only on the shapes and sizes of its inputs.
//!
//! An instance that only waits for an execution elsewhere makes no guarantee about its execution
//! time. If it takes longer than expected, the I/O thread stops waiting, and the lane's thread
//! finishes the execution ([`ResumableInstance`](galatea_backend::ResumableInstance)).
//!
//! Predictions are based on the lane's past executions: see [`predictor`].
//!
//! A long execution on the lane's thread is terminated once its clients have disconnected: see
//! [`watch`].
//!
//! At any time, only one thread owns the lane: a thread that brought a request, or the lane's own
//! thread. The `models` module tests all interleavings of the handover (`cargo xtask loom`).

#[cfg(all(test, loom_models))]
mod models;
mod predictor;
#[cfg(test)]
mod tests;
mod watch;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use galatea_backend::{
    BeginResult, ExecutionPolicy, ExecutionPredictability, ExecutionTerminator, Instance, LogLevel,
    RefusedBatch,
};
use galatea_infer::{FailureReason, PendingRequest, Status};
use galatea_policy::InstanceId;
use galatea_stdx::sync::thread::{self, JoinHandle};
use galatea_stdx::{Inbox, InlineBudget, Lock};

use self::predictor::LatencyPredictor;
use self::watch::LaneWatch;
use self::worker::Worker;
use crate::LogSink;
use crate::batch::ClosedBatch;
use crate::host_policy::{ThreadBinding, run_bound};
use crate::log::request_log;
use crate::rate_limiter::ResourceRequirements;
use crate::statistics::CountedGpu;
use crate::timer::Timer;

/// The owner of a lane, which is the dispatcher.
pub(crate) trait LaneOwner: Send + Sync {
    /// Turns a batch into requests for the backend.
    fn assemble(&self, batch: ClosedBatch) -> AssembledBatch;

    /// Reports that the lane's thread has executed a batch. Returns the lane's next batch, if there
    /// is one.
    fn lane_free(&self, instance: InstanceId) -> Option<ClosedBatch>;
}

/// A batch's requests, in the form that the backend expects.
#[derive(Debug)]
pub(crate) enum AssembledBatch {
    /// All requests are executed together.
    Together(Vec<PendingRequest>),
    /// The requests are executed one by one, because combining them into one batch would exceed the
    /// memory limit.
    Apart(Vec<PendingRequest>),
}

/// An instance in service.
pub(crate) struct Lane {
    name: String,
    log: LogSink,
    kind: LaneKind,
    /// The processors and memory for its thread; `None` means any.
    binding: Option<ThreadBinding>,
    requirements: ResourceRequirements,
    lost: LaneLossReason,
    /// The GPU whose executions are counted, if any.
    gpu: Option<CountedGpu>,
}

/// The reason why all later batches fail, set once the lane's device is lost.
type LaneLossReason = Arc<OnceLock<Status>>;

enum LaneKind {
    Threaded {
        inbox: Arc<Inbox<LaneTask>>,
        instance: Arc<Lock<LaneInstance>>,
        guarantee: ExecutionPredictability,
        is_resumable: bool,
        terminator: Option<Arc<dyn ExecutionTerminator>>,
        thread: Lock<Option<JoinHandle<()>>>,
        /// A stack size used by tests, so large that the thread can't be started.
        #[cfg(test)]
        stack_size: Option<usize>,
    },
    /// A lane without a thread. The scheduler assigns a lane one batch at a time, so the lock is
    /// always free.
    Threadless { instance: Lock<Option<Box<dyn Instance>>> },
}

/// A task for the lane's thread.
enum LaneTask {
    Execute(ClosedBatch),
    /// Finish an execution that another thread began.
    Finish,
}

/// The progress of an inline execution.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum InlineExecution {
    /// The batch was executed on this thread.
    Ended,
    /// The execution began on this thread; the lane's thread finishes it.
    InProgress,
}

/// The instance of a lane with a thread, along with its expected execution times.
///
/// The lock is taken by the thread that has the lane's batch: the lane's own thread, or a thread
/// that executes inline. A lane has one batch at a time, so the lock is always free.
struct LaneInstance {
    /// The instance; `None` once the lane's thread has ended.
    instance: Option<Box<dyn Instance>>,
    predictor: LatencyPredictor,
}

impl Lane {
    /// Creates a lane for `instance`. [`Lane::start`] starts its thread.
    pub(crate) fn new(
        name: String,
        mut instance: Box<dyn Instance>,
        policy: ExecutionPolicy,
        log: LogSink,
    ) -> Self {
        let kind = match policy {
            ExecutionPolicy::Inline => LaneKind::Threadless { instance: Lock::new(Some(instance)) },
            ExecutionPolicy::Blocking => {
                let (guarantee, terminator) = (instance.guarantee(), instance.terminator());
                let is_resumable = instance.resumable().is_some();
                let predictor = LatencyPredictor::new(guarantee);
                let predictor = if is_resumable { predictor.for_resumable() } else { predictor };
                LaneKind::Threaded {
                    inbox: Arc::default(),
                    instance: Arc::new(Lock::new(LaneInstance {
                        instance: Some(instance),
                        predictor,
                    })),
                    guarantee,
                    is_resumable,
                    terminator,
                    thread: Lock::new(None),
                    #[cfg(test)]
                    stack_size: None,
                }
            }
        };
        let requirements = ResourceRequirements::default();
        Self {
            name,
            log,
            kind,
            binding: None,
            requirements,
            lost: LaneLossReason::default(),
            gpu: None,
        }
    }

    /// Requires resources from the rate limiter for each execution. Only a lane with a thread may
    /// require resources, because a permit may arrive on any thread.
    pub(crate) fn with_requirements(self, requirements: ResourceRequirements) -> Self {
        Self { requirements, ..self }
    }

    /// Counts the lane's executions for its GPU.
    pub(crate) fn with_counted_gpu(self, gpu: Option<CountedGpu>) -> Self {
        Self { gpu, ..self }
    }

    /// The resources that each execution requires from the rate limiter.
    pub(crate) const fn requirements(&self) -> &ResourceRequirements {
        &self.requirements
    }

    /// Binds the lane's thread, if it has one, to processors and memory.
    pub(crate) fn with_binding(self, binding: Option<ThreadBinding>) -> Self {
        Self { binding, ..self }
    }

    /// Returns true if the lane has no thread. Such a lane takes batches through
    /// [`Lane::execute_threadless`], other lanes through [`Lane::send`].
    pub(crate) const fn is_threadless(&self) -> bool {
        matches!(self.kind, LaneKind::Threadless { .. })
    }

    /// The instance's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Fails all batches from now on because the instance's device is lost. Returns true the first
    /// time.
    pub(crate) fn lose(&self, why: Status) -> bool {
        self.lost.set(why).is_ok()
    }

    /// Makes starting the thread fail.
    #[cfg(test)]
    pub(crate) fn request_huge_stack(&mut self) {
        if let LaneKind::Threaded { stack_size, .. } = &mut self.kind {
            *stack_size = Some(usize::MAX / 4);
        }
    }

    /// Starts the lane's thread, if it has one. The timer determines when to check long executions.
    pub(crate) fn start<O: LaneOwner + 'static>(
        &self,
        id: InstanceId,
        owner: &Arc<O>,
        timer: &Timer,
    ) -> Result<(), Status> {
        let LaneKind::Threaded { inbox, instance, terminator, thread, .. } = &self.kind else {
            return Ok(());
        };
        let worker = Worker {
            id,
            instance: instance.clone(),
            inbox: inbox.clone(),
            owner: owner.clone(),
            lost: self.lost.clone(),
            gpu: self.gpu.clone(),
            watch: terminator.clone().map(|one| LaneWatch::new(one, timer.clone())),
            name: self.name.clone(),
            log: self.log.clone(),
        };
        // Thread names must not contain NUL.
        let builder = thread::Builder::new().name(self.name.replace('\0', ""));
        #[cfg(test)]
        let builder = match &self.kind {
            LaneKind::Threaded { stack_size: Some(size), .. } => builder.stack_size(*size),
            LaneKind::Threaded { .. } | LaneKind::Threadless { .. } => builder,
        };
        let spawned = run_bound(self.binding.as_ref(), || builder.spawn(move || worker.run()))?;
        let handle = spawned.map_err(|error| {
            Status::internal(format!("can't start a thread for {}: {error}", self.name))
        })?;
        *thread.lock("keep the thread") = Some(handle);
        Ok(())
    }

    /// Sends a batch to the lane's thread. A stopped lane drops it, which replies to its requests.
    pub(crate) fn send(&self, batch: ClosedBatch) {
        if let LaneKind::Threaded { inbox, .. } = &self.kind {
            let _ = inbox.push(LaneTask::Execute(batch));
        }
    }

    /// Executes a batch on the current thread instead of the lane's thread, if the current thread
    /// has time for it and the batch will be short.
    ///
    /// # Errors
    ///
    /// Returns the batch if it is not executed.
    pub(crate) fn try_execute_inline(
        &self,
        batch: ClosedBatch,
        owner: &impl LaneOwner,
    ) -> Result<InlineExecution, ClosedBatch> {
        let LaneKind::Threaded { inbox, instance, guarantee, is_resumable, .. } = &self.kind else {
            return Err(batch);
        };
        // A host policy requires execution on its own processors.
        if self.binding.is_some()
            || !(*is_resumable || *guarantee == ExecutionPredictability::Predictable)
            || self.lost.get().is_some()
        {
            return Err(batch);
        }
        let Some(mut budget) = InlineBudget::take() else { return Err(batch) };
        let mut state = instance.lock("execute inline");
        let LaneInstance { instance, predictor } = &mut *state;
        let profile = predictor.inline_profile(&batch);
        let Some(instance) = instance else { return Err(batch) };
        if !predictor.allows_inline_execution(profile) {
            return Err(batch);
        }
        let patience = predictor.short_max();
        let mut begun = BeginResult::Ended;
        let run = || {
            let requests = match assembled(batch, owner, self.gpu.as_ref(), &self.name, &self.log) {
                AssembledBatch::Together(requests) => requests,
                AssembledBatch::Apart(_) => {
                    unreachable!("what a batcher forms is not executed inline")
                }
            };
            match instance.resumable() {
                Some(resumable) => resumable.begin(requests, patience).map(|now| begun = now),
                None => instance.execute(requests),
            }
        };
        let took = timed(|| guarded(&self.name, &self.log, run));
        budget.charge(took);
        if begun == BeginResult::Ended {
            let elsewhere = instance.resumable().map(|resumable| resumable.took());
            predictor.observe(profile, elsewhere.unwrap_or(took));
            return Ok(InlineExecution::Ended);
        }
        predictor.observe(profile, took.max(patience.saturating_add(Duration::from_nanos(1))));
        drop(state);
        // A lane is stopped only when nothing is executing.
        let _ = inbox.push(LaneTask::Finish);
        Ok(InlineExecution::InProgress)
    }

    /// Executes a batch on a lane without a thread.
    pub(crate) fn execute_threadless(&self, batch: ClosedBatch, owner: &impl LaneOwner) {
        if let LaneKind::Threadless { instance } = &self.kind
            && let Some(instance) = instance.lock("execute a batch").as_mut()
        {
            let watch = None;
            let gpu = self.gpu.as_ref();
            let of =
                ExecutionLane { lost: &self.lost, gpu, watch, name: &self.name, log: &self.log };
            execute(instance.as_mut(), batch, owner, of);
        }
    }

    /// Ends the thread, and with it the instance, after its last batch. An instance without a
    /// thread is destroyed by [`Lane::join`], because the calling thread may be in the middle of a
    /// call to its backend.
    pub(crate) fn stop(&self) {
        if let LaneKind::Threaded { inbox, .. } = &self.kind {
            inbox.close();
        }
    }

    /// Waits for the thread to end. By then the instance has been destroyed.
    pub(crate) fn join(&self) {
        match &self.kind {
            LaneKind::Threaded { thread, .. } => {
                let handle = thread.lock("join the thread").take();
                if let Some(handle) = handle {
                    let _ = handle.join();
                }
            }
            LaneKind::Threadless { instance } => {
                let instance = instance.lock("destroy the instance").take();
                drop(instance);
            }
        }
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lane({})", self.name)
    }
}

/// The lane on which an execution runs.
struct ExecutionLane<'a> {
    lost: &'a OnceLock<Status>,
    gpu: Option<&'a CountedGpu>,
    watch: Option<&'a LaneWatch>,
    name: &'a str,
    log: &'a LogSink,
}

/// Executes one batch.
fn execute(
    instance: &mut dyn Instance,
    batch: ClosedBatch,
    owner: &impl LaneOwner,
    of: ExecutionLane<'_>,
) {
    let ExecutionLane { lost, gpu, watch, name, log } = of;
    let mut run = |requests: Vec<PendingRequest>| {
        if let Some(why) = lost.get() {
            return Err(RefusedBatch { requests, status: why.clone() });
        }
        let _watched = watch.and_then(|watch| watch.watch_execution(Instant::now(), &requests));
        instance.execute(requests)
    };
    guarded(name, log, || match assembled(batch, owner, gpu, name, log) {
        AssembledBatch::Together(requests) => run(requests),
        AssembledBatch::Apart(requests) => {
            for request in requests {
                guarded(name, log, || run(vec![request]));
            }
            Ok(())
        }
    });
}

fn assembled(
    batch: ClosedBatch,
    owner: &impl LaneOwner,
    gpu: Option<&CountedGpu>,
    name: &str,
    log: &LogSink,
) -> AssembledBatch {
    let mut assembled = owner.assemble(batch);
    let (AssembledBatch::Together(requests) | AssembledBatch::Apart(requests)) = &mut assembled;
    if let Some(gpu) = gpu {
        gpu.observe(requests);
    }
    request_log::log_execution(log, name, requests);
    assembled
}

/// Measures the duration of `work`. In loom models time stands still, so each run of a model makes
/// the same decisions.
fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    if cfg!(loom_models) { Duration::ZERO } else { start.elapsed() }
}

/// Runs an execution. Whatever the backend does, every request gets its final reply and is
/// released.
fn guarded(name: &str, log: &LogSink, execute: impl FnOnce() -> Result<(), RefusedBatch>) {
    match catch_unwind(AssertUnwindSafe(execute)) {
        Ok(Ok(())) => {}
        Ok(Err(refused)) => {
            for request in refused.requests {
                request.fail(refused.status.clone(), FailureReason::Backend);
            }
        }
        // The requests were dropped while the stack unwound, which replied to them with an internal
        // error.
        Err(_) => {
            log.write(LogLevel::Error, format_args!("instance '{name}' panicked while executing"));
        }
    }
}
