//! What happens to a scheduler, and what it wants done. Both lists are closed.

use crate::batch::Batch;
use crate::ids::{InstanceId, RequestInfo, RequestKey, SequenceKey};

/// Something that happened.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request arrived. Its key must not be queued already.
    ///
    /// With sequences, its driver looks up which sequence it belongs to, and time
    /// alone may end that one. So before the look, a driver whose
    /// [`next_wakeup`](crate::Scheduler::next_wakeup) is due steps a `Tick` with the
    /// same `now`, under the same lock, and forgets the names of what that closes.
    /// Otherwise the end comes in this event's step, behind the look: the request
    /// names a key that has just ended, and is taken for one of a new sequence.
    Enqueue(RequestInfo),
    /// The client no longer wants the request. Ignored unless it is queued, or
    /// is between two iterations or in one: a cancellation may cross a dispatch
    /// or a failure on its way.
    Cancel(RequestKey),
    /// The backend gave a request of a sequence back. Said once per execution
    /// of each [`SequenceStep`](crate::SequenceStep), before or after the
    /// `LaneFree` of its batch.
    Released {
        /// Which request.
        key: RequestKey,
        /// Whether it has been served.
        release: Release,
    },
    /// The instance finished its batch.
    LaneFree(InstanceId),
    /// The instance is ready for batches.
    AddInstance(InstanceId),
    /// The instance shall get no further batch.
    RemoveInstance(InstanceId),
    /// The rate limiter lets the instance, which asked, run one batch. Only with
    /// [`Scheduler::with_permits`](crate::Scheduler::with_permits).
    /// `ReturnPermit` follows: in the same step if nothing runs.
    PermitGranted(InstanceId),
    /// The rate limiter has no permit for the instance, which has just asked: it
    /// comes later. Said at once and under the driver's lock, so that another
    /// instance may be tried.
    PermitDelayed(InstanceId),
    /// The model unloads: queued requests run, new ones are refused. Sequences take
    /// nothing more, and end once nothing of them is queued.
    Drain,
    /// Time passed.
    Tick,
}

/// What a backend wants with the request that it gives back.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Release {
    /// It is served, and its key is free.
    Done,
    /// It is to run again. Only with iterative sequences.
    Reschedule,
}

/// Something that the driver shall do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Execute the batch on the instance, which is busy until `LaneFree`.
    Dispatch {
        /// Where.
        instance: InstanceId,
        /// What.
        batch: Batch,
    },
    /// Ask the rate limiter for a permit: the instance is free and a batch could
    /// close. It asks again only after the answer, or after it withdrew.
    RequestPermit(InstanceId),
    /// Give the instance's permit back to the rate limiter.
    ReturnPermit {
        /// Whose.
        instance: InstanceId,
        /// Whether a batch was executed with it.
        used: bool,
    },
    /// The instance, which has asked for a permit, has nothing to run any more, or
    /// is gone. If the permit is on its way already, it is brought nevertheless, and
    /// used or answered with `ReturnPermit`.
    WithdrawPermit(InstanceId),
    /// Answer the request with an error. It has left the queue.
    Fail {
        /// Which request.
        key: RequestKey,
        /// Why.
        reason: FailReason,
    },
    /// No further request belongs to the sequence: its correlation ID may be
    /// forgotten. What is queued of it still runs. Said once per sequence,
    /// before its `SequenceEnded`.
    SequenceClosed(SequenceKey),
    /// Nothing of the sequence is queued any more, and its slot is free. The
    /// last of its requests may still be in execution; its state has no
    /// successor.
    SequenceEnded(SequenceKey),
    /// The instance has no batch and gets none: it may be destroyed.
    InstanceRemoved(InstanceId),
    /// Nothing is queued and nothing runs. Said once, after `Drain`.
    Drained,
}

/// Why a request fails without having run.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FailReason {
    /// Its level already has as many waiting requests as allowed.
    QueueFull,
    /// It waited as long as its level's policy allows.
    TimeoutExpired,
    /// Its client cancelled it.
    Cancelled,
    /// The model unloads.
    Draining,
    /// It belongs to no sequence, but the model has a sequence batcher.
    NoSequence,
    /// Its sequence is not known, and it does not start one.
    MissingStart,
    /// Its sequence waited for a slot as long as one of its requests allows.
    SequenceTimeoutExpired,
}

/// Actions in the order in which they are to be performed. The driver keeps one
/// and drains it after each step, so that steps allocate nothing for it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Actions(Vec<Action>);

impl Actions {
    /// Adds an action to the end.
    pub fn push(&mut self, action: Action) {
        self.0.push(action);
    }

    /// Takes all actions out, in order.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Action> {
        self.0.drain(..)
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The actions in order, left in place.
    pub fn as_slice(&self) -> &[Action] {
        &self.0
    }
}
