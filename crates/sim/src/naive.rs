//! The dynamic rules as naively as can be: try every size. Shares no code with
//! the checks of `forming` beside the way to look at a request.

use galatea_policy::Time;

use crate::batching::CustomBatching;
use crate::forming::Waiting;

#[derive(Clone, Debug)]
pub(crate) struct NaiveFormer {
    max: u64,
    preferred: Vec<u64>,
    delay_ns: u64,
    custom: Option<CustomBatching>,
}

impl NaiveFormer {
    pub(crate) fn new(
        max_batch_size: u32,
        preferred_batch_sizes: &[u32],
        delay_ns: u64,
        custom: Option<CustomBatching>,
    ) -> Self {
        let max = u64::from(max_batch_size.max(1));
        let mut preferred: Vec<u64> =
            preferred_batch_sizes.iter().map(|size| u64::from(*size)).collect();
        preferred.retain(|size| *size > 0 && *size <= max);
        if preferred.is_empty() {
            preferred = vec![max];
        }
        NaiveFormer { max, preferred, delay_ns, custom }
    }

    /// How many requests from the front go now, if any do.
    pub(crate) fn batch<W: Waiting>(
        &self,
        pending: &[W],
        now: Time,
        draining: bool,
    ) -> Option<usize> {
        let first = pending.first()?;
        let rows = |count: usize| pending[..count].iter().map(Waiting::rows).sum::<u64>();
        let fits = |count: &usize| {
            let batch = &pending[..*count];
            let same_key = batch.iter().all(|one| one.batch_key() == first.batch_key());
            let keys = batch.iter().map(Waiting::key);
            let accepted = self.custom.is_none_or(|custom| custom.most(keys) == *count);
            *count == 1 || (same_key && rows(*count) <= self.max && accepted)
        };
        let most = (1..=pending.len()).take_while(fits).last().expect("one always fits");
        let is_preferred = |count: &usize| self.preferred.iter().any(|size| *size == rows(*count));
        let largest = *self.preferred.iter().max().expect("never empty");
        let before_the_largest =
            |count: &usize| *count < pending.len() && rows(count + 1) > largest;
        let at_once =
            (1..=most).rfind(is_preferred).or_else(|| (1..=most).find(before_the_largest));

        let oldest = pending[..most].iter().map(Waiting::since).min().expect("at least one");
        let delay = if draining { 0 } else { self.delay_ns };
        let waited_enough = delay != 0 && now.0 - oldest.0 >= delay;
        match at_once {
            Some(count) if !waited_enough => Some(count),
            _ if waited_enough || delay == 0 => Some(most),
            _ if most < pending.len() || rows(most) >= largest => Some(most),
            _ => None,
        }
    }

    /// When a request that waits since then goes however few there are.
    pub(crate) fn goes_at(&self, since: Time) -> Option<Time> {
        sum(since, self.delay_ns)
    }
}

/// The time some nanoseconds later, unless that is the end of time or beyond.
pub(crate) fn sum(time: Time, nanoseconds: u64) -> Option<Time> {
    time.0.checked_add(nanoseconds).filter(|sum| *sum != u64::MAX).map(Time)
}
