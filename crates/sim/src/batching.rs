//! A model's own say in what shares a batch, as simple as can be: each request
//! has a weight, and a batch has a limit.

use galatea_policy::{BatchStrategy, Inclusion, RequestKey};

/// The scheduler under examination. It can be copied, because its rule can.
pub(crate) type Scheduler = galatea_policy::Scheduler<Weighing>;

/// Custom batching by weight.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct CustomBatching {
    /// What the requests of a batch may weigh together.
    pub limit: u64,
}

impl CustomBatching {
    /// What a request weighs: 1, 2 or 3.
    fn weight(request: RequestKey) -> u64 {
        1 + request.0 % 3
    }

    /// How many of these requests, from the first, a batch may have. The first
    /// always runs, even if it is too heavy; then it weighs nothing, because it
    /// was refused.
    pub(crate) fn most(self, requests: impl Iterator<Item = RequestKey>) -> usize {
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

    /// The same rule, as the scheduler wants it.
    pub(crate) const fn strategy(self) -> Weighing {
        Weighing { limit: self.limit, scales: Scales::Away }
    }
}

/// Weighs the requests of one batch after the other.
#[derive(Clone, Debug)]
pub(crate) struct Weighing {
    limit: u64,
    scales: Scales,
}

/// Insists on the order of calls.
#[derive(Clone, Debug)]
enum Scales {
    Away,
    Out { weight: u64, asked: Vec<RequestKey> },
}

impl BatchStrategy for Weighing {
    fn open(&mut self) {
        assert!(matches!(self.scales, Scales::Away), "a batch was opened twice");
        self.scales = Scales::Out { weight: 0, asked: Vec::new() };
    }

    fn include(&mut self, request: RequestKey) -> Inclusion {
        let Scales::Out { weight, asked } = &mut self.scales else {
            panic!("{request:?} was offered to no batch");
        };
        assert!(!asked.contains(&request), "{request:?} was offered twice");
        asked.push(request);
        if *weight + CustomBatching::weight(request) <= self.limit {
            *weight += CustomBatching::weight(request);
            Inclusion::Include
        } else {
            Inclusion::CloseBefore
        }
    }

    fn close(&mut self) {
        assert!(matches!(self.scales, Scales::Out { .. }), "a batch was closed twice");
        self.scales = Scales::Away;
    }
}

/// Whether the scheduler has a batch open with its model's rule, which only the
/// rule's own words say.
pub(crate) fn has_open_batch(scheduler: &Scheduler) -> bool {
    format!("{scheduler:?}").contains("scales: Out")
}
