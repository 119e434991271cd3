//! Runs a timeline, which consists of lines of the form `TIME EVENT -> DECISIONS`.
//!
//! | event | meaning |
//! |---|---|
//! | `add 0` | an instance is added |
//! | `send A.1^ B.2$` | requests arrive: their sequence, a number, `^` for START, `$` for END |
//! | `done A.1`, `again A.1` | the backend releases a request, or reschedules it |
//! | `free 0` | the instance is free |
//! | `finish 0` | all of the instance's requests are done, then it is free |
//! | `tick` | time passes |
//!
//! Decisions are batches, `0: A.1^ - B.2$` with `-` for padding, and `closed A`, `ended A`
//! and `fail A.1 Reason`.

use std::collections::BTreeMap;

use galatea_policy::{
    BatchEntry, InstanceId, RequestInfo, RequestKey, RequestRelease, SchedulerEvent,
    SchedulingMode, SchedulingSpec, SequenceKey, SequencePosition, ShapeClassId, Time,
};
use galatea_sim::{Harness, OracleMode, SchedulerDecision, SchedulerSetup};

pub(crate) struct Player {
    harness: Harness,
    is_iterative: bool,
    /// Requests by key, without their flags.
    labels: Vec<String>,
    /// Sequences by key.
    sequences: Vec<String>,
    open: BTreeMap<String, SequenceKey>,
    /// The requests that each instance is executing.
    running: BTreeMap<u32, Vec<RequestKey>>,
}

impl Player {
    pub(crate) fn new(spec: SchedulingSpec) -> Self {
        let SchedulingMode::Sequence(settings) = &spec.mode else { panic!("a sequence batcher") };
        Player {
            is_iterative: settings.iterative,
            harness: Harness::new(&SchedulerSetup::from(spec), OracleMode::Oracle),
            labels: Vec::new(),
            sequences: Vec::new(),
            open: BTreeMap::new(),
            running: BTreeMap::new(),
        }
    }

    /// Runs the lines and compares the decisions.
    #[track_caller]
    pub(crate) fn play(&mut self, timeline: &str) {
        self.compare(timeline, |player, decision| Some(player.describe(decision)));
    }

    /// Runs the lines, but compares only the control tensors of the batches' two slots.
    #[track_caller]
    pub(crate) fn tensors(&mut self, timeline: &str) {
        self.compare(timeline, |_, decision| match decision {
            SchedulerDecision::Execute { entries, .. } => Some(controls(entries)),
            _ => None,
        });
    }

    #[track_caller]
    fn compare(
        &mut self,
        timeline: &str,
        describe: impl Fn(&Self, &SchedulerDecision) -> Option<String>,
    ) {
        for line in timeline.lines().map(str::trim) {
            let (input, expected) = line.split_once("->").expect("event -> decisions");
            let words: Vec<&str> = input.split_whitespace().collect();
            let now = Time(words[0].parse().expect("a time"));
            let decisions = self.play_event(now, words[1], &words[2..]);
            let rendered: Vec<String> =
                decisions.iter().filter_map(|decision| describe(self, decision)).collect();
            assert_eq!(rendered.join(", "), expected.trim(), "in line {line:?}");
        }
    }

    #[track_caller]
    fn play_event(&mut self, now: Time, word: &str, names: &[&str]) -> Vec<SchedulerDecision> {
        let id = || names[0].parse().expect("an instance");
        match word {
            "add" => self.step(now, SchedulerEvent::AddInstance(InstanceId(id()))),
            "free" => self.step(now, SchedulerEvent::LaneFree(InstanceId(id()))),
            "tick" => self.step(now, SchedulerEvent::Tick),
            "send" => names.iter().flat_map(|name| self.send(now, name)).collect(),
            "done" => self.release(now, names[0], RequestRelease::Done),
            "again" => self.release(now, names[0], RequestRelease::Reschedule),
            "finish" => self.finish(now, id()),
            other => panic!("unknown event {other:?}"),
        }
    }

    #[track_caller]
    fn step(&mut self, now: Time, event: SchedulerEvent) -> Vec<SchedulerDecision> {
        let decisions = self.harness.step(now, event).unwrap_or_else(|message| panic!("{message}"));
        for decision in &decisions {
            match decision {
                SchedulerDecision::Execute { instance, entries, .. } => {
                    let requests = entries.iter().filter_map(BatchEntry::request).collect();
                    self.running.insert(instance.0, requests);
                }
                SchedulerDecision::SequenceClosed(sequence) => {
                    self.open.retain(|_, open| open != sequence)
                }
                SchedulerDecision::SequenceEnded(_)
                | SchedulerDecision::Fail(..)
                | SchedulerDecision::InstanceRemoved(_)
                | SchedulerDecision::Drained => {}
            }
        }
        decisions
    }

    #[track_caller]
    fn send(&mut self, now: Time, name: &str) -> Vec<SchedulerDecision> {
        let label = name.trim_end_matches(['^', '$']);
        let sequence = label.split('.').next().expect("a sequence").to_owned();
        let number = |count: usize| u64::try_from(count).expect("few");
        let key = RequestKey(number(self.labels.len()));
        self.labels.push(label.to_owned());
        let next = SequenceKey(number(self.sequences.len()));
        let known = *self.open.entry(sequence.clone()).or_insert(next);
        if known == next {
            self.sequences.push(sequence);
        }
        let end = name.contains('$') && !self.is_iterative;
        let position = SequencePosition { sequence: known, start: name.contains('^'), end };
        let info = RequestInfo {
            key,
            batch_size: 1,
            shape_class: ShapeClassId(0),
            priority: 0,
            deadline: Time::MAX,
            length: 0,
            timeout_ns: 0,
            sequence: Some(position),
        };
        self.step(now, SchedulerEvent::Enqueue(info))
    }

    #[track_caller]
    fn release(
        &mut self,
        now: Time,
        label: &str,
        release: RequestRelease,
    ) -> Vec<SchedulerDecision> {
        let index = self.labels.iter().position(|known| known == label).expect("it was sent");
        let key = RequestKey(u64::try_from(index).expect("few"));
        self.step(now, SchedulerEvent::Released { key, release })
    }

    #[track_caller]
    fn finish(&mut self, now: Time, instance: u32) -> Vec<SchedulerDecision> {
        let mut decisions = Vec::new();
        for key in self.running.remove(&instance).expect("it runs something") {
            decisions.extend(
                self.step(now, SchedulerEvent::Released { key, release: RequestRelease::Done }),
            );
        }
        decisions.extend(self.step(now, SchedulerEvent::LaneFree(InstanceId(instance))));
        decisions
    }

    fn describe(&self, decision: &SchedulerDecision) -> String {
        match decision {
            SchedulerDecision::Execute { instance, entries, .. } => {
                let rows: Vec<String> = entries.iter().map(|entry| self.row(entry)).collect();
                format!("{}: {}", instance.0, rows.join(" "))
            }
            SchedulerDecision::Fail(key, reason) => format!("fail {} {reason:?}", self.label(*key)),
            SchedulerDecision::SequenceClosed(sequence) => {
                format!("closed {}", self.name(*sequence))
            }
            SchedulerDecision::SequenceEnded(sequence) => format!("ended {}", self.name(*sequence)),
            SchedulerDecision::InstanceRemoved(instance) => format!("removed {}", instance.0),
            SchedulerDecision::Drained => "drained".to_owned(),
        }
    }

    fn row(&self, entry: &BatchEntry) -> String {
        match entry {
            BatchEntry::Step(step) => {
                let start = if step.start { "^" } else { "" };
                let end = if step.end { "$" } else { "" };
                format!("{}{start}{end}", self.label(step.key))
            }
            BatchEntry::Padding => "-".to_owned(),
            BatchEntry::Request(key) => panic!("{key:?} has no sequence"),
        }
    }

    fn label(&self, key: RequestKey) -> &str {
        &self.labels[usize::try_from(key.0).expect("few")]
    }

    fn name(&self, key: SequenceKey) -> &str {
        &self.sequences[usize::try_from(key.0).expect("few")]
    }
}

/// Renders the control tensors of models with two slots.
fn controls(entries: &[BatchEntry]) -> String {
    let slot = |row: usize, is_set: fn(&BatchEntry) -> bool| match entries.get(row) {
        Some(entry) if is_set(entry) => "1",
        Some(_) | None => "0",
    };
    let starts = |entry: &BatchEntry| matches!(entry, BatchEntry::Step(step) if step.start);
    let is_ready = |entry: &BatchEntry| matches!(entry, BatchEntry::Step(_));
    let both = |is_set| format!("{} {}", slot(0, is_set), slot(1, is_set));
    format!("START {}, READY {}", both(starts), both(is_ready))
}
