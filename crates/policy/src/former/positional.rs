//! The positional former: a slot of the instance is a row of the batch.
//!
//! A batch covers the rows from 0 to that of the highest ready slot; the rows of
//! slots that have nothing to run are padding. Slots can be ready whose requests
//! don't fit together. The longest waiting request says what runs now, so that
//! each gets its turn however often the slots below it are ready; the others'
//! rows are padding too.

use std::collections::{BTreeMap, BTreeSet};

use crate::former::{Outlook, Verdict};
use crate::ids::BatchKey;
use crate::time::Time;

/// Forms the batches of one instance. `R` is whatever stands for a request.
#[derive(Clone, Debug)]
pub(crate) struct PositionalFormer<R> {
    max_queue_delay_ns: u64,
    minimum_ready_slots: u32,
    ready: BTreeMap<u32, Ready<R>>,
    /// The ready slots, the longest waiting first.
    by_age: BTreeSet<(Time, u32)>,
}

/// What a slot has to run.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Ready<R> {
    pub(crate) request: R,
    pub(crate) waits_since: Time,
    pub(crate) batch_key: BatchKey,
}

impl<R: Copy> PositionalFormer<R> {
    pub(crate) fn new(max_queue_delay_ns: u64, minimum_ready_slots: u32) -> Self {
        PositionalFormer {
            max_queue_delay_ns,
            minimum_ready_slots,
            ready: BTreeMap::new(),
            by_age: BTreeSet::new(),
        }
    }

    /// The slot has something to run.
    pub(crate) fn insert(&mut self, slot: u32, ready: Ready<R>) {
        self.by_age.insert((ready.waits_since, slot));
        let previous = self.ready.insert(slot, ready);
        assert!(previous.is_none(), "slot {slot} is ready already");
    }

    /// The slot has nothing to run any more.
    pub(crate) fn remove(&mut self, slot: u32) {
        let ready = self.ready.remove(&slot).expect("the slot is ready");
        self.by_age.remove(&(ready.waits_since, slot));
    }

    /// Whether a batch goes now.
    pub(crate) fn judge(&self, now: Time, outlook: Outlook) -> Verdict {
        let Some((oldest, _)) = self.by_age.first() else { return Verdict::Nothing };
        let requests = self.ready.len();
        let rows = u32::try_from(requests).expect("slots are numbered by u32");
        let is_enough = rows >= self.minimum_ready_slots || self.max_queue_delay_ns == 0;
        let is_over = now.saturating_since(*oldest) >= self.max_queue_delay_ns;
        if is_enough || is_over || outlook == Outlook::Draining {
            return Verdict::Close { requests, rows };
        }
        Verdict::Wait {
            until: oldest.deadline_after(self.max_queue_delay_ns),
            rows,
            next_preferred: self.minimum_ready_slots,
        }
    }

    /// Takes a batch out: what runs in each row from 0 on.
    pub(crate) fn take(&mut self) -> Vec<Option<R>> {
        let (_, oldest) = self.by_age.first().expect("a slot is ready");
        let batch_key = self.ready[oldest].batch_key;
        let (highest, _) = self.ready.last_key_value().expect("a slot is ready");
        let rows = *highest as usize + 1;
        let mut batch = vec![None; rows];
        self.ready.retain(|slot, ready| {
            let runs = ready.batch_key == batch_key;
            if runs {
                batch[*slot as usize] = Some(ready.request);
                self.by_age.remove(&(ready.waits_since, *slot));
            }
            !runs
        });
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn former(delay: u64, minimum: u32, ready: &[(u32, u64, u32)]) -> PositionalFormer<u32> {
        let mut former = PositionalFormer::new(delay, minimum);
        for &(slot, waits_since, batch_key) in ready {
            let waits_since = Time(waits_since);
            let batch_key = BatchKey(batch_key);
            former.insert(slot, Ready { request: slot + 100, waits_since, batch_key });
        }
        former
    }

    #[test]
    fn a_batch_covers_the_rows_up_to_the_highest_ready_slot() {
        let mut former = former(0, 0, &[(1, 5, 0), (3, 4, 0)]);
        assert_eq!(former.judge(Time(9), Outlook::Open), Verdict::Close { requests: 2, rows: 2 });
        assert_eq!(former.take(), [None, Some(101), None, Some(103)]);
        assert_eq!(former.judge(Time(9), Outlook::Open), Verdict::Nothing);
    }

    #[test]
    fn the_longest_waiting_request_says_what_fits() {
        let mut former = former(0, 0, &[(0, 5, 1), (1, 4, 2), (2, 6, 1), (3, 7, 2)]);
        assert_eq!(former.take(), [None, Some(101), None, Some(103)]);
        assert_eq!(former.take(), [Some(100), None, Some(102)]);
    }

    #[test]
    fn a_batch_waits_for_ready_slots_until_the_delay_is_over() {
        let verdict = |minimum, now, outlook| {
            former(10, minimum, &[(0, 5, 0), (2, 7, 0)]).judge(Time(now), outlook)
        };
        let close = Verdict::Close { requests: 2, rows: 2 };
        let wait = Verdict::Wait { until: Some(Time(15)), rows: 2, next_preferred: 3 };
        assert_eq!(verdict(3, 14, Outlook::Open), wait);
        assert_eq!(verdict(3, 15, Outlook::Open), close);
        assert_eq!(verdict(3, 14, Outlook::Draining), close);
        assert_eq!(verdict(2, 7, Outlook::Open), close);
        assert_eq!(verdict(0, 7, Outlook::Open), close);
    }
}
