//! A scheduler's decision, in a form that any implementation can produce. Permit actions precede
//! decisions and aren't decisions themselves.

use galatea_policy::{
    BatchEntry, CloseReason, FailReason, InstanceId, RequestKey, SchedulerAction, SequenceKey,
};

/// One action of a scheduler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SchedulerDecision {
    /// Requests execute as a batch.
    Execute {
        /// The instance.
        instance: InstanceId,
        /// The entries in row order.
        entries: Vec<BatchEntry>,
        /// The total number of rows of all entries, as reported by the scheduler.
        rows: u32,
        /// The reason why the batch was closed at that time.
        reason: CloseReason,
    },
    /// A request fails.
    Fail(RequestKey, FailReason),
    /// A sequence accepts no further requests.
    SequenceClosed(SequenceKey),
    /// A sequence has no queued requests and no slot.
    SequenceEnded(SequenceKey),
    /// An instance was removed.
    InstanceRemoved(InstanceId),
    /// No request is waiting or executing after a drain.
    Drained,
}

impl SchedulerDecision {
    /// Returns the decision, or `None` if the action concerns a permit and is recorded by a
    /// [`PermitLedger`].
    ///
    /// [`PermitLedger`]: crate::permit_ledger::PermitLedger
    pub(crate) fn of(action: SchedulerAction) -> Option<Self> {
        Some(match action {
            SchedulerAction::Dispatch { instance, batch } => {
                let (rows, reason) = (batch.batch_size(), batch.close_reason());
                SchedulerDecision::Execute { instance, entries: batch.into_entries(), rows, reason }
            }
            SchedulerAction::Fail { key, reason } => SchedulerDecision::Fail(key, reason),
            SchedulerAction::SequenceClosed(sequence) => {
                SchedulerDecision::SequenceClosed(sequence)
            }
            SchedulerAction::SequenceEnded(sequence) => SchedulerDecision::SequenceEnded(sequence),
            SchedulerAction::InstanceRemoved(instance) => {
                SchedulerDecision::InstanceRemoved(instance)
            }
            SchedulerAction::Drained => SchedulerDecision::Drained,
            SchedulerAction::RequestPermit(_)
            | SchedulerAction::ReturnPermit { .. }
            | SchedulerAction::WithdrawPermit(_) => {
                return None;
            }
        })
    }
}
