//! A scheduler's decision, in a form that any implementation can produce. Actions for
//! permits precede decisions and are not decisions themselves.

use galatea_policy::{
    Action, BatchEntry, CloseReason, FailReason, InstanceId, RequestKey, SequenceKey,
};

/// One action of a scheduler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Requests execute as a batch.
    Execute {
        /// The instance.
        instance: InstanceId,
        /// The entries in the order of rows.
        entries: Vec<BatchEntry>,
        /// Rows of all entries together, as the scheduler reports them.
        rows: u32,
        /// Why the batch was closed then.
        reason: CloseReason,
    },
    /// A request fails.
    Fail(RequestKey, FailReason),
    /// A sequence accepts no further request.
    SequenceClosed(SequenceKey),
    /// A sequence has no queued request and no slot.
    SequenceEnded(SequenceKey),
    /// An instance was removed.
    InstanceRemoved(InstanceId),
    /// No request waits or executes after a drain.
    Drained,
}

impl Decision {
    /// The decision; none if the action is for a permit, which a [`PermitLedger`]
    /// records.
    ///
    /// [`PermitLedger`]: crate::permit_ledger::PermitLedger
    pub(crate) fn of(action: Action) -> Option<Self> {
        Some(match action {
            Action::Dispatch { instance, batch } => {
                let (rows, reason) = (batch.batch_size(), batch.close_reason());
                Decision::Execute { instance, entries: batch.into_entries(), rows, reason }
            }
            Action::Fail { key, reason } => Decision::Fail(key, reason),
            Action::SequenceClosed(sequence) => Decision::SequenceClosed(sequence),
            Action::SequenceEnded(sequence) => Decision::SequenceEnded(sequence),
            Action::InstanceRemoved(instance) => Decision::InstanceRemoved(instance),
            Action::Drained => Decision::Drained,
            Action::RequestPermit(_) | Action::ReturnPermit { .. } | Action::WithdrawPermit(_) => {
                return None;
            }
        })
    }
}
