//! The latest of what executions of one kind took.

use std::cmp::Ordering;

use crate::tuned::{ESTABLISHED_SAMPLES, SAMPLES};

/// The latest values of one kind of execution, counted by the executions of a model. Values that
/// are old are forgotten: after `forgotten_after` executions of other kinds.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Samples<T> {
    values: [T; SAMPLES],
    /// Number of values so far; the index of the next one is its remainder.
    count: usize,
    /// The number of the model's execution that was the latest of this kind.
    latest: u64,
}

impl<T: Copy> Samples<T> {
    /// Adds the value of the execution with this number.
    pub(super) fn add(&mut self, value: T, execution: u64, forgotten_after: u64) {
        if execution - self.latest > forgotten_after {
            self.count = 0;
        }
        self.values[self.count % SAMPLES] = value;
        // The count keeps its remainder, and stays above the number of samples.
        self.count = if self.count + 1 == 2 * SAMPLES { SAMPLES } else { self.count + 1 };
        self.latest = execution;
    }

    /// Returns true if the values still count after this number of executions, and are not a few.
    pub(super) fn are_known(&self, executions: u64, forgotten_after: u64) -> bool {
        self.count >= ESTABLISHED_SAMPLES && executions - self.latest <= forgotten_after
    }

    /// The median of the latest values, however few or old; none without any.
    pub(super) fn median(&self, compare: impl Fn(&T, &T) -> Ordering) -> Option<T> {
        let kept = self.count.min(SAMPLES);
        let mut sorted = self.values;
        let sorted = &mut sorted[..kept];
        sorted.sort_unstable_by(compare);
        sorted.get(kept / 2).copied()
    }
}
