//! Every scheduling decision of the server, as a value.
//!
//! [`Scheduler`] takes an [`Event`] and the time, and returns [`Action`]s: which
//! requests run together, on which instance, and which are refused. One
//! scheduler serves one model version. Its driver owns it, holds the only lock,
//! reads the clock, and performs the actions; the simulator drives the same
//! value in virtual time.
//!
//! The work goes through four stages, each a module with its own tests:
//!
//! | stage | decides |
//! |---|---|
//! | `sequence` | with a sequence batcher: which instance a sequence is led to, and when its next request is eligible |
//! | `queue` | in which order requests wait, how many may, and for how long |
//! | `former` | where a batch ends, and whether to wait for it to grow |
//! | `lanes` | which instance takes the batch, and whether it has its permit |
//!
//! # What it is not
//!
//! There is no clock, thread, lock, file, environment, random number or randomly
//! ordered map in this crate, and no tensor: whether two requests fit together is
//! a [`BatchKey`] that admission computed. The scheduler does not hold requests;
//! it knows them by [`RequestKey`].
//!
//! # Bounds
//!
//! A queue is bounded by its policy's `max_queue_size`; with 0 it is unlimited,
//! as the configuration promises, and then the front ends' limits on open
//! requests are the bound. A step costs O(log n) in queued requests; forming a
//! batch also costs O(requests of that batch).
//!
//! # Example
//!
//! ```
//! use galatea_policy::*;
//!
//! let spec = SchedulingSpec { max_batch_size: 4, mode: SchedulingMode::Dynamic(DynamicSpec::default()), hold_until_queued: 0, hold_until_backlogged: 0 };
//! let mut scheduler = Scheduler::new(spec);
//! let mut actions = Actions::default();
//! for key in 1..=3 {
//!     let ticket = RequestInfo { key: RequestKey(key), batch_size: 1, batch_key: BatchKey(0), priority: 0, timeout_ns: 0, sequence: None };
//!     scheduler.step(Time(key), Event::Enqueue(ticket), &mut actions);
//! }
//! assert!(actions.is_empty(), "no instance yet");
//! scheduler.step(Time(10), Event::AddInstance(InstanceId(0)), &mut actions);
//! let batch = match actions.drain().next() {
//!     Some(Action::Dispatch { batch, .. }) => batch,
//!     other => panic!("expected a batch, not {other:?}"),
//! };
//! assert_eq!(batch.batch_size(), 3);
//! ```
#![forbid(unsafe_code)]

mod batch;
mod ensemble;
mod event;
mod former;
mod ids;
mod lanes;
mod lifecycle;
mod ordering;
mod permits;
mod queue;
mod rate_limiter;
mod scheduler;
#[cfg(test)]
mod script;
mod sequence;
mod shared;
mod spec;
mod status;
mod strategy;
mod time;

pub use batch::{Batch, BatchEntry, SequenceStep};
pub use ensemble::{
    EnsembleAction, EnsembleGraph, EnsembleRun, EnsembleSpec, GraphError, RunFailure, StepCallKey,
    StepGates, StepIndex, StepSpec, TensorIndex,
};
pub use event::{Action, Actions, Event, FailReason, Release};
pub use ids::{BatchKey, InstanceId, RequestInfo, RequestKey, SequenceKey, SequencePosition};
pub use lifecycle::{
    BlockReason, DesiredModel, Lifecycle, LifecycleAction, LifecycleEvent, LifecycleStatus,
    LoadOutcome, LoadReason, ModelName, ModelNames, ModificationTimes, Revision, fits_namespaces,
    model_id, name_in_id,
};
pub use ordering::{ReplyKind, ReplyNumber, ReplyOrder};
pub use rate_limiter::{PermitEvent, PermitHolder, PermitUse, RateLimiter, ResourceId};
pub use scheduler::Scheduler;
pub use spec::{
    DynamicSpec, QueuePolicy, SchedulingMode, SchedulingSpec, SequenceSpec, SequenceStrategy,
    TimeoutAction,
};
pub use status::{
    BacklogStatus, LaneStatus, QueueStatus, QueueWaitReason, SchedulerStatus, SequencesStatus,
    SlotStatus, SlotWaitReason,
};
pub use strategy::{BatchStrategy, Inclusion, NoStrategy};
pub use time::Time;
