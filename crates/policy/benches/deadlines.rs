//! Measures nanoseconds per event of the deadline and padding batchers with 1 to 10,000 waiting
//! requests: `cargo bench -p galatea-policy --bench deadlines`. Compare only numbers from the same
//! machine. Executions take virtual time because the batchers learn from it. Each completed request
//! is followed by a new arrival, so the arrival rate equals the completion rate.
#![allow(clippy::print_stdout, reason = "a command-line tool prints its result")]
#![allow(clippy::cast_precision_loss, reason = "rates are printed for people")]
#![allow(
    clippy::disallowed_types,
    reason = "the benchmark reads the clock; the scheduler does not"
)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::time::Instant;

use galatea_policy::{
    DeadlineBatcherSpec, DynamicBatcherSpec, InstanceId, PaddingSpec, RequestInfo, RequestKey,
    Scheduler, SchedulerAction, SchedulerActions, SchedulerEvent, SchedulingMode, SchedulingSpec,
    ShapeClassId, Time,
};

/// The number of events timed at each size.
const EVENTS: u64 = 1_000_000;
const SAMPLES: usize = 3;
const SIZES: [u32; 3] = [1, 100, 10_000];
const BATCH: u32 = 32;
const INSTANCES: u32 = 4;

/// The fixed duration of an execution and the duration of each row. A full batch takes 2.6 ms.
const FIXED_NS: u64 = 1_000_000;
const ROW_NS: u64 = 50_000;
/// The wait that each waiting request adds.
const WAIT_NS: u64 = (FIXED_NS + ROW_NS * BATCH as u64) / (BATCH * INSTANCES) as u64;
/// The maximum request length.
const LENGTH_MAX: u64 = 256;

/// The request deadlines.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Deadlines {
    /// All requests have the same deadline, and all meet it.
    Met,
    /// Deadlines range from one that most requests miss to one that all meet.
    Mixed,
    /// Requests have no deadline.
    Never,
}

struct Driver {
    scheduler: Scheduler,
    actions: SchedulerActions,
    /// Execution end times with the requests of each execution.
    running: BinaryHeap<Reverse<(Time, InstanceId, u32)>>,
    now: Time,
    keys: Vec<u64>,
    next_key: u64,
    random: u64,
    deadlines: Deadlines,
    /// The wait of a request at the current queue length.
    wait_ns: u64,
    refused: u64,
    arrivals: Timed,
    ends: Timed,
}

/// The number of events of one kind and their total duration.
#[derive(Copy, Clone, Default, Debug)]
struct Timed {
    events: u64,
    ns: u64,
}

impl Driver {
    fn new(mode: SchedulingMode, deadlines: Deadlines, size: u32) -> Self {
        let spec = SchedulingSpec {
            max_batch_size: BATCH,
            mode,
            hold_until_queued: 0,
            hold_until_backlogged: 0,
        };
        let mut driver = Driver {
            scheduler: Scheduler::new(spec),
            actions: SchedulerActions::default(),
            running: BinaryHeap::new(),
            now: Time(0),
            keys: Vec::new(),
            next_key: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            deadlines,
            wait_ns: u64::from(size) * WAIT_NS + 10_000_000,
            refused: 0,
            arrivals: Timed::default(),
            ends: Timed::default(),
        };
        for id in 0..INSTANCES {
            driver.step(SchedulerEvent::AddInstance(InstanceId(id)));
        }
        driver
    }

    /// Returns the duration of the step.
    fn step(&mut self, event: SchedulerEvent) -> u64 {
        let start = Instant::now();
        self.scheduler.step(self.now, event, &mut self.actions);
        black_box(self.scheduler.next_wakeup());
        let took = start.elapsed().as_nanos() as u64;
        for action in self.actions.drain() {
            match action {
                SchedulerAction::Dispatch { instance, batch } => {
                    let rows = batch.batch_size();
                    let takes = FIXED_NS + ROW_NS * u64::from(rows);
                    let end = self.now.saturating_add(takes);
                    self.running.push(Reverse((end, instance, rows)));
                    self.keys.extend(
                        batch
                            .entries()
                            .iter()
                            .filter_map(|entry| entry.request().map(|key| key.0 & 0xffff_ffff)),
                    );
                }
                SchedulerAction::Fail { key, .. } => {
                    self.refused += 1;
                    self.keys.push(key.0 & 0xffff_ffff);
                }
                other => panic!("nothing else happens here: {other:?}"),
            }
        }
        took
    }

    fn number(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn enqueue(&mut self) {
        let low = self.keys.pop().unwrap_or(self.next_key & 0xffff_ffff);
        self.next_key += 1;
        let length = (1 + self.number() % LENGTH_MAX) as u32;
        let share = self.number() % 16;
        let deadline = match self.deadlines {
            Deadlines::Met => self.now.saturating_add(2 * self.wait_ns),
            Deadlines::Mixed => self.now.saturating_add(self.wait_ns / 8 * (share + 1)),
            Deadlines::Never => Time::MAX,
        };
        let request = RequestInfo {
            key: RequestKey(self.next_key << 32 | low),
            batch_size: 1,
            shape_class: ShapeClassId(0),
            priority: 0,
            deadline,
            length: if self.deadlines == Deadlines::Never { length } else { 0 },
            timeout_ns: 0,
            sequence: None,
        };
        let took = self.step(SchedulerEvent::Enqueue(request));
        self.arrivals.events += 1;
        self.arrivals.ns += took;
    }

    /// Ends the next execution to finish. For each request that it completes, and for each refused
    /// request, a new one arrives before the next execution ends.
    fn finish_batch(&mut self) {
        let Some(Reverse((end, instance, rows))) = self.running.pop() else {
            self.now = self.scheduler.next_wakeup().expect("something is waited for");
            self.step(SchedulerEvent::Tick);
            return;
        };
        let gap = end.saturating_since(self.now) / u64::from(rows.max(1));
        let wanted = rows + std::mem::take(&mut self.refused).min(64) as u32;
        for _ in 0..wanted {
            self.now = self.now.saturating_add(gap).min(end);
            self.enqueue();
        }
        self.now = end;
        let took = self.step(SchedulerEvent::LaneFree(instance));
        self.ends.events += 1;
        self.ends.ns += took;
    }
}

/// Creates a busy scheduler with `size` requests waiting.
fn fill(name: &str, size: u32) -> Driver {
    let queue = DynamicBatcherSpec::default();
    let padding = Some(PaddingSpec { budget: 4096 });
    let deadline = DeadlineBatcherSpec { objective_ns: u64::MAX, queue: queue.clone() };
    let (mode, deadlines) = match name {
        "deadlines, all met" => (SchedulingMode::Deadline(deadline), Deadlines::Met),
        "deadlines, mixed" => (SchedulingMode::Deadline(deadline), Deadlines::Mixed),
        "padding" => {
            (SchedulingMode::Dynamic(DynamicBatcherSpec { padding, ..queue }), Deadlines::Never)
        }
        other => panic!("no mode is called {other}"),
    };
    let mut driver = Driver::new(mode, deadlines, size);
    for _ in 0..size + BATCH * INSTANCES {
        driver.enqueue();
    }
    for _ in 0..1000 {
        driver.finish_batch();
    }
    driver
}

/// Measures the nanoseconds per event, per arrival and per end of an execution.
fn nanoseconds(name: &str, size: u32) -> [f64; 3] {
    let mut samples: Vec<[f64; 3]> = (0..SAMPLES)
        .map(|_| {
            let mut driver = fill(name, size);
            (driver.arrivals, driver.ends) = (Timed::default(), Timed::default());
            while driver.arrivals.events + driver.ends.events < EVENTS {
                driver.finish_batch();
            }
            let (arrivals, ends) = (driver.arrivals, driver.ends);
            let both = Timed { events: arrivals.events + ends.events, ns: arrivals.ns + ends.ns };
            [both, arrivals, ends].map(|one| one.ns as f64 / one.events as f64)
        })
        .collect();
    samples.sort_by(|one, other| one[0].total_cmp(&other[0]));
    samples[SAMPLES / 2]
}

fn main() {
    println!(
        "ns per event (arrival, end of an execution of up to {BATCH} rows), by waiting requests"
    );
    for name in ["deadlines, all met", "deadlines, mixed", "padding"] {
        let cells = SIZES.map(|size| {
            let [each, arrival, end] = nanoseconds(name, size);
            format!("{size}: {each:.0} ({arrival:.0}, {end:.0})")
        });
        println!("{name:20} {}", cells.join("   "));
    }
}
