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

/// The largest preferred size reached is dispatched, even immediately. Sizes 4 and 8 are preferred,
/// and the maximum is 8.
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

/// The next request would exceed the largest preferred size, so the batch before it is dispatched
/// although its own size isn't preferred.
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
    assert_eq!(render(batcher.decide(&queue, Time(2), Intake::Open)), "1 requests, 1 rows: shape");
    let index = queue.find(RequestKey(1)).unwrap();
    queue.take(index);
    assert_eq!(render(batcher.decide(&queue, Time(2), Intake::Open)), "wait for 8 or 100");
    let index = queue.find(RequestKey(0)).unwrap();
    queue.take(index);
    assert_eq!(render(batcher.decide(&queue, Time(2), Intake::Open)), "wait for 8 or 102");
}
