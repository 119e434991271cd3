//! The test hook `hold_until_queued`: nothing is dispatched until a given number of requests are
//! waiting.

use crate::status::QueueWaitReason;

/// Missing → Released.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum DispatchHold {
    Released,
    /// The number of further requests that must be queued before the first dispatch.
    Missing(u32),
}

impl DispatchHold {
    /// Holds dispatches until this many requests have been queued; 0 turns the hook off.
    pub(crate) fn until_queued(requests: u32) -> Self {
        if requests == 0 { DispatchHold::Released } else { DispatchHold::Missing(requests) }
    }

    /// Counts a queued request.
    pub(crate) fn count_queued(&mut self) {
        match self {
            DispatchHold::Released => {}
            DispatchHold::Missing(missing) if *missing <= 1 => *self = DispatchHold::Released,
            DispatchHold::Missing(missing) => *missing -= 1,
        }
    }

    pub(crate) fn is_released(self) -> bool {
        self == DispatchHold::Released
    }

    /// Returns the reason why requests wait, if the hook causes the wait.
    pub(crate) fn wait_reason(self) -> Option<QueueWaitReason> {
        match self {
            DispatchHold::Released => None,
            DispatchHold::Missing(missing) => Some(QueueWaitReason::Hold { missing }),
        }
    }
}
