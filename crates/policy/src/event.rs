//! The events and actions of a scheduler. Both enums are closed: a `match` lists all
//! variants.

use crate::batch::Batch;
use crate::ids::{InstanceId, RequestInfo, RequestKey, SequenceKey};

/// An input of the scheduler.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request arrived. Its key must not be queued already.
    ///
    /// With sequences, the driver looks up the key of the request's sequence, and the
    /// passage of time may end that sequence. So if
    /// [`next_wakeup`](crate::Scheduler::next_wakeup) is due, the driver first steps a
    /// `Tick` with the same `now`, under the same lock, and deletes the keys that this
    /// closes. Otherwise the sequence would end in this event's step, after the look-up,
    /// and the request, whose key has just ended, would begin a new sequence.
    Enqueue(RequestInfo),
    /// The request was cancelled. Ignored unless it is queued or iterative: a
    /// cancellation may arrive after a dispatch or a failure.
    Cancel(RequestKey),
    /// The backend released a request of a sequence. Sent once per execution of each
    /// [`SequenceStep`](crate::SequenceStep), before or after the `LaneFree` of its
    /// batch.
    Released {
        /// The request.
        key: RequestKey,
        /// The end of the request, or its next turn.
        release: Release,
    },
    /// The instance has finished its batch.
    LaneFree(InstanceId),
    /// The instance is ready for batches.
    AddInstance(InstanceId),
    /// The instance gets no further batch.
    RemoveInstance(InstanceId),
    /// The rate limiter grants the instance the permit that it requested, for one batch.
    /// Only with [`Scheduler::with_permits`](crate::Scheduler::with_permits).
    /// `ReturnPermit` follows, in the same step if no batch is dispatched.
    PermitGranted(InstanceId),
    /// The rate limiter has no permit for the instance, which has just requested one, and
    /// grants it later. Sent at once and under the driver's lock, so that another
    /// instance can be tried.
    PermitDelayed(InstanceId),
    /// The model unloads: queued requests run, new ones are refused. Sequences close, and
    /// end once none of their requests is queued.
    Drain,
    /// Time passed.
    Tick,
}

/// The fate of a request that its backend releases.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Release {
    /// It is done, and its key is free.
    Done,
    /// It runs again. Only with iterative sequences.
    Reschedule,
}

/// The duration of an execution that no request waited for: that of a warmup.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct MeasuredExecution {
    /// Rows of its batch.
    pub rows: u32,
    /// The length of its requests, as [`RequestInfo::length`].
    pub length: u32,
    /// Its duration.
    pub duration_ns: u64,
}

/// An output of the scheduler, which the driver performs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Execute the batch on the instance, which is busy until `LaneFree`.
    Dispatch {
        /// The instance.
        instance: InstanceId,
        /// The batch.
        batch: Batch,
    },
    /// Request a permit of the rate limiter: the instance is free and a batch could
    /// close. The instance requests again only after the grant or a withdrawal.
    RequestPermit(InstanceId),
    /// Return the instance's permit to the rate limiter.
    ReturnPermit {
        /// The holder of the permit.
        instance: InstanceId,
        /// True if a batch was executed with it.
        used: bool,
    },
    /// Withdraw the instance's request for a permit: it has no batch any more, or was
    /// removed. If the permit is granted already, the driver still delivers it, and it is
    /// used or returned by `ReturnPermit`.
    WithdrawPermit(InstanceId),
    /// Reply to the request with an error. It has left the queue.
    Fail {
        /// The request.
        key: RequestKey,
        /// The reason.
        reason: FailReason,
    },
    /// The sequence accepts no further request: its correlation ID may be forgotten. Its
    /// queued requests still run. Sent once per sequence, before its `SequenceEnded`.
    SequenceClosed(SequenceKey),
    /// No request of the sequence is queued, and its slot is free. Its last request may
    /// still be in execution; no other uses the state that it leaves.
    SequenceEnded(SequenceKey),
    /// The instance has no batch and gets none: the driver may destroy it.
    InstanceRemoved(InstanceId),
    /// No request is queued or executes. Sent once, after `Drain`.
    Drained,
}

/// Why a request fails without being executed.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FailReason {
    /// Its level has the maximum of waiting requests.
    QueueFull,
    /// It waited for the maximum time of its level's policy.
    TimeoutExpired,
    /// It would miss its deadline.
    TooLate {
        /// After this time, a request like it could be answered by a deadline as far away.
        retry_after_ns: u64,
    },
    /// It was cancelled.
    Cancelled,
    /// The model unloads.
    Draining,
    /// It belongs to no sequence, but the model has a sequence batcher.
    NoSequence,
    /// Its sequence is unknown, and it does not start one.
    MissingStart,
    /// Its sequence waited for a slot until the timeout of one of its requests.
    SequenceTimeoutExpired,
    /// It was rescheduled after the idle time of its sequence.
    RescheduledTooLate,
}

impl FailReason {
    /// Its name for programs, which does not change.
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

/// Actions in the order in which the driver performs them. The driver reuses one list
/// and drains it after each step, so that steps don't allocate.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Actions(Vec<Action>);

impl Actions {
    /// Adds an action to the end.
    pub fn push(&mut self, action: Action) {
        self.0.push(action);
    }

    /// Removes and returns all actions, in order.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Action> {
        self.0.drain(..)
    }

    /// Returns true if there are no actions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The actions in order.
    pub fn as_slice(&self) -> &[Action] {
        &self.0
    }
}
