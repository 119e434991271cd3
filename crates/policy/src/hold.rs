//! The test hook `hold_until_queued`: nothing is dispatched until a number of requests wait.

use crate::status::QueueWaitReason;

/// Missing → Released.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum DispatchHold {
    Released,
    /// The number of further requests that must be queued before the first dispatch.
    Missing(u32),
}

impl DispatchHold {
    /// Holds until this many requests were queued; 0 is off.
    pub(crate) fn until_queued(requests: u32) -> Self {
        if requests == 0 { DispatchHold::Released } else { DispatchHold::Missing(requests) }
    }

    /// A request was queued.
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

    /// Why requests wait, as far as the hook is the reason.
    pub(crate) fn wait_reason(self) -> Option<QueueWaitReason> {
        match self {
            DispatchHold::Released => None,
            DispatchHold::Missing(missing) => Some(QueueWaitReason::Hold { missing }),
        }
    }
}
