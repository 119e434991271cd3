use std::collections::BTreeMap;

use super::*;

const MS: u64 = 1_000_000;

/// Facts about a request that reached each milestone after the given number of milliseconds.
fn facts(marks: &[(Milestone, u64)]) -> RequestFacts {
    let mut facts = RequestFacts::default();
    (facts.model, facts.version) = (String::from("m"), 1);
    for (mark, ms) in marks {
        facts.set_milestone(*mark, ms * MS);
    }
    facts
}

/// A request that was queued after 1 ms, executed for 5 ms starting at `closed`, and answered 3 ms
/// later.
fn executed(closed: u64) -> RequestFacts {
    let after = |ms: u64| closed + ms;
    facts(&[
        (Milestone::Received, 0),
        (Milestone::Arrived, 0),
        (Milestone::Queued, 1),
        (Milestone::Closed, closed),
        (Milestone::Started, closed),
        (Milestone::InputsReady, after(1)),
        (Milestone::Computed, after(4)),
        (Milestone::Ended, after(5)),
        (Milestone::Answered, after(5)),
        (Milestone::Delivered, after(5)),
        (Milestone::TakenUp, after(6)),
        (Milestone::Encoded, after(8)),
    ])
}

fn shown(facts: &RequestFacts) -> String {
    let stages = facts.stage_durations();
    let shown: Vec<String> = stages
        .iter()
        .filter(|(_, ns)| *ns > 0)
        .map(|(stage, ns)| format!("{} {}", stage.name(), ns / MS))
        .collect();
    shown.join(", ")
}

#[test]
fn stages_end_at_the_marks_that_were_passed() {
    let all = "admit 1, queue 1, input 1, compute 3, output 1, reply 1, encode 2";
    assert_eq!(shown(&executed(2)), all);
    // The model doesn't report the parts of its execution before answering.
    let hosted = [
        (Milestone::Received, 3),
        (Milestone::Arrived, 3),
        (Milestone::Queued, 3),
        (Milestone::Closed, 3),
        (Milestone::Started, 4),
        (Milestone::Answered, 10),
        (Milestone::Delivered, 11),
    ];
    assert_eq!(shown(&facts(&hosted)), "receive 3, hand_over 1, execute 6, respond 1");
    // Over gRPC, a response is encoded before its connection's thread takes it.
    let marks = [
        (Milestone::Started, 1),
        (Milestone::Answered, 2),
        (Milestone::Encoded, 5),
        (Milestone::TakenUp, 9),
    ];
    assert_eq!(shown(&facts(&marks)), "hand_over 1, execute 1, encode 3, reply 4");
    // One request is refused by its queue, the other found in the cache.
    assert_eq!(
        shown(&facts(&[(Milestone::Queued, 1), (Milestone::Delivered, 4)])),
        "admit 1, queue 3"
    );
    assert_eq!(
        shown(&facts(&[(Milestone::Arrived, 1), (Milestone::Delivered, 4)])),
        "decode 1, admit 3"
    );
}

#[test]
fn times_of_backends_stay_within_their_execution() {
    let marks = [
        (Milestone::Started, 10),
        (Milestone::InputsReady, 2),
        (Milestone::Computed, 5),
        (Milestone::Ended, 99),
        (Milestone::Answered, 20),
    ];
    let facts = facts(&marks);
    assert_eq!(shown(&facts), "hand_over 10, output 10");
    let stages: u64 = facts.stage_durations().iter().map(|(_, ns)| ns).sum();
    assert_eq!(stages, 20 * MS);
}

#[test]
fn only_the_first_time_counts() {
    let mut facts = facts(&[(Milestone::Closed, 3)]);
    facts.set_milestone(Milestone::Closed, 9 * MS);
    assert_eq!(facts.milestone_time(Milestone::Closed), Some(3 * MS));
}

#[test]
fn waits_have_places_of_their_own() {
    for (place, wait) in WaitReason::ALL.into_iter().enumerate() {
        assert_eq!(wait as usize, place);
    }
}

#[test]
fn other_values_of_the_header_ask_for_nothing() {
    for (value, asks) in [("1", true), (" 1 ", true), ("", false), ("0", false), ("true", false)] {
        assert_eq!(LatencyExplanation::is_asked(value.as_bytes()), asks, "{value}");
    }
}

/// A clock that tracks the waits of each request separately, as a reference for [`QueueWaitTracker`].
#[derive(Default)]
struct NaiveClock {
    now: u64,
    wait: Option<WaitReason>,
    waiting: BTreeMap<u64, (WaitTimes, bool)>,
}

impl NaiveClock {
    fn pass(&mut self, now: u64) {
        let (now, wait) = (now.max(self.now), self.wait.unwrap_or(WaitReason::Instance));
        for (times, is_behind) in self.waiting.values_mut() {
            let is_split = *is_behind && wait == WaitReason::Instance;
            times.add(if is_split { WaitReason::Shape } else { wait }, now - self.now);
        }
        self.now = now;
    }
}

/// Pseudo-random numbers, identical in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn the_clock_of_a_queue_agrees_with_one_for_each_request() {
    for seed in 0..2_000 {
        let mut numbers = Numbers(seed);
        let mut clock = QueueWaitTracker::new(0, WaitReason::Instance);
        let (mut naive, mut sums) = (NaiveClock::default(), QueueWaitTotals::default());
        let (mut now, mut next_key, mut all) = (0, 0, WaitTimes::default());
        for _ in 0..60 {
            now = u64::max(1, now + numbers.below(5)) - u64::from(numbers.below(8) == 0);
            naive.pass(now);
            let wait = naive.wait.unwrap_or(WaitReason::Instance);
            clock.set_wait_reason(now, wait);
            sums.add_time(now, u64::try_from(naive.waiting.len()).unwrap(), wait);
            match numbers.below(5) {
                0 | 1 => {
                    clock.arrive(now, next_key);
                    naive.waiting.insert(next_key, (WaitTimes::default(), false));
                    next_key += 1;
                }
                2 => {
                    let wait = WaitReason::ALL[usize::try_from(numbers.below(8)).unwrap()];
                    // After a split, all requests wait for the instance.
                    let wait = if wait == WaitReason::Shape { WaitReason::Instance } else { wait };
                    clock.set_wait_reason(now, wait);
                    naive.wait = Some(wait);
                }
                3 => {
                    let is_split = numbers.below(2) == 0;
                    let key = naive.waiting.keys().next().copied();
                    take(&mut clock, &mut naive, now, key, &mut all);
                    clock.close_batch(now, is_split);
                    naive.waiting.values_mut().for_each(|(_, behind)| *behind = is_split);
                    let left = u64::try_from(naive.waiting.len()).unwrap();
                    sums.close_batch(if is_split { left } else { 0 });
                }
                _ => {
                    let last = naive.waiting.keys().next_back().copied();
                    take(&mut clock, &mut naive, now, last, &mut all);
                    // Requests that leave before the others were behind the split too.
                    let behind = naive.waiting.values().filter(|(_, behind)| *behind).count();
                    sums.close_batch(u64::try_from(behind).unwrap());
                }
            }
        }
        naive.pass(now + 1);
        let keys: Vec<u64> = naive.waiting.keys().copied().collect();
        sums.add_time(
            now + 1,
            u64::try_from(keys.len()).unwrap(),
            naive.wait.unwrap_or(WaitReason::Instance),
        );
        for key in keys {
            take(&mut clock, &mut naive, now + 1, Some(key), &mut all);
        }
        assert!(clock.is_empty());
        assert_eq!(*sums.sums(), all, "seed {seed}");
    }
}

#[track_caller]
fn take(
    clock: &mut QueueWaitTracker,
    naive: &mut NaiveClock,
    now: u64,
    key: Option<u64>,
    all: &mut WaitTimes,
) {
    let Some(key) = key else { return };
    let (expected, _) = naive.waiting.remove(&key).unwrap();
    assert_eq!(clock.remove_request(now, key), Some(expected), "request {key} at {now}");
    assert_eq!(clock.remove_request(now, key), None);
    WaitReason::ALL.into_iter().for_each(|wait| all.add(wait, expected.time_of(wait)));
}
