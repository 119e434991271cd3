//! Checks that requests, sequences and instances leave no state behind: after a thousand rounds of
//! the same events, a scheduler has the same state as after ten.

use galatea_policy::{
    BatchEntry, InstanceId, RequestInfo, RequestKey, RequestRelease, SchedulerEvent,
    SchedulingMode, SchedulingSpec, SequenceBatcherSpec, SequenceKey, SequencePosition,
    SequenceStrategy, ShapeClassId, Time,
};
use galatea_sim::{Harness, OracleMode, SchedulerDecision, SchedulerSetup};

/// A scheduler that gets the same events in each round, with the same indices for requests and
/// sequences but a new generation of keys.
struct Rounds {
    harness: Harness,
    round: u64,
    executing: Vec<RequestKey>,
    busy: Vec<InstanceId>,
    failed: usize,
}

impl Rounds {
    fn step(&mut self, wait_ns: u64, event: SchedulerEvent) {
        let now = self.harness.now().saturating_add(wait_ns);
        let decisions = self.harness.step(now, event).unwrap_or_else(|message| panic!("{message}"));
        for decision in decisions {
            match decision {
                SchedulerDecision::Execute { instance, entries, .. } => {
                    self.busy.push(instance);
                    self.executing.extend(entries.iter().filter_map(BatchEntry::request));
                }
                SchedulerDecision::Fail(..) => self.failed += 1,
                SchedulerDecision::SequenceClosed(_)
                | SchedulerDecision::SequenceEnded(_)
                | SchedulerDecision::InstanceRemoved(_)
                | SchedulerDecision::Drained => {}
            }
        }
    }

    fn key(&self, index: u64) -> u64 {
        self.round << 32 | index
    }

    fn send(&mut self, index: u64, sequence: u64, flags: &str) {
        let mark = SequencePosition {
            sequence: SequenceKey(self.key(sequence)),
            start: flags.contains('^'),
            end: flags.contains('$'),
        };
        let info = RequestInfo {
            key: RequestKey(self.key(index)),
            batch_size: 1,
            shape_class: ShapeClassId(0),
            priority: 0,
            deadline: Time::MAX,
            length: 0,
            timeout_ns: 7,
            sequence: Some(mark),
        };
        self.step(0, SchedulerEvent::Enqueue(info));
    }

    /// Releases all executing requests and frees their instances.
    fn finish(&mut self, release: RequestRelease) {
        for key in std::mem::take(&mut self.executing) {
            self.step(1, SchedulerEvent::Released { key, release });
        }
        for instance in std::mem::take(&mut self.busy) {
            self.step(0, SchedulerEvent::LaneFree(instance));
        }
    }
}

/// The scheduler's state after `rounds` rounds, without digits: times and keys may grow, but the
/// amount of state must not.
fn state_after(spec: &SchedulingSpec, rounds: u64, play: fn(&mut Rounds)) -> String {
    let harness = Harness::new(&SchedulerSetup::from(spec.clone()), OracleMode::ChecksOnly);
    let mut all = Rounds { harness, round: 0, executing: Vec::new(), busy: Vec::new(), failed: 0 };
    all.step(0, SchedulerEvent::AddInstance(InstanceId(0)));
    for round in 0..rounds {
        all.round = round;
        play(&mut all);
    }
    assert_eq!(all.harness.queued(), 0);
    all.harness.state().chars().filter(|character| !character.is_ascii_digit()).collect()
}

/// Runs with both strategies, two slots per instance, an idle limit of 20, and a delay of 3 for
/// batches that aren't full.
#[track_caller]
fn check(iterative: bool, play: fn(&mut Rounds)) {
    let direct = SequenceStrategy::Direct { max_queue_delay_ns: 3, minimum_ready_slots: 2 };
    let oldest = SequenceStrategy::Oldest {
        max_candidate_sequences: 2,
        preferred_batch_sizes: vec![],
        max_queue_delay_ns: 3,
    };
    for strategy in [direct, oldest] {
        let settings = SequenceBatcherSpec { strategy, max_sequence_idle_ns: 20, iterative };
        let spec = SchedulingSpec {
            max_batch_size: 2,
            mode: SchedulingMode::Sequence(settings),
            hold_until_queued: 0,
            hold_until_backlogged: 0,
        };
        let (few, many) = (state_after(&spec, 10, play), state_after(&spec, 1000, play));
        assert_eq!(few, many, "after ten rounds, and after a thousand");
    }
}

/// One sequence ends with END, one is cancelled, one is idle for too long, one fails in the
/// backlog, and one has no START.
#[test]
fn sequences_leave_no_state() {
    check(false, |rounds| {
        let failed = rounds.failed;
        rounds.send(0, 0, "^");
        rounds.send(1, 1, "^");
        rounds.send(2, 2, "^");
        rounds.send(3, 3, "");
        rounds.send(3, 0, "$");
        rounds.send(4, 1, "");
        rounds.step(0, SchedulerEvent::Cancel(RequestKey(rounds.key(4))));
        rounds.send(4, 3, "^");
        rounds.step(7, SchedulerEvent::Tick);
        rounds.finish(RequestRelease::Done);
        rounds.step(3, SchedulerEvent::Tick);
        rounds.finish(RequestRelease::Done);
        rounds.step(100, SchedulerEvent::Tick);
        assert_eq!(rounds.failed - failed, 3, "no START, cancelled, and too long in the backlog");
    });
}

#[test]
fn iterations_leave_no_state() {
    check(true, |rounds| {
        rounds.send(0, 0, "^");
        rounds.send(1, 1, "^");
        rounds.finish(RequestRelease::Reschedule);
        rounds.finish(RequestRelease::Reschedule);
        rounds.finish(RequestRelease::Done);
    });
}

/// An instance is added, gets a sequence, and is removed when the sequence ends as idle.
#[test]
fn instances_leave_no_state() {
    check(false, |rounds| {
        rounds.step(0, SchedulerEvent::AddInstance(InstanceId(1)));
        rounds.send(0, 0, "^");
        rounds.send(1, 1, "^");
        rounds.step(0, SchedulerEvent::RemoveInstance(InstanceId(1)));
        rounds.step(3, SchedulerEvent::Tick);
        rounds.finish(RequestRelease::Done);
        rounds.step(100, SchedulerEvent::Tick);
        let again = SchedulerEvent::RemoveInstance(InstanceId(1));
        assert!(!rounds.harness.allows(rounds.harness.now(), &again), "it was removed");
    });
}
