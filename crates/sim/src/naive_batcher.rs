//! A naive dynamic batcher that tries every size. It shares only the trait `QueuedRequest` with
//! `dynamic_rules`.

use galatea_policy::{CloseReason, DynamicBatcherSpec, Time};

use crate::custom_batching::WeightLimitBatching;
use crate::dynamic_rules::QueuedRequest;

#[derive(Clone, Debug)]
pub(crate) struct NaiveBatcher {
    max: u64,
    preferred: Vec<u64>,
    /// True if the configuration specifies preferred sizes.
    prefers: bool,
    delay_ns: u64,
    custom: Option<WeightLimitBatching>,
}

impl NaiveBatcher {
    pub(crate) fn new(
        max_batch_size: u32,
        settings: &DynamicBatcherSpec,
        custom: Option<WeightLimitBatching>,
    ) -> Self {
        let DynamicBatcherSpec { preferred_batch_sizes, max_queue_delay_ns, .. } = settings;
        let max = u64::from(max_batch_size.max(1));
        let mut preferred: Vec<u64> =
            preferred_batch_sizes.iter().map(|size| u64::from(*size)).collect();
        preferred.retain(|size| *size > 0 && *size <= max);
        let prefers = !preferred.is_empty();
        if !prefers {
            preferred = vec![max];
        }
        NaiveBatcher { max, preferred, prefers, delay_ns: *max_queue_delay_ns, custom }
    }

    /// The number of requests at the front that are dispatched now, if any, and the reason why
    /// their batch ends.
    pub(crate) fn batch<W: QueuedRequest>(
        &self,
        pending: &[W],
        now: Time,
        draining: bool,
    ) -> Option<(usize, CloseReason)> {
        let first = pending.first()?;
        let rows = |count: usize| pending[..count].iter().map(QueuedRequest::rows).sum::<u64>();
        let fits = |count: &usize| {
            let batch = &pending[..*count];
            let same_class = batch.iter().all(|one| one.shape_class() == first.shape_class());
            let keys = batch.iter().map(QueuedRequest::key);
            let accepted = self.custom.is_none_or(|custom| custom.batch_len_max(keys) == *count);
            *count == 1 || (same_class && rows(*count) <= self.max && accepted)
        };
        let len_max = (1..=pending.len()).take_while(fits).last().expect("one always fits");
        let is_preferred = |count: &usize| self.preferred.iter().any(|size| *size == rows(*count));
        let largest = *self.preferred.iter().max().expect("never empty");
        let exceeds_largest_with_next =
            |count: &usize| *count < pending.len() && rows(count + 1) > largest;
        let at_once = (1..=len_max)
            .rfind(is_preferred)
            .or_else(|| (1..=len_max).find(exceeds_largest_with_next));

        let oldest =
            pending[..len_max].iter().map(QueuedRequest::since).min().expect("at least one");
        let delay = if draining { 0 } else { self.delay_ns };
        let waited_enough = delay != 0 && now.0 - oldest.0 >= delay;
        let size_reason = |rows: u64| {
            let has_size = self.preferred.contains(&rows) || largest < self.max;
            match self.prefers && rows < self.max && has_size {
                true => CloseReason::Preferred,
                false => CloseReason::MaxSize,
            }
        };
        if let Some(count) = at_once.filter(|_| !waited_enough) {
            return Some((count, size_reason(rows(count))));
        }
        let next = pending.get(len_max);
        let reason = match next {
            _ if rows(len_max) >= self.max => CloseReason::MaxSize,
            Some(next) if rows(len_max) + next.rows() > self.max => CloseReason::MaxSize,
            Some(next) if next.shape_class() != first.shape_class() => CloseReason::Shape,
            Some(_) => CloseReason::Rule,
            None if waited_enough => CloseReason::Delay,
            None if rows(len_max) >= largest => size_reason(rows(len_max)),
            None if self.delay_ns == 0 => CloseReason::InstanceIdle,
            None if draining => CloseReason::Unloading,
            None => return None,
        };
        Some((len_max, reason))
    }

    /// The time at which a request that has waited since `since` is dispatched in a batch of any
    /// size.
    pub(crate) fn dispatch_time(&self, since: Time) -> Option<Time> {
        sum(since, self.delay_ns)
    }
}

/// Adds nanoseconds to the time. Returns `None` if the sum reaches the end of time.
pub(crate) fn sum(time: Time, nanoseconds: u64) -> Option<Time> {
    time.0.checked_add(nanoseconds).filter(|sum| *sum != u64::MAX).map(Time)
}
