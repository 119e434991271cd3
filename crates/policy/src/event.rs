//! The events and actions of a scheduler. Both enums are closed: a `match` lists all variants.

use crate::batch::Batch;
use crate::ids::{InstanceId, RequestInfo, RequestKey, SequenceKey};

/// An input of the scheduler.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SchedulerEvent {
    /// A request arrived. Its key must not already be queued.
    ///
    /// With sequences, the driver looks up the key of the request's sequence, but that sequence may
    /// end as time passes. If [`next_wakeup`](crate::Scheduler::next_wakeup) is due, the driver
    /// therefore first steps a `Tick` with the same `now` under the same lock, and deletes the keys
    /// that the tick closes. Otherwise the sequence would end during the step of this event, after
    /// the lookup, and the request would begin a new sequence under a key that has just ended.
    Enqueue(RequestInfo),
    /// The request was cancelled. Ignored unless the request is queued or iterative, because a
    /// cancellation may arrive after a dispatch or a failure.
    Cancel(RequestKey),
    /// The backend released a request of a sequence. Sent once per execution of each
    /// [`SequenceStep`](crate::SequenceStep), before or after the `LaneFree` of its batch.
    Released {
        /// The request.
        key: RequestKey,
        /// The kind of release: the request either ends or runs again.
        release: RequestRelease,
    },
    /// The instance has finished its batch.
    LaneFree(InstanceId),
    /// The instance is ready for batches.
    AddInstance(InstanceId),
    /// The instance must get no further batches.
    RemoveInstance(InstanceId),
    /// The rate limiter grants the instance the permit that it requested, for one batch. Sent only
    /// to schedulers created with [`Scheduler::with_permits`](crate::Scheduler::with_permits).
    /// `ReturnPermit` follows, in the same step if no batch is dispatched.
    PermitGranted(InstanceId),
    /// The rate limiter has no permit for the instance that has just requested one, and will grant
    /// it later. Sent immediately, under the driver's lock, so that another instance can be tried.
    PermitDelayed(InstanceId),
    /// The model is unloading: queued requests run, and new ones are refused. Sequences close, and
    /// each ends once none of its requests is queued.
    Drain,
    /// Time passed.
    Tick,
}

/// The outcome for a request that its backend releases.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RequestRelease {
    /// The request is done, and its key is free.
    Done,
    /// The request runs again. Valid only for iterative sequences.
    Reschedule,
}

/// The measured duration of a warmup execution, for which no request was waiting.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct WarmupMeasurement {
    /// The number of rows in the batch.
    pub rows: u32,
    /// The length of the requests, as in [`RequestInfo::length`].
    pub length: u32,
    /// The duration of the execution.
    pub duration_ns: u64,
}

/// An output of the scheduler, which the driver performs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SchedulerAction {
    /// Execute the batch on the instance, which is busy until `LaneFree`.
    Dispatch {
        /// The instance.
        instance: InstanceId,
        /// The batch.
        batch: Batch,
    },
    /// Request a permit from the rate limiter: the instance is free, and a batch could close. The
    /// instance requests another permit only after the grant or a withdrawal.
    RequestPermit(InstanceId),
    /// Return the instance's permit to the rate limiter.
    ReturnPermit {
        /// The instance that holds the permit.
        instance: InstanceId,
        /// True if a batch was executed under the permit.
        used: bool,
    },
    /// Withdraw the instance's permit request, because the instance no longer has a batch or was
    /// removed. If the permit has already been granted, the driver still delivers it, and it is
    /// used or returned by `ReturnPermit`.
    WithdrawPermit(InstanceId),
    /// Reply to the request with an error. The request has left the queue.
    Fail {
        /// The request.
        key: RequestKey,
        /// The reason.
        reason: FailReason,
    },
    /// The sequence accepts no further requests, so its correlation ID may be forgotten. Its queued
    /// requests still run. Sent once per sequence, before its `SequenceEnded`.
    SequenceClosed(SequenceKey),
    /// No request of the sequence is queued, and its slot is free. Its last request may still be
    /// executing, but no other request uses the state that it leaves behind.
    SequenceEnded(SequenceKey),
    /// The instance has no batch and won't get one, so the driver may destroy it.
    InstanceRemoved(InstanceId),
    /// No request is queued or executing. Sent once, after `Drain`.
    Drained,
}

/// The reason why a request fails without being executed.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FailReason {
    /// The request's level has reached its maximum number of waiting requests.
    QueueFull,
    /// The request waited for the maximum time allowed by its level's policy.
    TimeoutExpired,
    /// The request would miss its deadline.
    TooLate {
        /// The time after which a similar request could meet an equally distant deadline.
        retry_after_ns: u64,
    },
    /// The request was cancelled.
    Cancelled,
    /// The model is unloading.
    Draining,
    /// The request belongs to no sequence, but the model has a sequence batcher.
    NoSequence,
    /// The request's sequence is unknown, and the request doesn't start one.
    MissingStart,
    /// The request's sequence waited for a slot until one of its requests timed out.
    SequenceTimeoutExpired,
    /// The request was rescheduled after its sequence's idle time was over.
    RescheduledTooLate,
}

impl FailReason {
    /// Returns the stable, machine-readable name.
    pub const fn name(self) -> &'static str {
        match self {
            FailReason::QueueFull => "queue_full",
            FailReason::TimeoutExpired => "queue_timeout",
            FailReason::Cancelled => "cancelled",
            FailReason::Draining => "unloading",
            FailReason::NoSequence => "no_sequence",
            FailReason::MissingStart => "missing_start",
            FailReason::SequenceTimeoutExpired => "sequence_timeout",
            FailReason::RescheduledTooLate => "rescheduled_too_late",
            FailReason::TooLate { .. } => "too_late",
        }
    }
}

/// Actions in the order in which the driver performs them. The driver reuses one list and drains it
/// after each step, so that steps don't allocate.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SchedulerActions(Vec<SchedulerAction>);

impl SchedulerActions {
    /// Adds an action to the end.
    pub fn push(&mut self, action: SchedulerAction) {
        self.0.push(action);
    }

    /// Removes and returns all actions, in order.
    pub fn drain(&mut self) -> std::vec::Drain<'_, SchedulerAction> {
        self.0.drain(..)
    }

    /// Returns true if there are no actions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the actions in order.
    pub fn as_slice(&self) -> &[SchedulerAction] {
        &self.0
    }
}
