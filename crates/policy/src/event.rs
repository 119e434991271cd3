//! What happens to a scheduler, and what it wants done. Both lists are closed.

use crate::batch::Batch;
use crate::ids::{InstanceId, RequestKey, Ticket};

/// Something that happened.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request arrived. Its key must not be queued already.
    Enqueue(Ticket),
    /// The client no longer wants the request. Ignored unless it is queued: a
    /// cancellation may cross a dispatch or a failure on its way.
    Cancel(RequestKey),
    /// The instance finished its batch.
    LaneFree(InstanceId),
    /// The instance is ready for batches.
    AddInstance(InstanceId),
    /// The instance shall get no further batch.
    RemoveInstance(InstanceId),
    /// The model unloads: queued requests run, new ones are refused.
    Drain,
    /// Time passed.
    Tick,
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
    /// Answer the request with an error. It has left the queue.
    Fail {
        /// Which request.
        key: RequestKey,
        /// Why.
        reason: FailReason,
    },
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
