//! Plays a timeline: lines of `TIME EVENT -> WHAT FOLLOWS`.
//!
//! | event | means |
//! |---|---|
//! | `add 0` | an instance comes |
//! | `send A.1^ B.2$` | requests arrive: their sequence, a number, `^` for START, `$` for END |
//! | `done A.1`, `again A.1` | the backend gives a request back, or wants it again |
//! | `free 0` | the instance is free |
//! | `finish 0` | all of the instance's requests are done, then it is free |
//! | `tick` | time passes |
//!
//! What follows is batches, `0: A.1^ - B.2$` with `-` for padding, and `closed A`,
//! `ended A` and `fail A.1 Reason`.

use std::collections::BTreeMap;

use galatea_policy::{
    BatchEntry, BatchKey, Event, InstanceId, Release, RequestInfo, RequestKey, SchedulingMode,
    SchedulingSpec, SequenceKey, SequencePosition, Time,
};
use galatea_sim::{Deed, Harness, Reference, Setup};

pub(crate) struct Player {
    harness: Harness,
    is_iterative: bool,
    /// Requests by key, without their flags.
    labels: Vec<String>,
    /// Sequences by key.
    sequences: Vec<String>,
    open: BTreeMap<String, SequenceKey>,
    /// What an instance runs.
    running: BTreeMap<u32, Vec<RequestKey>>,
}

impl Player {
    pub(crate) fn new(spec: SchedulingSpec) -> Self {
        let SchedulingMode::Sequence(settings) = &spec.mode else { panic!("a sequence batcher") };
        Player {
            is_iterative: settings.iterative,
            harness: Harness::new(&Setup::from(spec), Reference::Oracle),
            labels: Vec::new(),
            sequences: Vec::new(),
            open: BTreeMap::new(),
            running: BTreeMap::new(),
        }
    }

    /// Plays the lines and compares what follows with what they say.
    #[track_caller]
    pub(crate) fn play(&mut self, timeline: &str) {
        self.compare(timeline, |player, deed| Some(player.describe(deed)));
    }

    /// The same, but of batches it shows the control tensors of two slots, and
    /// nothing else.
    #[track_caller]
    pub(crate) fn tensors(&mut self, timeline: &str) {
        self.compare(timeline, |_, deed| match deed {
            Deed::Run { entries, .. } => Some(controls(entries)),
            _ => None,
        });
    }

    #[track_caller]
    fn compare(&mut self, timeline: &str, describe: impl Fn(&Self, &Deed) -> Option<String>) {
        for line in timeline.lines().map(str::trim) {
            let (input, expected) = line.split_once("->").expect("event -> what follows");
            let words: Vec<&str> = input.split_whitespace().collect();
            let now = Time(words[0].parse().expect("a time"));
            let deeds = self.happen(now, words[1], &words[2..]);
            let said: Vec<String> = deeds.iter().filter_map(|deed| describe(self, deed)).collect();
            assert_eq!(said.join(", "), expected.trim(), "in line {line:?}");
        }
    }

    #[track_caller]
    fn happen(&mut self, now: Time, word: &str, names: &[&str]) -> Vec<Deed> {
        let id = || names[0].parse().expect("an instance");
        match word {
            "add" => self.step(now, Event::AddInstance(InstanceId(id()))),
            "free" => self.step(now, Event::LaneFree(InstanceId(id()))),
            "tick" => self.step(now, Event::Tick),
            "send" => names.iter().flat_map(|name| self.send(now, name)).collect(),
            "done" => self.release(now, names[0], Release::Done),
            "again" => self.release(now, names[0], Release::Reschedule),
            "finish" => self.finish(now, id()),
            other => panic!("unknown event {other:?}"),
        }
    }

    #[track_caller]
    fn step(&mut self, now: Time, event: Event) -> Vec<Deed> {
        let deeds = self.harness.step(now, event).unwrap_or_else(|message| panic!("{message}"));
        for deed in &deeds {
            match deed {
                Deed::Run { instance, entries, .. } => {
                    let requests = entries.iter().filter_map(BatchEntry::request).collect();
                    self.running.insert(instance.0, requests);
                }
                Deed::Closed(sequence) => self.open.retain(|_, open| open != sequence),
                Deed::Ended(_) | Deed::Fail(..) | Deed::Removed(_) | Deed::Drained => {}
            }
        }
        deeds
    }

    #[track_caller]
    fn send(&mut self, now: Time, name: &str) -> Vec<Deed> {
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
        let mark = SequencePosition { sequence: known, start: name.contains('^'), end };
        let ticket = RequestInfo {
            key,
            batch_size: 1,
            batch_key: BatchKey(0),
            priority: 0,
            timeout_ns: 0,
            sequence: Some(mark),
        };
        self.step(now, Event::Enqueue(ticket))
    }

    #[track_caller]
    fn release(&mut self, now: Time, label: &str, release: Release) -> Vec<Deed> {
        let index = self.labels.iter().position(|known| known == label).expect("it was sent");
        let key = RequestKey(u64::try_from(index).expect("few"));
        self.step(now, Event::Released { key, release })
    }

    #[track_caller]
    fn finish(&mut self, now: Time, instance: u32) -> Vec<Deed> {
        let mut deeds = Vec::new();
        for key in self.running.remove(&instance).expect("it runs something") {
            deeds.extend(self.step(now, Event::Released { key, release: Release::Done }));
        }
        deeds.extend(self.step(now, Event::LaneFree(InstanceId(instance))));
        deeds
    }

    fn describe(&self, deed: &Deed) -> String {
        match deed {
            Deed::Run { instance, entries, .. } => {
                let rows: Vec<String> = entries.iter().map(|entry| self.row(entry)).collect();
                format!("{}: {}", instance.0, rows.join(" "))
            }
            Deed::Fail(key, reason) => format!("fail {} {reason:?}", self.label(*key)),
            Deed::Closed(sequence) => format!("closed {}", self.name(*sequence)),
            Deed::Ended(sequence) => format!("ended {}", self.name(*sequence)),
            Deed::Removed(instance) => format!("removed {}", instance.0),
            Deed::Drained => "drained".to_owned(),
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

/// What models of two slots are told.
fn controls(entries: &[BatchEntry]) -> String {
    let slot = |row: usize, tells: fn(&BatchEntry) -> bool| match entries.get(row) {
        Some(entry) if tells(entry) => "1",
        Some(_) | None => "0",
    };
    let starts = |entry: &BatchEntry| matches!(entry, BatchEntry::Step(step) if step.start);
    let is_ready = |entry: &BatchEntry| matches!(entry, BatchEntry::Step(_));
    let both = |tells| format!("{} {}", slot(0, tells), slot(1, tells));
    format!("START {}, READY {}", both(starts), both(is_ready))
}
