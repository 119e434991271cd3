//! The rules of dynamic batching in two forms: as checks of batches and of waiting requests
//! ([`DynamicRules`]), and as a naive batcher ([`NaiveBatcher`]), from which the oracles are built.
//! They apply to stateless models and, per instance, to sequences with the oldest strategy.
//!
//! The two share only the trait [`QueuedRequest`]: neither calls the other or reads its settings,
//! so that a mistake in one contradicts the other.

use galatea_policy::{CloseReason, DynamicBatcherSpec, RequestKey, ShapeClassId, Time};

use crate::check::{Check, ensure};
use crate::custom_batching::WeightLimitBatching;

/// The settings of dynamic batching, with defaults resolved.
#[derive(Clone, Debug)]
pub(crate) struct DynamicRules {
    pub(crate) max_rows: u64,
    /// The preferred sizes, never empty.
    pub(crate) preferred: Vec<u64>,
    pub(crate) delay_ns: u64,
    pub(crate) custom: Option<WeightLimitBatching>,
}

/// A request in service order.
pub(crate) trait QueuedRequest {
    fn key(&self) -> RequestKey;
    fn rows(&self) -> u64;
    fn shape_class(&self) -> ShapeClassId;
    /// Returns the time at which the request's delay begins.
    fn since(&self) -> Time;
}

impl<W: QueuedRequest> QueuedRequest for &W {
    fn key(&self) -> RequestKey {
        (*self).key()
    }

    fn rows(&self) -> u64 {
        (*self).rows()
    }

    fn shape_class(&self) -> ShapeClassId {
        (*self).shape_class()
    }

    fn since(&self) -> Time {
        (*self).since()
    }
}

/// The time of a decision, and the model's state.
#[derive(Copy, Clone, Debug)]
pub(crate) struct BatchContext {
    pub(crate) now: Time,
    /// True if the model is unloading, in which case there is no delay.
    pub(crate) draining: bool,
}

impl DynamicRules {
    pub(crate) fn new(max_batch_size: u32, settings: &DynamicBatcherSpec) -> Self {
        let DynamicBatcherSpec { preferred_batch_sizes, max_queue_delay_ns, .. } = settings;
        let max = max_batch_size.max(1);
        let usable = preferred_batch_sizes.iter().filter(|size| (1..=max).contains(size));
        let mut preferred: Vec<u64> = usable.map(|size| u64::from(*size)).collect();
        if preferred.is_empty() {
            preferred.push(u64::from(max));
        }
        DynamicRules {
            max_rows: u64::from(max),
            preferred,
            delay_ns: *max_queue_delay_ns,
            custom: None,
        }
    }

    fn largest_preferred(&self) -> u64 {
        self.preferred.iter().copied().fold(0, u64::max)
    }

    fn delay_ns(&self, context: BatchContext) -> u64 {
        if context.draining { 0 } else { self.delay_ns }
    }

    fn is_preferred<W: QueuedRequest>(&self, batch: &[&W]) -> bool {
        self.preferred.contains(&rows_of(batch))
    }

    /// Returns the number of requests at the front that could form one batch.
    fn batch_len_max<W: QueuedRequest>(&self, order: &[&W]) -> usize {
        let mut rows = 0;
        let mut length = 0;
        for waiting in order {
            rows += waiting.rows();
            let fits = rows <= self.max_rows && waiting.shape_class() == order[0].shape_class();
            if length > 0 && !fits {
                break;
            }
            length += 1;
        }
        match self.custom {
            Some(custom) => {
                custom.batch_len_max(order[..length].iter().map(|waiting| waiting.key()))
            }
            None => length,
        }
    }

    fn is_delay_over<W: QueuedRequest>(&self, context: BatchContext, candidate: &[&W]) -> bool {
        let waited =
            candidate.iter().map(|waiting| context.now.saturating_since(waiting.since())).max();
        let delay_ns = self.delay_ns(context);
        delay_ns != 0 && waited.unwrap_or(0) >= delay_ns
    }

    /// Checks that the first `count` requests in service order form a valid batch of the right
    /// size.
    pub(crate) fn check_batch<W: QueuedRequest>(
        &self,
        context: BatchContext,
        order: &[&W],
        count: usize,
    ) -> Check {
        let batch = &order[..count];
        let rows = rows_of(batch);
        let most = self.max_rows;
        ensure!(count == 1 || rows <= most, "{rows} rows in a batch, {most} is the maximum");
        let same_class =
            batch.iter().all(|waiting| waiting.shape_class() == batch[0].shape_class());
        ensure!(same_class, "two shape classes in a batch");
        let candidate = self.batch_len_max(order);
        ensure!(
            count <= candidate,
            "{count} requests in a batch, but custom batching closed it at {candidate}"
        );
        if self.is_delay_over(context, &order[..candidate]) {
            ensure!(
                count == candidate,
                "the delay is over, but {:?} was left behind",
                order[count].key()
            );
            return Ok(());
        }
        self.check_size(context, order, count, candidate)
    }

    /// Checks the size of a batch within the delay: either the size is preferred, or the batch
    /// can't grow.
    fn check_size<W: QueuedRequest>(
        &self,
        context: BatchContext,
        order: &[&W],
        count: usize,
        candidate: usize,
    ) -> Check {
        let rows = rows_of(&order[..count]);
        let largest = self.largest_preferred();
        ensure!(
            count == 1 || rows <= largest,
            "{rows} rows exceed {largest}, the largest preferred size"
        );
        let better = (count + 1..=candidate).find(|longer| self.is_preferred(&order[..*longer]));
        ensure!(
            better.is_none(),
            "{count} requests ran, but {better:?} reach a larger preferred size"
        );
        let next = order.get(count);
        let would_exceed = next.is_some_and(|next| rows + next.rows() > largest);
        if self.is_preferred(&order[..count]) || would_exceed {
            return Ok(());
        }
        ensure!(
            count == candidate,
            "{rows} rows are not preferred, and {:?} was left behind",
            order[count].key()
        );
        let can_not_wait = next.is_some() || rows >= largest || self.delay_ns(context) == 0;
        ensure!(can_not_wait, "{rows} rows are not preferred, may grow, and the delay is not over");
        Ok(())
    }

    /// Checks requests that wait although a lane is free: their batch can grow, and the delay isn't
    /// over.
    pub(crate) fn check_waiting<W: QueuedRequest>(
        &self,
        context: BatchContext,
        order: &[&W],
    ) -> Check {
        let can_grow = self.batch_len_max(order) == order.len();
        ensure!(can_grow, "a lane is free and a batch can't grow, but it waits");
        let delays = self.delay_ns(context) != 0;
        ensure!(delays, "a lane is free and there is no delay, but requests wait");
        let is_over = self.is_delay_over(context, order);
        ensure!(!is_over, "a lane is free and the delay is over, but requests wait");
        let is_full = rows_of(order) >= self.largest_preferred();
        ensure!(!is_full, "a lane is free and a full batch waits");
        let reached = (1..=order.len()).find(|count| self.is_preferred(&order[..*count]));
        ensure!(
            reached.is_none(),
            "a lane is free and {reached:?} requests of a preferred size wait"
        );
        Ok(())
    }

    /// Returns the time at which requests that wait for their batch to grow are dispatched as they
    /// are.
    pub(crate) fn dispatch_time(&self, oldest: Time) -> Option<Time> {
        Some(oldest.saturating_add(self.delay_ns)).filter(|time| *time != Time::MAX)
    }
}

pub(crate) fn rows_of<W: QueuedRequest>(batch: &[&W]) -> u64 {
    batch.iter().map(|waiting| waiting.rows()).sum()
}

/// A dynamic batcher that tries every size.
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

    /// Returns the number of requests at the front that are dispatched now, if any, and the reason
    /// why their batch ends.
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

    /// Returns the time at which a request that has waited since `since` is dispatched in a batch
    /// of any size.
    pub(crate) fn dispatch_time(&self, since: Time) -> Option<Time> {
        sum(since, self.delay_ns)
    }
}

/// Adds nanoseconds to the time. Returns `None` if the sum reaches the end of time.
pub(crate) fn sum(time: Time, nanoseconds: u64) -> Option<Time> {
    time.0.checked_add(nanoseconds).filter(|sum| *sum != u64::MAX).map(Time)
}
