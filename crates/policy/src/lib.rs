//! The server's pure decision logic as values: scheduling, rate limits, ensembles, reply order,
//! model lifecycles and worker lifecycles.
//!
//! | value | decides |
//! |---|---|
//! | [`Scheduler`] | which requests of a model version form a batch, where it executes, and when |
//! | [`RateLimiter`] | which instances of all models may execute while they share resources |
//! | [`EnsembleRun`], [`StepConcurrencyLimiter`] | which steps of an ensemble's request start |
//! | [`ReplyReorderBuffer`] | when a reply may be sent, if replies keep the order of requests |
//! | [`RequestCoalescer`] | which equal requests share an execution |
//! | [`LifecyclePlanner`] | which models are loaded and unloaded |
//! | [`FairShares`], [`TenantUsage`] | which tenant's request of a model is served next, and which one exceeds a tenant's limits |
//! | [`Residency`] | which models are in memory, if it can't hold all, and which requests wait for one |
//! | [`CancellationWatch`] | which executions are ended because no client waits for them |
//! | [`WorkerProcessLifecycle`] | when a worker process is started anew, given up and ended |
//! | [`ForkTemplateLifecycle`] | whether workers are forked by a template, and when another one is tried |
//!
//! Each value is a state machine: it takes an event, and the time if it matters, and returns
//! actions. A driver in another crate owns it, holds the only lock, reads the clock and performs
//! the actions. The simulator (`galatea-sim`) drives the same values in virtual time.
//!
//! # Where to begin
//!
//! Read `event.rs` (the inputs and outputs of a scheduler) and `scheduler.rs` first. After that, a
//! request passes through four stages, each in a module with its own tests:
//!
//! | stage | decides |
//! |---|---|
//! | `sequence` | with a sequence batcher: the instance of a sequence, and when its next request is eligible |
//! | `queue` | the order in which requests wait, their maximum number and time |
//! | `batcher` | where a batch ends, and whether it waits to grow |
//! | `lane_pool` | the instance of the batch, and whether it has its permit |
//!
//! For requests without sequences, `independent` contains the queue and one of three choosers
//! instead of `batcher`:
//!
//! - `batcher` itself takes requests from the front of the queue, by rows.
//! - `padding`, with [`DynamicBatcherSpec::padding`], lets requests of different lengths share a
//!   batch, as long as the batch is faster than executing its requests one by one and no request
//!   waits without a gain.
//! - `deadline`, with [`SchedulingMode::Deadline`], orders requests by deadline, refuses those that
//!   would complete too late, and closes batches as deadlines allow. With padding, it also chooses
//!   among requests of different lengths by the rules of `padding`.
//!
//! The last two consult `cost`, which records the durations of earlier executions. Their tuned
//! constants are in `tuned`, and the units of batches, such as rows, elements and work, are types
//! in `units`.
//!
//! # What it is not
//!
//! This crate has no clock, threads, locks, files, environment access, random numbers, randomly
//! ordered maps or tensors. Whether two requests may share a batch is determined by a
//! [`ShapeClassId`] that admission computes. The scheduler doesn't store requests; it identifies
//! them by [`RequestKey`].
//!
//! # Bounds
//!
//! A queue is bounded by its policy's `max_queue_size`. A size of 0 means unlimited, as the
//! configuration promises; in that case, the doors' limits on open requests bound the queue. A step
//! costs O(log n) in queued requests; forming a batch also costs O(requests in the batch).
//!
//! # Example
//!
//! ```
//! use galatea_policy::*;
//!
//! let spec = SchedulingSpec { max_batch_size: 4, mode: SchedulingMode::Dynamic(DynamicBatcherSpec::default()), hold_until_queued: 0, hold_until_backlogged: 0 };
//! let mut scheduler = Scheduler::new(spec);
//! let mut actions = SchedulerActions::default();
//! for key in 1..=3 {
//!     let request = RequestInfo { key: RequestKey(key), batch_size: 1, shape_class: ShapeClassId(0), priority: 0, deadline: Time::MAX, length: 0, timeout_ns: 0, sequence: None };
//!     scheduler.step(Time(key), SchedulerEvent::Enqueue(request), &mut actions);
//! }
//! assert!(actions.is_empty(), "there is no instance yet");
//! scheduler.step(Time(10), SchedulerEvent::AddInstance(InstanceId(0)), &mut actions);
//! let batch = match actions.drain().next() {
//!     Some(SchedulerAction::Dispatch { batch, .. }) => batch,
//!     other => panic!("expected a batch, not {other:?}"),
//! };
//! assert_eq!(batch.batch_size(), 3);
//! ```
#![forbid(unsafe_code)]

mod batch;
mod batch_strategy;
mod batcher;
mod coalescing;
mod cost;
mod deadline;
mod device_loss;
mod ensemble;
mod event;
mod execution_watch;
mod hold;
mod ids;
mod independent;
mod lane_pool;
mod lifecycle;
mod padding;
mod permit_requests;
mod queue;
mod rate_limiter;
mod reply_order;
mod residency;
mod scheduler;
mod scheduler_state;
#[cfg(test)]
mod script;
mod sequence;
mod shares;
mod spec;
mod status;
mod template_life;
mod time;
mod tuned;
mod units;
mod worker_life;

pub use batch::{Batch, BatchEntry, CloseReason, SequenceStep};
pub use batch_strategy::{BatchInclusion, BatchStrategy, NoBatchStrategy};
pub use coalescing::{
    CoalescedCancellation, CoalescedRequestId, CoalescedRole, EndedExecution, JoinedExecution,
    RequestCoalescer, SharedExecutionEnd, SharedExecutionId,
};
pub use device_loss::DeviceLossPlan;
pub use ensemble::{
    EnsembleAction, EnsembleGraph, EnsembleGraphError, EnsembleRun, EnsembleRunFailure,
    EnsembleSpec, EnsembleStepSpec, EnsembleTensorIndex, StepCallKey, StepConcurrencyLimiter,
    StepIndex,
};
pub use event::{
    FailReason, RequestRelease, SchedulerAction, SchedulerActions, SchedulerEvent,
    WarmupMeasurement,
};
pub use execution_watch::{CancellationCheckResult, CancellationWatch, WATCH_INTERVAL_NS};
pub use ids::{InstanceId, RequestInfo, RequestKey, SequenceKey, SequencePosition, ShapeClassId};
pub use lifecycle::{
    DesiredModel, LifecycleAction, LifecycleEvent, LifecyclePlanner, LifecycleStatus,
    LoadBlockReason, LoadOutcome, LoadReason, ModelId, ModelIdsByName, ModelRevision,
    ModificationTimes, can_have_namespace, model_id, name_of_model_id,
};
pub use rate_limiter::{PermitEvent, PermitHolder, PermitUse, RateLimiter, ResourceId};
pub use reply_order::{ArrivalNumber, ReplyFinality, ReplyReorderBuffer};
pub use residency::{
    LoadMeasurement, MemoryBudget, MemoryByPool, MemoryPoolId, ModelEstimate, RefusalReason,
    RequestOrigin, Residency, ResidencyAction, ResidencyEvent, ResidencyRefusal, ResidencyRequest,
    ResidencySettings, ResidencyState, ResidencyStatus,
};
pub use scheduler::Scheduler;
pub use shares::{
    ComputeCharge, FairShareSettings, FairShares, TenantId, TenantLimit, TenantLimitExceeded,
    TenantLimits, TenantUsage, TokenBucket, divide_compute,
};
pub use spec::{
    DeadlineBatcherSpec, DynamicBatcherSpec, PaddingSpec, QueuePolicy, SchedulingMode,
    SchedulingSpec, SequenceBatcherSpec, SequenceStrategy, TimeoutAction,
};
pub use status::{
    InstanceStateCounts, InstanceStatus, PriorityLevelStatus, QueueWaitReason, RequestWaitReason,
    SchedulerStatus, SequenceBatcherStatus, SequenceSlotStatus, SequenceSlotWaitReason,
    WaitingSequenceStatus,
};
pub use template_life::{
    FORKED_HELLO_NS, ForkTemplateEvent, ForkTemplateLifecycle, TEMPLATE_ANSWER_NS,
    TEMPLATE_START_NS,
};
pub use time::Time;
pub use worker_life::{
    EXIT_GRACE_NS, FORGIVENESS_NS, PAUSE_MAX_NS, PAUSE_MIN_NS, SHORT_PAUSE_NS, STARTS_AT_ONCE,
    TERMINATION_NS, WorkerProcessAction, WorkerProcessAwaits, WorkerProcessEvent,
    WorkerProcessLifecycle, WorkerProcessStatus,
};
