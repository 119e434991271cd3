//! A simple custom batching strategy: each request has a weight, and each batch has a weight limit.

use galatea_policy::{BatchInclusion, BatchStrategy, RequestKey};

/// The scheduler under test. It can be cloned because its strategy can.
pub(crate) type Scheduler = galatea_policy::Scheduler<WeightLimit>;

/// Custom batching by weight.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct WeightLimitBatching {
    /// The maximum total weight of the requests in a batch.
    pub limit: u64,
}

impl WeightLimitBatching {
    /// Returns the weight of a request: 1, 2 or 3.
    fn weight(request: RequestKey) -> u64 {
        1 + request.0 % 3
    }

    /// Returns the maximum number of requests in a batch, counted from the first one. The first
    /// request always executes, even above the limit; in that case its weight isn't counted because
    /// the request was refused.
    pub(crate) fn batch_len_max(self, requests: impl Iterator<Item = RequestKey>) -> usize {
        let mut weight = 0;
        let mut count = 0;
        for request in requests {
            if weight + Self::weight(request) <= self.limit {
                weight += Self::weight(request);
            } else if count > 0 {
                break;
            }
            count += 1;
        }
        count
    }

    /// Returns the same rule as a strategy for the scheduler.
    pub(crate) const fn strategy(self) -> WeightLimit {
        WeightLimit { limit: self.limit, open_batch: None }
    }
}

/// Limits the weight of successive batches.
#[derive(Clone, Debug)]
pub(crate) struct WeightLimit {
    limit: u64,
    open_batch: Option<OpenBatch>,
}

/// The open batch, used to detect calls in the wrong order.
#[derive(Clone, Debug, Default)]
struct OpenBatch {
    weight: u64,
    offered: Vec<RequestKey>,
}

impl BatchStrategy for WeightLimit {
    fn open(&mut self) {
        assert!(self.open_batch.is_none(), "a batch was opened twice");
        self.open_batch = Some(OpenBatch::default());
    }

    fn include(&mut self, request: RequestKey) -> BatchInclusion {
        let Some(OpenBatch { weight, offered }) = &mut self.open_batch else {
            panic!("{request:?} was offered to no batch");
        };
        assert!(!offered.contains(&request), "{request:?} was offered twice");
        offered.push(request);
        if *weight + WeightLimitBatching::weight(request) <= self.limit {
            *weight += WeightLimitBatching::weight(request);
            BatchInclusion::Include
        } else {
            BatchInclusion::CloseBefore
        }
    }

    fn close(&mut self) {
        let closed = self.open_batch.take();
        assert!(closed.is_some(), "a batch was closed twice");
    }
}

/// Returns true if the scheduler has an open batch in its model's strategy. Only the strategy's
/// debug output reveals this.
pub(crate) fn has_open_batch(scheduler: &Scheduler) -> bool {
    format!("{scheduler:?}").contains("open_batch: Some")
}
