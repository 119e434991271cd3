//! Effects of a step: the work that must be done after the dispatcher's lock is released.

use galatea_infer::{PendingRequest, StateTensor};
use galatea_policy::{FailReason, InstanceId};
use smallvec::SmallVec;

use crate::batch::ClosedBatch;
use crate::rate_limiter::GrantedPermits;

/// An action to perform without the lock.
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
    /// Drops requests of a broken scheduler, which replies to them.
    DropRequests(Vec<PendingRequest>),
    /// Drops states of sequences that have ended.
    DropStates(Vec<StateTensor>),
    StopLane(InstanceId),
    /// Delivers permits to instances of any model.
    DeliverPermits(GrantedPermits),
    NotifyDrained,
    /// Logs a line about a sequence.
    Log(String),
}

/// The effects of a step. Nearly every step has at most one.
pub(super) type Effects = SmallVec<[Effect; 1]>;
