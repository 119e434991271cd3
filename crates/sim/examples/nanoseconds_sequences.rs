//! Measures nanoseconds per step of the sequence batcher with 1 to 1,000,000 live sequences, and
//! bytes per sequence. Run it with `--release`, and compare only numbers from the same machine.
#![allow(clippy::print_stdout, reason = "a command-line tool prints its result")]
#![allow(clippy::cast_precision_loss, reason = "the rate is printed for people")]

use std::hint::black_box;
use std::time::Instant;

use galatea_policy::{
    BatchEntry, InstanceId, RequestInfo, RequestKey, RequestRelease, Scheduler, SchedulerAction,
    SchedulerActions, SchedulerEvent, SchedulingMode, SchedulingSpec, SequenceBatcherSpec,
    SequenceKey, SequencePosition, SequenceStrategy, ShapeClassId, Time,
};

const STEPS: u64 = 1_000_000;
const SAMPLES: usize = 3;
const BATCH: u32 = 8;

struct Driver {
    scheduler: Scheduler,
    actions: SchedulerActions,
    running: Vec<SequenceKey>,
    now: Time,
    steps: u64,
}

impl Driver {
    fn new(strategy: SequenceStrategy, iterative: bool) -> Self {
        let settings = SequenceBatcherSpec { strategy, max_sequence_idle_ns: 1 << 60, iterative };
        let spec = SchedulingSpec {
            max_batch_size: BATCH,
            mode: SchedulingMode::Sequence(settings),
            hold_until_queued: 0,
            hold_until_backlogged: 0,
        };
        let mut driver = Driver {
            scheduler: Scheduler::new(spec),
            actions: SchedulerActions::default(),
            running: Vec::new(),
            now: Time(0),
            steps: 0,
        };
        driver.step(SchedulerEvent::AddInstance(InstanceId(0)));
        driver
    }

    fn step(&mut self, event: SchedulerEvent) {
        self.now = self.now.saturating_add(1);
        self.steps += 1;
        self.scheduler.step(self.now, event, &mut self.actions);
        black_box(self.scheduler.next_wakeup());
        for action in self.actions.drain() {
            let SchedulerAction::Dispatch { batch, .. } = action else { continue };
            for entry in batch.entries() {
                if let BatchEntry::Step(step) = entry {
                    self.running.push(step.sequence);
                }
            }
        }
    }

    /// Enqueues the only request of a sequence, whose key contains the sequence number.
    fn send(&mut self, sequence: SequenceKey, start: bool, end: bool) {
        self.step(SchedulerEvent::Enqueue(RequestInfo {
            key: RequestKey(sequence.0),
            batch_size: 1,
            shape_class: ShapeClassId(0),
            priority: 0,
            deadline: Time::MAX,
            length: 0,
            timeout_ns: 0,
            sequence: Some(SequencePosition { sequence, start, end }),
        }));
    }

    /// Releases all executing requests and frees the instance.
    fn finish(&mut self, release: RequestRelease) -> Vec<SequenceKey> {
        let ran = std::mem::take(&mut self.running);
        for sequence in &ran {
            self.step(SchedulerEvent::Released { key: RequestKey(sequence.0), release });
        }
        self.step(SchedulerEvent::LaneFree(InstanceId(0)));
        ran
    }

    fn nanoseconds(&mut self, mut round: impl FnMut(&mut Self)) -> f64 {
        self.steps = 0;
        let start = Instant::now();
        while self.steps < STEPS {
            round(self);
        }
        start.elapsed().as_nanos() as f64 / self.steps as f64
    }
}

fn oldest(candidates: u32) -> SequenceStrategy {
    SequenceStrategy::Oldest {
        max_candidate_sequences: candidates,
        preferred_batch_sizes: vec![],
        max_queue_delay_ns: 0,
    }
}

fn direct() -> SequenceStrategy {
    SequenceStrategy::Direct { max_queue_delay_ns: 0, minimum_ready_slots: 0 }
}

fn started(strategy: SequenceStrategy, iterative: bool, live: u32, end: bool) -> Driver {
    let mut driver = Driver::new(strategy, iterative);
    for sequence in 0..live {
        driver.send(SequenceKey(u64::from(sequence)), true, end);
    }
    driver
}

/// Gives every sequence a slot and a request; a sequence whose request was executed sends the next
/// one.
fn candidates(live: u32) -> f64 {
    let mut driver = started(oldest(live), false, live, false);
    driver.nanoseconds(|driver| {
        for sequence in driver.finish(RequestRelease::Done) {
            driver.send(sequence, false, false);
        }
    })
}

/// Provides eight slots while the other sequences wait. Each sequence has one request, and a new
/// sequence begins for each one that ends.
fn backlog(live: u32) -> f64 {
    let mut driver = started(direct(), false, live, true);
    driver.nanoseconds(|driver| {
        for sequence in driver.finish(RequestRelease::Done) {
            driver.send(sequence, true, true);
        }
    })
}

/// Reschedules all requests each time.
fn iterations(live: u32) -> f64 {
    let mut driver = started(oldest(live), true, live, false);
    driver.nanoseconds(|driver| {
        driver.finish(RequestRelease::Reschedule);
    })
}

/// Keeps all sequences idle in their slots, except one at a time.
fn resting(live: u32) -> f64 {
    let mut driver = started(oldest(live), false, live, false);
    for _ in 0..live {
        if driver.running.is_empty() {
            break;
        }
        driver.finish(RequestRelease::Done);
    }
    let mut next = 0;
    driver.nanoseconds(|driver| {
        driver.send(SequenceKey(next), false, false);
        driver.finish(RequestRelease::Done);
        next = (next + 1) % u64::from(live);
    })
}

/// Measures the process memory per live sequence with a request, in bytes.
fn bytes(live: u32) -> Option<f64> {
    let before = resident_bytes()?;
    let driver = started(oldest(live), false, live, false);
    let after = resident_bytes()?;
    black_box(&driver);
    Some(after.saturating_sub(before) as f64 / f64::from(live))
}

/// Returns the resident memory of this process, if the kernel reports it.
fn resident_bytes() -> Option<u64> {
    const PAGE: u64 = 4096;
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    text.split_whitespace().nth(1)?.parse::<u64>().ok().map(|pages| pages * PAGE)
}

fn best(measure: impl Fn() -> f64) -> f64 {
    (0..SAMPLES).map(|_| measure()).fold(f64::INFINITY, f64::min)
}

fn main() {
    if let Some(bytes) = bytes(1_000_000) {
        println!("{bytes:.0} bytes for each of 1,000,000 sequences with a request");
    }
    println!(
        "{:>9} {:>12} {:>12} {:>12} {:>12}",
        "live", "oldest", "direct", "iterative", "resting"
    );
    for live in [1, 1_000, 100_000, 1_000_000] {
        let figures = [candidates, backlog, iterations, resting];
        let [candidates, backlog, iterations, resting] = figures.map(|one| best(|| one(live)));
        println!("{live:>9} {candidates:>12.0} {backlog:>12.0} {iterations:>12.0} {resting:>12.0}");
    }
}
