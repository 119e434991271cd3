//! The rules of dynamic batching, as checks of batches and of waiting requests. They apply to
//! stateless models and, per instance, to sequences with the oldest strategy.

use galatea_policy::{DynamicBatcherSpec, RequestKey, ShapeClassId, Time};

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
    /// The time at which the request's delay begins.
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

    /// The number of requests at the front that could form one batch.
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

    /// The time at which requests that wait for their batch to grow are dispatched as they are.
    pub(crate) fn dispatch_time(&self, oldest: Time) -> Option<Time> {
        Some(oldest.saturating_add(self.delay_ns)).filter(|time| *time != Time::MAX)
    }
}

pub(crate) fn rows_of<W: QueuedRequest>(batch: &[&W]) -> u64 {
    batch.iter().map(|waiting| waiting.rows()).sum()
}
