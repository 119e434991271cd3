//! A simple batching strategy of a model: each request has a weight, and a batch has a
//! limit.

use galatea_policy::{BatchStrategy, Inclusion, RequestKey};

/// The scheduler under test. It can be cloned because its strategy can.
pub(crate) type Scheduler = galatea_policy::Scheduler<WeightLimit>;

/// Custom batching by weight.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct CustomBatching {
    /// Maximum of the sum of the requests' weights in a batch.
    pub limit: u64,
}

impl CustomBatching {
    /// The weight of a request: 1, 2 or 3.
    fn weight(request: RequestKey) -> u64 {
        1 + request.0 % 3
    }

    /// The maximum of requests from the first that a batch may have. The first always
    /// executes, even above the limit; its weight is not counted then, because it was
    /// refused.
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

    /// The same rule for the scheduler.
    pub(crate) const fn strategy(self) -> WeightLimit {
        WeightLimit { limit: self.limit, open_batch: None }
    }
}

/// Limits the weight of one batch after the other.
#[derive(Clone, Debug)]
pub(crate) struct WeightLimit {
    limit: u64,
    open_batch: Option<OpenBatch>,
}

/// The batch that is open: it detects calls in a wrong order.
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

    fn include(&mut self, request: RequestKey) -> Inclusion {
        let Some(OpenBatch { weight, offered }) = &mut self.open_batch else {
            panic!("{request:?} was offered to no batch");
        };
        assert!(!offered.contains(&request), "{request:?} was offered twice");
        offered.push(request);
        if *weight + CustomBatching::weight(request) <= self.limit {
            *weight += CustomBatching::weight(request);
            Inclusion::Include
        } else {
            Inclusion::CloseBefore
        }
    }

    fn close(&mut self) {
        let closed = self.open_batch.take();
        assert!(closed.is_some(), "a batch was closed twice");
    }
}

/// Returns true if the scheduler has a batch open at its model's strategy. Only the debug text of
/// the strategy tells.
pub(crate) fn has_open_batch(scheduler: &Scheduler) -> bool {
    format!("{scheduler:?}").contains("open_batch: Some")
}
