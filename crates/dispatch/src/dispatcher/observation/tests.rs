//! Tests that show views of a few events as text. Times are in microseconds.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_explain::{
    DetailLevel, LatencyExplanation, LatencyExplanationText, QueueSnapshot, RequestFacts,
    WaitReason, WaitTimes,
};
use galatea_infer::InferenceRequest;
use galatea_policy::{
    BatchEntry, CloseReason, FailReason, InstanceId, RequestInfo, RequestKey, ShapeClassId, Time,
};

use super::*;

/// A writer that is never used, because these tests read facts.
fn unwritten(_: &RequestFacts, _: DetailLevel) -> LatencyExplanationText {
    unreachable!("no text is asked for")
}

/// Two requests share a batch after a third one; a fourth is not executed.
const MOMENTS: &str = "
    0 queue 1
    0 step 1 batch_delay
    20 queue 2
    20 step 2 batch_delay
    50 close 1,2 shape left 1
    50 step 1 instance
    60 queue 3
    60 step 2 instance
    90 free
    90 close 3 max_size left 1
    90 step 1 instance
    100 fail 4
    100 step 0 instance
    5000 free";

/// Views of one instance's requests.
struct Watched {
    epoch: Instant,
    views: Views,
    explanations: BTreeMap<u64, Arc<LatencyExplanation>>,
    queued: BTreeMap<u64, Instant>,
}

fn number(word: &str) -> u64 {
    word.parse().unwrap()
}

fn wait_named(name: &str) -> WaitReason {
    WaitReason::ALL.into_iter().find(|wait| wait.name() == name).unwrap()
}

fn texts(waits: &WaitTimes) -> String {
    let waited = WaitReason::ALL.into_iter().filter(|wait| waits.time_of(*wait) > 0);
    waited.map(|wait| format!(" {} {}", wait.name(), waits.time_of(wait) / 1_000)).collect()
}

impl Watched {
    fn new() -> Self {
        let epoch = Instant::now();
        let mut views = Views::new(Batching::Arrivals);
        views.get_or_begin(|| ExplainedRequests::new(epoch, Time(0), Batching::Arrivals));
        views.get_or_begin(|| Timeline::new(epoch)).set_instances([InstanceId(0)].into_iter());
        views.get_or_begin(|| Recorder::new(Time(0), Arc::new([])));
        Self { epoch, views, explanations: BTreeMap::new(), queued: BTreeMap::new() }
    }

    fn after(moments: &str) -> Self {
        let mut watched = Self::new();
        moments.lines().filter(|line| !line.trim().is_empty()).for_each(|line| watched.apply(line));
        watched
    }

    fn apply(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let now = Time(number(words[0]) * 1_000);
        match words[1..] {
            ["queue", key] => self.queue(now, number(key)),
            ["step", count, wait] => {
                let wait = wait_named(wait);
                let waiting = WaitingRequests { count: number(count), wait_of: &|_| wait };
                self.views.observe(now, &Observation::Stepped(waiting));
            }
            ["close", keys, reason, "left", left] => {
                let keys: Vec<u64> = keys.split(',').map(number).collect();
                let entries: Vec<_> =
                    keys.iter().map(|key| BatchEntry::Request(RequestKey(*key))).collect();
                let named = |known: &CloseReason| known.name() == reason;
                let closing = ClosingBatch {
                    instance: InstanceId(0),
                    entries: &entries,
                    rows: u32::try_from(entries.len()).unwrap(),
                    reason: CloseReason::ALL.into_iter().find(named).unwrap(),
                    left: number(left),
                    is_first: true,
                    oldest: keys.iter().map(|key| self.queued[key]).min(),
                };
                self.views.observe(now, &Observation::Closed(closing));
            }
            ["fail", key] => {
                let failed = Observation::Failed(RequestKey(number(key)), FailReason::Cancelled);
                self.views.observe(now, &failed);
            }
            ["free"] => self.views.observe(now, &Observation::Freed(InstanceId(0))),
            ["drop"] => self.views.observe(now, &Observation::Dropped),
            _ => panic!("{line}"),
        }
    }

    fn queue(&mut self, now: Time, key: u64) {
        let at = self.epoch + Duration::from_nanos(now.0);
        let explanation = LatencyExplanation::begin(DetailLevel::default(), at, unwritten);
        // The dispatcher does the same.
        self.views.get_or_begin(|| ExplainedRequests::new(self.epoch, now, Batching::Arrivals));
        let info = RequestInfo {
            key: RequestKey(key),
            batch_size: 1,
            shape_class: ShapeClassId(0),
            priority: 0,
            deadline: Time::MAX,
            length: 0,
            timeout_ns: 0,
            sequence: None,
        };
        let queued = QueuedRequest {
            info: &info,
            content: &InferenceRequest::default(),
            explained: Some((explanation.clone(), QueueSnapshot::default())),
            end: None,
        };
        self.views.observe(now, &Observation::Queued(queued));
        self.explanations.insert(key, explanation);
        self.queued.insert(key, at);
    }

    fn counts(&self) -> String {
        let counts = self.views.counts();
        let closed = counts.closed_batches().into_iter().zip(counts.closed_requests());
        let closed = closed.filter(|((_, batches), _)| *batches > 0);
        let closed = closed.map(|((name, batches), (_, of))| format!("{name} {batches} of {of}"));
        let failed = counts.unexecuted().into_iter().filter(|(_, count)| *count > 0);
        let failed = failed.map(|(name, count)| format!("{name} {count}"));
        closed.chain(failed).collect::<Vec<_>>().join("\n")
    }

    fn waits(&self, now: u64) -> String {
        texts(&self.views.waits(Time(now * 1_000)).unwrap())
    }

    fn explained(&self) -> String {
        let mut text = String::new();
        for (key, explanation) in &self.explanations {
            explanation.update(|facts| {
                let closed = facts.batch.map_or("-", |batch| batch.closed);
                let _ = writeln!(text, "{key} {closed}{}", texts(&facts.waits));
            });
        }
        text
    }

    fn timeline(&mut self, now: u64) -> String {
        let names = BTreeMap::from([(InstanceId(0), String::from("m"))]);
        let timeline = self.views.get::<Timeline>().unwrap();
        let mut text = String::new();
        for instance in timeline.take(self.epoch, Time(now * 1_000), &names) {
            for one in instance.ended.iter().chain(&instance.current) {
                let (begin, end) = (one.begin.as_micros(), one.end.as_micros());
                let (count, rows, waited) = (one.count, one.batch_size, one.waited.as_micros());
                let _ = writeln!(text, "{begin}..{end} {count} of {rows} waited {waited}");
            }
        }
        text
    }

    fn recorded(&mut self) -> String {
        let names = BTreeMap::from([(InstanceId(0), String::from("m"))]);
        let recorder = self.views.get::<Recorder>().unwrap();
        TakenTraffic::new(recorder.take(), names).to_lines()
    }
}

#[track_caller]
fn check(got: &str, expected: &str) {
    let lines = |text: &str| {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(lines(got), lines(expected));
}

#[test]
fn batches_and_failures_are_counted_by_reason() {
    check(&Watched::after(MOMENTS).counts(), "max_size 1 of 1\nshape 1 of 2\ncancelled 1");
}

#[test]
fn each_request_that_waits_adds_its_time() {
    let watched = Watched::after(MOMENTS);
    // 20 alone and 30 for two; then one behind the shape for 40 and 10, and one for an instance.
    check(&watched.waits(5_000), "instance 40 shape 40 batch_delay 80");
    check(&Watched::after("0 queue 1\n 0 step 1 batch_delay").waits(7), "batch_delay 7");
    check(&Watched::after("0 queue 1\n 0 step 1 batch_delay\n 5 drop").waits(7), "batch_delay 5");
}

#[test]
fn explained_requests_know_their_waits_and_their_batch() {
    check(
        &Watched::after(MOMENTS).explained(),
        "1 shape batch_delay 50
         2 shape batch_delay 30
         3 max_size instance 30",
    );
}

#[test]
fn a_view_without_a_purpose_ends() {
    let mut watched = Watched::after("0 queue 1");
    let has_explained = |views: &mut Views| views.get::<ExplainedRequests>().is_some();
    assert!(has_explained(&mut watched.views));
    watched.apply("5 drop");
    assert!(!has_explained(&mut watched.views) && watched.views.is_watched());
    assert!(
        watched.views.end_view::<Timeline>().is_some()
            && watched.views.end_view::<Recorder>().is_some()
    );
    assert!(watched.views.end_view::<Timeline>().is_none());
    assert!(!watched.views.is_watched());
}

#[test]
fn the_timeline_joins_short_executions() {
    let mut watched = Watched::after(MOMENTS);
    check(&watched.timeline(5_000), "50..90 1 of 2 waited 50\n90..5000 1 of 1 waited 30");
    let mut watched = Watched::after("0 queue 1\n 10 close 1 delay left 0");
    check(&watched.timeline(15), "10..15 1 of 1 waited 10");
}

#[test]
fn requests_and_executions_are_recorded() {
    let mut watched = Watched::after(MOMENTS);
    check(
        &watched.recorded(),
        r#"{"at_ns":0,"rows":1,"status":"executed","queue_ns":50000,"compute_ns":40000,"batch":2,"close":"shape","instance":"m","execution":1}
           {"at_ns":20000,"rows":1,"status":"executed","queue_ns":30000,"compute_ns":40000,"batch":2,"close":"shape","instance":"m","execution":1}
           {"at_ns":60000,"rows":1,"status":"executed","queue_ns":30000,"compute_ns":4910000,"batch":1,"close":"max_size","instance":"m","execution":2}
           {"execution":1,"at_ns":50000,"duration_ns":40000,"rows":2,"requests":2,"length":0,"busy":1,"close":"shape","instance":"m"}
           {"execution":2,"at_ns":90000,"duration_ns":4910000,"rows":1,"requests":1,"length":0,"busy":1,"close":"max_size","instance":"m"}"#,
    );
    let mut watched = Watched::after("0 queue 1\n 7 fail 1");
    check(&watched.recorded(), r#"{"at_ns":0,"rows":1,"status":"cancelled","queue_ns":7000}"#);
}
