//! What a scheduler did, in a form that any implementation can produce.
//! Permits come before deeds, and are no deeds themselves.

use galatea_policy::{Action, BatchEntry, FailReason, InstanceId, RequestKey, SequenceKey};

/// One action of a scheduler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Deed {
    /// Requests run together.
    Run {
        /// Where.
        instance: InstanceId,
        /// What, in the order of rows.
        entries: Vec<BatchEntry>,
        /// Rows of all entries together, as the scheduler says.
        rows: u32,
    },
    /// A request fails.
    Fail(RequestKey, FailReason),
    /// A sequence takes no further request.
    Closed(SequenceKey),
    /// A sequence has nothing queued and no slot.
    Ended(SequenceKey),
    /// An instance is gone.
    Removed(InstanceId),
    /// Nothing waits and nothing runs after a drain.
    Drained,
}

impl Deed {
    /// The deed; none if the action is about permits, which a [`PermitBook`]
    /// enters.
    ///
    /// [`PermitBook`]: crate::permits::PermitBook
    pub(crate) fn of(action: Action) -> Option<Self> {
        Some(match action {
            Action::Dispatch { instance, batch } => {
                let rows = batch.batch_size();
                Deed::Run { instance, entries: batch.into_entries(), rows }
            }
            Action::Fail { key, reason } => Deed::Fail(key, reason),
            Action::SequenceClosed(sequence) => Deed::Closed(sequence),
            Action::SequenceEnded(sequence) => Deed::Ended(sequence),
            Action::InstanceRemoved(instance) => Deed::Removed(instance),
            Action::Drained => Deed::Drained,
            Action::RequestPermit(_) | Action::ReturnPermit { .. } | Action::WithdrawPermit(_) => {
                return None;
            }
        })
    }
}
