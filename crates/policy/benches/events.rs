//! Measures nanoseconds per scheduler event and bytes per live sequence with 1 to 1,000,000 queued
//! requests or live sequences: `cargo bench -p galatea-policy`. Compare only numbers from the same
//! machine. Each mode is driven as on a busy server: requests arrive, batches run, steps are
//! released, and sequences end while others begin.
#![allow(clippy::print_stdout, reason = "a command-line tool prints its result")]
#![allow(clippy::cast_precision_loss, reason = "rates are printed for people")]
#![allow(
    clippy::disallowed_types,
    reason = "the benchmark reads the clock; the scheduler does not"
)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use galatea_policy::{
    Batch, BatchEntry, DynamicBatcherSpec, FailReason, InstanceId, QueuePolicy, RequestInfo,
    RequestKey, RequestRelease, Scheduler, SchedulerAction, SchedulerActions, SchedulerEvent,
    SchedulingMode, SchedulingSpec, SequenceBatcherSpec, SequenceKey, SequencePosition,
    SequenceStep, SequenceStrategy, ShapeClassId, Time,
};

/// The number of events timed at each size.
const EVENTS: u64 = 2_000_000;
const SAMPLES: usize = 3;
const SIZES: [u32; 4] = [1, 1_000, 100_000, 1_000_000];
const BATCH: u32 = 32;
const INSTANCES: u32 = 4;
/// Average sequence length.
const REQUESTS_PER_SEQUENCE: u64 = 8;

/// Allocates keys like a driver's slab: the low half is a dense index, and the high half a
/// generation.
#[derive(Default)]
struct Keys {
    unused: Vec<u32>,
    used: u32,
    generation: u64,
}

impl Keys {
    fn allocate(&mut self) -> u64 {
        self.generation += 1;
        let low = self.unused.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        });
        self.generation << 32 | u64::from(low)
    }

    fn free(&mut self, key: u64) {
        self.unused.push(u32::try_from(key & 0xffff_ffff).expect("the low half"));
    }
}

struct Driver {
    scheduler: Scheduler,
    actions: SchedulerActions,
    requests: Keys,
    sequences: Keys,
    /// The executing batches.
    running: Vec<(InstanceId, Batch)>,
    now: Time,
    events: u64,
    random: u64,
    iterative: bool,
}

impl Driver {
    fn new(mode: SchedulingMode) -> Self {
        let iterative = matches!(&mode, SchedulingMode::Sequence(spec) if spec.iterative);
        let spec = SchedulingSpec {
            max_batch_size: BATCH,
            mode,
            hold_until_queued: 0,
            hold_until_backlogged: 0,
        };
        let mut driver = Driver {
            scheduler: Scheduler::new(spec),
            actions: SchedulerActions::default(),
            requests: Keys::default(),
            sequences: Keys::default(),
            running: Vec::new(),
            now: Time(0),
            events: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            iterative,
        };
        for id in 0..INSTANCES {
            driver.step(SchedulerEvent::AddInstance(InstanceId(id)));
        }
        driver
    }

    fn step(&mut self, event: SchedulerEvent) {
        self.now = self.now.saturating_add(50);
        self.events += 1;
        self.scheduler.step(self.now, event, &mut self.actions);
        black_box(self.scheduler.next_wakeup());
        for action in self.actions.drain() {
            match action {
                SchedulerAction::Dispatch { instance, batch } => {
                    self.running.push((instance, batch))
                }
                SchedulerAction::SequenceEnded(key) => self.sequences.free(key.0),
                SchedulerAction::SequenceClosed(_) => {}
                SchedulerAction::Fail { reason: FailReason::Cancelled, .. } => {}
                other => panic!("nothing else fails here: {other:?}"),
            }
        }
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.is_multiple_of(count)
    }

    fn enqueue(&mut self, sequence: Option<SequencePosition>) -> RequestKey {
        let key = RequestKey(self.requests.allocate());
        let shape_class = ShapeClassId(0);
        let request = RequestInfo {
            key,
            batch_size: 1,
            shape_class,
            priority: 0,
            deadline: Time::MAX,
            length: 0,
            timeout_ns: 0,
            sequence,
        };
        self.step(SchedulerEvent::Enqueue(request));
        key
    }

    fn begin_sequence(&mut self) {
        let sequence = SequenceKey(self.sequences.allocate());
        self.enqueue(Some(SequencePosition { sequence, start: true, end: false }));
    }

    /// Ends the oldest executing batch and enqueues a request for each of its entries.
    fn finish_batch(&mut self) {
        let (instance, batch) = self.running.remove(0);
        for entry in batch.entries() {
            match *entry {
                BatchEntry::Request(key) => {
                    self.requests.free(key.0);
                    self.enqueue(None);
                }
                BatchEntry::Step(step) => self.release(step),
                BatchEntry::Padding => {}
            }
        }
        self.step(SchedulerEvent::LaneFree(instance));
    }

    fn release(&mut self, step: SequenceStep) {
        let key = step.key;
        let is_last = self.one_in(REQUESTS_PER_SEQUENCE);
        if self.iterative && !is_last {
            self.step(SchedulerEvent::Released { key, release: RequestRelease::Reschedule });
            return;
        }
        self.step(SchedulerEvent::Released { key, release: RequestRelease::Done });
        self.requests.free(key.0);
        if step.end || self.iterative {
            self.begin_sequence();
        } else {
            let sequence = step.sequence;
            self.enqueue(Some(SequencePosition { sequence, start: false, end: is_last }));
        }
    }
}

fn dynamic() -> SchedulingMode {
    SchedulingMode::Dynamic(DynamicBatcherSpec {
        max_queue_delay_ns: 1_000,
        default_queue_policy: QueuePolicy {
            default_timeout_ns: u64::MAX / 2,
            ..QueuePolicy::default()
        },
        ..DynamicBatcherSpec::default()
    })
}

fn sequence(strategy: SequenceStrategy, iterative: bool) -> SchedulingMode {
    let max_sequence_idle_ns = u64::MAX / 2;
    SchedulingMode::Sequence(SequenceBatcherSpec { strategy, max_sequence_idle_ns, iterative })
}

fn direct() -> SequenceStrategy {
    SequenceStrategy::Direct { max_queue_delay_ns: 1_000, minimum_ready_slots: BATCH / 2 }
}

/// Returns the strategy with every live sequence as a candidate.
fn oldest(live: u32) -> SequenceStrategy {
    SequenceStrategy::Oldest {
        max_candidate_sequences: live.div_ceil(INSTANCES),
        preferred_batch_sizes: vec![BATCH / 2],
        max_queue_delay_ns: 1_000,
    }
}

/// Creates a busy scheduler with `size` requests or sequences.
fn fill(name: &str, size: u32) -> Driver {
    let mut driver = Driver::new(match name {
        "dynamic" => dynamic(),
        "direct" => sequence(direct(), false),
        "oldest" => sequence(oldest(size), false),
        "iterative, direct" => sequence(direct(), true),
        "iterative, oldest" => sequence(oldest(size), true),
        other => panic!("no mode is called {other}"),
    });
    for _ in 0..size {
        if name == "dynamic" {
            driver.enqueue(None);
        } else {
            driver.begin_sequence();
        }
    }
    driver
}

fn nanoseconds_per_event(name: &str, size: u32) -> f64 {
    let mut samples: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let mut driver = fill(name, size);
            let before = driver.events;
            let start = Instant::now();
            while driver.events - before < EVENTS {
                driver.wait();
                driver.finish_batch();
            }
            start.elapsed().as_nanos() as f64 / (driver.events - before) as f64
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[SAMPLES / 2]
}

/// Measures an arrival and the cancellation of the oldest request while the instances are busy and
/// `size` requests wait.
fn nanoseconds_per_cancellation(size: u32) -> f64 {
    let mut driver = fill("dynamic", BATCH * INSTANCES);
    let mut waiting: VecDeque<RequestKey> = (0..size).map(|_| driver.enqueue(None)).collect();
    let before = driver.events;
    let start = Instant::now();
    while driver.events - before < EVENTS {
        waiting.push_back(driver.enqueue(None));
        let oldest = waiting.pop_front().expect("one just came");
        driver.step(SchedulerEvent::Cancel(oldest));
        driver.requests.free(oldest.0);
    }
    start.elapsed().as_nanos() as f64 / (driver.events - before) as f64
}

impl Driver {
    /// Advances time while no batch runs because batches are waiting to grow.
    fn wait(&mut self) {
        while self.running.is_empty() {
            self.now = self.scheduler.next_wakeup().expect("something is waited for");
            self.step(SchedulerEvent::Tick);
        }
    }
}

/// Returns the resident memory of this process.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).expect("the resident pages");
    pages.parse::<u64>().expect("a number") * 4096
}

fn print_row(name: &str, costs: [f64; 4]) {
    let [one, thousand, hundred_thousand, million] = costs;
    let growth = million / thousand;
    println!(
        "{name:17} {one:10.0} {thousand:10.0} {hundred_thousand:10.0} {million:10.0} {growth:7.2}"
    );
}

fn main() {
    println!("ns per event      {:>10} {:>10} {:>10} {:>10}   1M/1k", 1, "1k", "100k", "1M");
    let modes = ["dynamic", "direct", "oldest", "iterative, direct", "iterative, oldest"];
    for mode in modes {
        print_row(mode, SIZES.map(|size| nanoseconds_per_event(mode, size)));
    }
    print_row("cancelling", SIZES.map(nanoseconds_per_cancellation));
    println!();
    println!("bytes per live sequence, 1M of them with one request each");
    for mode in &modes[1..] {
        let before = resident_bytes();
        let driver = fill(mode, 1_000_000);
        let bytes = resident_bytes().saturating_sub(before) as f64 / 1e6;
        println!("{mode:17} {bytes:10.0}");
        std::mem::forget(driver);
    }
}
