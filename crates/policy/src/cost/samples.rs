//! The latest measurements of one kind of execution.

use std::cmp::Ordering;

use crate::tuned::{ESTABLISHED_SAMPLES, SAMPLES};

/// The latest values for one kind of execution, aged by the model's execution count. Values are
/// forgotten after `forgotten_after` executions of other kinds.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Samples<T> {
    values: [T; SAMPLES],
    /// The number of values so far. Modulo [`SAMPLES`], it is the index of the next value.
    count: usize,
    /// The execution number of the latest value.
    latest: u64,
}

impl<T: Copy> Samples<T> {
    /// Adds the value of the execution with this number.
    pub(super) fn add(&mut self, value: T, execution: u64, forgotten_after: u64) {
        if execution - self.latest > forgotten_after {
            self.count = 0;
        }
        self.values[self.count % SAMPLES] = value;
        // Wrapping preserves the remainder and keeps the count above the number of samples.
        self.count = if self.count + 1 == 2 * SAMPLES { SAMPLES } else { self.count + 1 };
        self.latest = execution;
    }

    /// Returns true if there are enough values and they are still recent at this execution number.
    pub(super) fn are_known(&self, executions: u64, forgotten_after: u64) -> bool {
        self.count >= ESTABLISHED_SAMPLES && executions - self.latest <= forgotten_after
    }

    /// Returns the median of the latest values, however few or old; `None` without any.
    pub(super) fn median(&self, compare: impl Fn(&T, &T) -> Ordering) -> Option<T> {
        let kept = self.count.min(SAMPLES);
        let mut sorted = self.values;
        let sorted = &mut sorted[..kept];
        sorted.sort_unstable_by(compare);
        sorted.get(kept / 2).copied()
    }
}
