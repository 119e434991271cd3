//! Effects of a step: the work that must be done after the dispatcher's lock is released.

use galatea_infer::{PendingRequest, StateTensor};
use galatea_policy::{FailReason, InstanceId};
use smallvec::SmallVec;

use crate::batch::ClosedBatch;
use crate::rate_limiter::GrantedPermits;

/// One thing to do without the lock.
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
    /// Requests of a broken scheduler. Dropping them replies to them.
    DropRequests(Vec<PendingRequest>),
    /// States of sequences that have ended.
    DropStates(Vec<StateTensor>),
    StopLane(InstanceId),
    /// Permits for instances of any model.
    DeliverPermits(GrantedPermits),
    NotifyDrained,
    /// A line about a sequence.
    Log(String),
}

/// Nearly every step has one effect or none.
pub(super) type Effects = SmallVec<[Effect; 1]>;
