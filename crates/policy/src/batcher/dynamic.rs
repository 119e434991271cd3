//! The dynamic batcher: it combines whole requests from the front of the queue.
//!
//! The candidate is the longest run of requests from the front of the queue that have equal shape
//! classes and at most `max_batch_size` rows in total. The following rules apply in order:
//!
//! 1. If the candidate has reached a preferred size and its oldest request hasn't waited for the
//!    full delay, the largest preferred size reached is dispatched. The candidate also counts as
//!    preferred if no preferred size was reached before and its next request would exceed the
//!    largest preferred size.
//! 2. If the next request doesn't fit by size or key, or the candidate has reached the largest
//!    preferred size, the candidate can't grow: all of it is dispatched.
//! 3. If the delay is over, the whole candidate is dispatched, even if rule 1 would have dispatched
//!    less of it.
//! 4. Otherwise the candidate waits for the rest of the delay.
//!
//! A custom batching strategy is consulted about each request that fits by size and key. It can
//! close the batch before that request.
//!
//! The candidate is kept between steps and extended while requests only join at the end of the
//! queue, so that the cost of a step depends only on the new requests.

use crate::batch::CloseReason;
use crate::batch_strategy::{BatchInclusion, BatchStrategy, NoBatchStrategy};
use crate::batcher::decision::{BatchDecision, Intake};
use crate::ids::{RequestKey, ShapeClassId};
use crate::queue::{PolicyQueue, SlabIndex};
use crate::spec::DynamicBatcherSpec;
use crate::time::Time;

#[derive(Clone, Debug)]
pub(crate) struct DynamicBatcher<S = NoBatchStrategy> {
    max_batch_size: u64,
    /// Preferred sizes: ascending, unique, non-empty and at most `max_batch_size`.
    preferred_sizes: Vec<u64>,
    /// The reason reported when a batch of a preferred size closes. If no preferred sizes are
    /// configured, the maximum batch size is the only one.
    preferred_reason: CloseReason,
    max_queue_delay_ns: u64,
    candidate: BatchCandidate,
    custom: Option<StrategyBatching<S>>,
}

/// The model's own strategy and its open batch, if any.
#[derive(Clone, Debug)]
struct StrategyBatching<S> {
    strategy: S,
    is_open: bool,
}

impl<S: BatchStrategy> StrategyBatching<S> {
    /// Opens a batch with its first request, which the strategy can't refuse.
    fn open_with(&mut self, first: RequestKey) {
        self.strategy.open();
        self.is_open = true;
        self.strategy.include(first);
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.strategy.close();
        }
    }
}

/// The requests at the front of the queue that can form one batch.
#[derive(Copy, Clone, Debug, Default)]
struct BatchCandidate {
    /// The queue revision at which the first request was added.
    revision: u64,
    last: Option<SlabIndex>,
    shape_class: ShapeClassId,
    /// All requests of the candidate.
    whole: Prefix,
    /// The part that is dispatched immediately unless the delay is over.
    preferred: Option<Prefix>,
    oldest: Time,
    state: CandidateState,
}

/// The first requests of a candidate and their total number of rows.
#[derive(Copy, Clone, Debug, Default)]
struct Prefix {
    requests: usize,
    rows: u64,
}

/// Open → Closed. States whether the candidate can still grow, and if not, why. A new candidate
/// begins when the queue order changes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum CandidateState {
    #[default]
    Open,
    Closed(CloseReason),
}

impl<S: BatchStrategy> DynamicBatcher<S> {
    pub(crate) fn new(max_batch_size: u32, spec: &DynamicBatcherSpec) -> Self {
        let max_batch_size = max_batch_size.max(1);
        let usable = |size: &u32| (1..=max_batch_size).contains(size);
        let mut preferred_sizes: Vec<u64> =
            spec.preferred_batch_sizes.iter().copied().filter(usable).map(u64::from).collect();
        preferred_sizes.sort_unstable();
        preferred_sizes.dedup();
        let preferred_reason = if preferred_sizes.is_empty() {
            preferred_sizes.push(u64::from(max_batch_size));
            CloseReason::MaxSize
        } else {
            CloseReason::Preferred
        };
        DynamicBatcher {
            max_batch_size: u64::from(max_batch_size),
            preferred_sizes,
            preferred_reason,
            max_queue_delay_ns: spec.max_queue_delay_ns,
            candidate: BatchCandidate::default(),
            custom: None,
        }
    }

    /// Adds the model's own batching strategy, if it has one.
    pub(crate) fn with_strategy(mut self, strategy: Option<S>) -> Self {
        self.custom = strategy.map(|strategy| StrategyBatching { strategy, is_open: false });
        self
    }

    /// Closes the most recently decided batch: its requests leave the queue.
    pub(crate) fn close(&mut self) {
        if let Some(custom) = &mut self.custom {
            custom.close();
        }
    }

    /// Creates a batcher that puts each request in a batch of its own.
    pub(crate) fn one_request_per_batch() -> Self {
        let mut batcher = Self::new(1, &DynamicBatcherSpec::default());
        batcher.preferred_reason = CloseReason::Unbatched;
        batcher
    }

    pub(crate) fn decide(
        &mut self,
        queue: &PolicyQueue,
        now: Time,
        intake: Intake,
    ) -> BatchDecision {
        self.extend(queue);
        let candidate = &self.candidate;
        if candidate.whole.requests == 0 {
            return BatchDecision::Empty;
        }
        let delay_ns = match intake {
            Intake::Open => self.max_queue_delay_ns,
            Intake::Closed => 0,
        };
        let delay_is_over = delay_ns != 0 && now.saturating_since(candidate.oldest) >= delay_ns;
        if let Some(preferred) = candidate.preferred
            && !delay_is_over
        {
            return preferred.close(self.reason_for_size(preferred.rows));
        }
        let reason = match candidate.state {
            CandidateState::Closed(reason) => Some(reason),
            CandidateState::Open if delay_is_over => Some(CloseReason::Delay),
            CandidateState::Open if candidate.whole.rows >= self.largest_preferred() => {
                Some(self.reason_for_size(candidate.whole.rows))
            }
            CandidateState::Open if self.max_queue_delay_ns == 0 => Some(CloseReason::InstanceIdle),
            CandidateState::Open if delay_ns == 0 => Some(CloseReason::Unloading),
            CandidateState::Open => None,
        };
        if let Some(reason) = reason {
            return candidate.whole.close(reason);
        }
        let next_preferred =
            self.preferred_sizes.iter().copied().find(|size| *size > candidate.whole.rows);
        BatchDecision::Wait {
            until: candidate.oldest.deadline_after(delay_ns),
            rows: rows_of_a_batch(candidate.whole.rows),
            next_preferred: rows_of_a_batch(
                next_preferred.expect("the candidate is below the largest preferred size"),
            ),
        }
    }

    /// Returns the reason why a batch with this many rows is dispatched immediately: either it has
    /// a preferred size, or its next request would exceed the largest one, which may be the
    /// maximum.
    fn reason_for_size(&self, rows: u64) -> CloseReason {
        let is_preferred = self.preferred_sizes.binary_search(&rows).is_ok();
        let may_exceed = self.largest_preferred() < self.max_batch_size;
        match self.preferred_reason {
            CloseReason::Preferred if rows >= self.max_batch_size => CloseReason::MaxSize,
            CloseReason::Preferred if !is_preferred && !may_exceed => CloseReason::MaxSize,
            reason => reason,
        }
    }

    fn largest_preferred(&self) -> u64 {
        *self.preferred_sizes.last().expect("never empty")
    }

    /// Adds the requests that fit, starting over if the queue order has changed.
    fn extend(&mut self, queue: &PolicyQueue) {
        if self.candidate.last.is_none() || self.candidate.revision != queue.revision() {
            self.close();
            self.candidate =
                BatchCandidate { revision: queue.revision(), ..BatchCandidate::default() };
        }
        while self.candidate.state == CandidateState::Open {
            let next = match self.candidate.last {
                None => queue.first(),
                Some(last) => queue.next_after(last),
            };
            let Some(next) = next else { return };
            self.consider(queue, next);
        }
    }

    /// Adds the request if it fits; otherwise closes the candidate before it.
    fn consider(&mut self, queue: &PolicyQueue, index: SlabIndex) {
        let waiting = queue.get(index);
        let largest_preferred = self.largest_preferred();
        let full = self.reason_for_size(self.max_batch_size);
        let candidate = &mut self.candidate;
        let rows = candidate.whole.rows + waiting.rows.0;
        if candidate.whole.requests == 0 {
            candidate.shape_class = waiting.shape_class;
            candidate.oldest = waiting.enqueued;
            if let Some(custom) = &mut self.custom {
                custom.open_with(waiting.key);
            }
        } else {
            if rows > largest_preferred && candidate.preferred.is_none() {
                candidate.preferred = Some(candidate.whole);
            }
            if rows > self.max_batch_size {
                candidate.state = CandidateState::Closed(full);
                return;
            }
            if waiting.shape_class != candidate.shape_class {
                candidate.state = CandidateState::Closed(CloseReason::Shape);
                return;
            }
            if let Some(custom) = &mut self.custom
                && custom.strategy.include(waiting.key) == BatchInclusion::CloseBefore
            {
                candidate.state = CandidateState::Closed(CloseReason::Rule);
                return;
            }
        }
        candidate.last = Some(index);
        candidate.whole = Prefix { requests: candidate.whole.requests + 1, rows };
        candidate.oldest = candidate.oldest.min(waiting.enqueued);
        if self.preferred_sizes.binary_search(&rows).is_ok() {
            candidate.preferred = Some(candidate.whole);
        }
        if rows >= self.max_batch_size {
            candidate.state = CandidateState::Closed(full);
        }
    }
}

impl Prefix {
    fn close(self, reason: CloseReason) -> BatchDecision {
        let rows = rows_of_a_batch(self.rows);
        BatchDecision::Close { requests: self.requests, rows, reason }
    }
}

/// Converts a batch's row count, which is at most the maximum or the row count of a single request.
fn rows_of_a_batch(rows: u64) -> u32 {
    u32::try_from(rows).expect("a candidate is bounded by the maximum or is one request")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{RequestInfo, RequestKey};

    /// Parses a request such as `A4@10`: shape class A, 4 rows, arrived at 10.
    fn info(index: usize, text: &str) -> (RequestInfo, Time) {
        let (what, when) = text.split_once('@').expect("key, rows, @, time");
        let info = RequestInfo {
            key: RequestKey(u64::try_from(index).unwrap()),
            batch_size: what[1..].parse().unwrap(),
            shape_class: ShapeClassId(u32::from(what.as_bytes()[0])),
            deadline: Time::MAX,
            length: 0,
            priority: 0,
            timeout_ns: 0,
            sequence: None,
        };
        (info, Time(when.parse().unwrap()))
    }

    fn render(decision: BatchDecision) -> String {
        match decision {
            BatchDecision::Empty => "nothing".to_owned(),
            BatchDecision::Close { requests, rows, reason } => {
                format!("{requests} requests, {rows} rows: {}", reason.name())
            }
            BatchDecision::Wait { until: Some(Time(until)), next_preferred, .. } => {
                format!("wait for {next_preferred} or {until}")
            }
            BatchDecision::Wait { until: None, next_preferred, .. } => {
                format!("wait for {next_preferred}")
            }
        }
    }

    struct Settings {
        max: u32,
        preferred: &'static [u32],
        delay: u64,
    }

    impl Settings {
        fn batcher(&self) -> DynamicBatcher {
            DynamicBatcher::new(
                self.max,
                &DynamicBatcherSpec {
                    preferred_batch_sizes: self.preferred.to_vec(),
                    max_queue_delay_ns: self.delay,
                    ..DynamicBatcherSpec::default()
                },
            )
        }

        /// Compares the decision on the whole queue with `expected` and with the decision on a
        /// candidate that was extended one request at a time.
        #[track_caller]
        fn check(&self, requests: &str, now: u64, expected: &str) {
            let mut queue = PolicyQueue::unlimited();
            let mut incremental = self.batcher();
            for (index, text) in requests.split_whitespace().enumerate() {
                let (info, arrival) = info(index, text);
                queue.enqueue(info, arrival).unwrap();
                incremental.decide(&queue, arrival, Intake::Open);
            }
            let decision = self.batcher().decide(&queue, Time(now), Intake::Open);
            assert_eq!(render(decision), expected, "{requests:?} at {now}");
            assert_eq!(
                incremental.decide(&queue, Time(now), Intake::Open),
                decision,
                "an extended candidate gives the same decision"
            );
        }
    }

    #[test]
    fn without_delay_all_requests_that_fit_are_dispatched() {
        let settings = Settings { max: 8, preferred: &[], delay: 0 };
        settings.check("", 0, "nothing");
        settings.check("A1@0", 0, "1 requests, 1 rows: instance_idle");
        settings.check("A1@0 A2@0 A3@0", 0, "3 requests, 6 rows: instance_idle");
        settings.check("A4@0 A4@0 A1@0", 0, "2 requests, 8 rows: max_size");
        settings.check("A4@0 A3@0 A4@0", 0, "2 requests, 7 rows: max_size");
    }

    /// The largest preferred size reached is dispatched, even immediately. Sizes 4 and 8 are
    /// preferred, and the maximum is 8.
    #[test]
    // row: DYN-04
    fn a_preferred_size_is_dispatched_when_it_is_reached() {
        let settings = Settings { max: 8, preferred: &[4, 8], delay: 100 };
        settings.check("A1@0 A1@1 A1@2", 2, "wait for 4 or 100");
        settings.check("A1@0 A1@1 A1@2 A1@3", 3, "4 requests, 4 rows: preferred");
        settings.check("A1@0 A1@1 A1@2 A1@3 A2@4", 4, "4 requests, 4 rows: preferred");
        settings.check("A2@0 A2@1 A2@2 A2@3 A1@4", 4, "4 requests, 8 rows: max_size");
        settings.check("A3@0 A2@1", 1, "wait for 8 or 100");
    }

    /// All waiting requests are dispatched after the delay, although 4 is preferred.
    #[test]
    // row: DYN-05
    fn after_the_delay_requests_up_to_the_maximum_are_dispatched() {
        let settings = Settings { max: 8, preferred: &[4, 8], delay: 100 };
        settings.check("A1@0 A1@1 A1@2", 99, "wait for 4 or 100");
        settings.check("A1@0 A1@1 A1@2", 100, "3 requests, 3 rows: delay");
        settings.check("A1@0 A3@1 A2@2", 99, "2 requests, 4 rows: preferred");
        settings.check("A1@0 A3@1 A2@2", 100, "3 requests, 6 rows: delay");
        settings.check("A4@50 A1@51", 149, "1 requests, 4 rows: preferred");
        settings.check("A4@50 A1@51", 150, "2 requests, 5 rows: delay");
        settings.check("A3@0 A4@1 A2@2", 100, "2 requests, 7 rows: max_size");
    }

    #[test]
    fn no_preferred_size_means_the_maximum() {
        let settings = Settings { max: 4, preferred: &[], delay: 100 };
        settings.check("A1@0 A2@0", 50, "wait for 4 or 100");
        settings.check("A1@0 A2@0 A1@50", 50, "3 requests, 4 rows: max_size");
        // 0 and sizes above the maximum can't be reached.
        Settings { max: 4, preferred: &[0, 5], delay: 100 }.check(
            "A2@0 A2@0",
            0,
            "2 requests, 4 rows: max_size",
        );
    }

    #[test]
    fn a_batch_that_cannot_grow_does_not_wait() {
        let settings = Settings { max: 8, preferred: &[8], delay: 100 };
        settings.check("A3@0 A3@0 A3@0", 0, "2 requests, 6 rows: max_size");
        settings.check("A1@0 A1@0 B1@0 A1@0", 0, "2 requests, 2 rows: shape");
        settings.check("A1@0 B1@0", 0, "1 requests, 1 rows: shape");
    }

    #[test]
    fn a_different_key_closes_the_batch_at_the_preferred_size() {
        let settings = Settings { max: 8, preferred: &[2], delay: 100 };
        settings.check("A1@0 A1@0 A1@0 B1@0", 0, "2 requests, 2 rows: preferred");
        settings.check("A1@0 B1@0 B1@0", 0, "1 requests, 1 rows: shape");
    }

    /// The next request would exceed the largest preferred size, so the batch before it is
    /// dispatched although its own size isn't preferred.
    #[test]
    fn a_request_that_exceeds_the_largest_preferred_size_closes_the_batch() {
        let settings = Settings { max: 8, preferred: &[4], delay: 100 };
        settings.check("A3@0", 0, "wait for 4 or 100");
        settings.check("A3@0 A2@0", 0, "1 requests, 3 rows: preferred");
        settings.check("A3@0 A2@0", 100, "2 requests, 5 rows: delay");
        settings.check("A6@0", 0, "1 requests, 6 rows: preferred");
    }

    #[test]
    fn models_that_do_not_batch_take_one_request_at_a_time() {
        for max in [0, 1] {
            let settings = Settings { max, preferred: &[], delay: 100 };
            settings.check("A1@0 A1@0", 0, "1 requests, 1 rows: max_size");
            settings.check("A0@0 A0@0", 0, "1 requests, 1 rows: max_size");
        }
    }

    #[test]
    fn a_request_above_the_maximum_is_dispatched_alone() {
        let settings = Settings { max: 4, preferred: &[2], delay: 100 };
        settings.check("A9@0", 0, "1 requests, 9 rows: max_size");
        settings.check("A9@0 A1@0", 100, "1 requests, 9 rows: max_size");
        settings.check("A4294967295@0 A4294967295@0", 0, "1 requests, 4294967295 rows: max_size");
    }

    #[test]
    fn a_delay_beyond_the_end_of_time_waits_for_the_size_alone() {
        Settings { max: 4, preferred: &[], delay: u64::MAX }.check("A1@3", 5, "wait for 4");
    }

    #[test]
    fn an_unloading_model_does_not_wait() {
        let mut queue = PolicyQueue::unlimited();
        let mut batcher = Settings { max: 8, preferred: &[4], delay: 100 }.batcher();
        queue.enqueue(info(1, "A1@0").0, Time(0)).unwrap();
        assert_eq!(render(batcher.decide(&queue, Time(0), Intake::Open)), "wait for 4 or 100");
        assert_eq!(
            render(batcher.decide(&queue, Time(0), Intake::Closed)),
            "1 requests, 1 rows: unloading"
        );
    }

    #[test]
    fn a_new_candidate_begins_when_a_request_leaves() {
        let mut queue = PolicyQueue::unlimited();
        let mut batcher = Settings { max: 8, preferred: &[], delay: 100 }.batcher();
        for (index, text) in ["A1@0", "B1@1", "A2@2"].into_iter().enumerate() {
            let (info, arrival) = info(index, text);
            queue.enqueue(info, arrival).unwrap();
        }
        assert_eq!(
            render(batcher.decide(&queue, Time(2), Intake::Open)),
            "1 requests, 1 rows: shape"
        );
        let index = queue.find(RequestKey(1)).unwrap();
        queue.take(index);
        assert_eq!(render(batcher.decide(&queue, Time(2), Intake::Open)), "wait for 8 or 100");
        let index = queue.find(RequestKey(0)).unwrap();
        queue.take(index);
        assert_eq!(render(batcher.decide(&queue, Time(2), Intake::Open)), "wait for 8 or 102");
    }
}
