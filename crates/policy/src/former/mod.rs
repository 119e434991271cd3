//! Stage three: where does a batch end, and shall it wait to grow?

mod dynamic;
mod positional;

pub(crate) use self::dynamic::DynamicFormer;
pub(crate) use self::positional::{PositionalFormer, Ready};
use crate::time::Time;

/// What becomes of the requests at the front of the queue, given a free lane.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Nothing waits.
    Nothing,
    /// The first `requests` go at once, with `rows` rows together.
    Close {
        /// How many requests.
        requests: usize,
        /// Their rows together.
        rows: u32,
    },
    /// The batch may grow until then; none is for ever.
    Wait {
        /// When the batch goes as it is.
        until: Option<Time>,
        /// Rows that wait.
        rows: u32,
        /// The preferred size that would go at once.
        next_preferred: u32,
    },
}

/// Whether more requests may come.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outlook {
    /// A batch may grow, so waiting can be worth it.
    Open,
    /// The model unloads, so that waiting is in vain.
    Draining,
}
