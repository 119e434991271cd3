//! A step's effects: work to be done after the dispatcher's lock is released.

use galatea_infer::{PendingRequest, StateTensor};
use galatea_policy::{FailReason, InstanceId};
use smallvec::SmallVec;

use crate::batch::ClosedBatch;
use crate::rate_limiter::GrantedPermits;

/// An effect that is performed without the lock.
#[derive(Debug)]
pub(super) enum Effect {
    Execute {
        instance: InstanceId,
        batch: ClosedBatch,
    },
    Fail {
        request: Box<PendingRequest>,
        reason: FailReason,
    },
    /// Drops a broken scheduler's requests, which replies to them.
    DropRequests(Vec<PendingRequest>),
    /// Drops the states of sequences that have ended.
    DropStates(Vec<StateTensor>),
    StopLane(InstanceId),
    /// Delivers permits to instances of any model.
    DeliverPermits(GrantedPermits),
    NotifyDrained,
    /// Logs a line about a sequence.
    Log(String),
}

/// A step's effects. Nearly every step has at most one.
pub(super) type Effects = SmallVec<[Effect; 1]>;
