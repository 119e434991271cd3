//! Nanoseconds per step of the scheduler with 1, 1,000 and 100,000 requests
//! queued. Run it with `--release`; the numbers are of one machine, so compare
//! them only with its own.
#![allow(clippy::print_stdout, reason = "a tool speaks to whoever called it")]
#![allow(clippy::cast_precision_loss, reason = "a rate for people")]

use std::hint::black_box;
use std::time::Instant;

use galatea_policy::{
    Action, Actions, BatchKey, DynamicSpec, Event, InstanceId, QueuePolicy, RequestKey, Scheduler,
    SchedulingMode, SchedulingSpec, Ticket, Time,
};

const ROUNDS: u64 = 400_000;
const SAMPLES: usize = 5;

struct Driver {
    scheduler: Scheduler,
    actions: Actions,
    keys: u64,
    now: Time,
}

impl Driver {
    fn new(mode: SchedulingMode, queued: u64) -> Self {
        let spec = SchedulingSpec {
            max_batch_size: 8,
            mode,
            hold_until_queued: 0,
            hold_until_backlogged: 0,
        };
        let mut driver = Driver {
            scheduler: Scheduler::new(spec),
            actions: Actions::default(),
            keys: 0,
            now: Time(0),
        };
        driver.step(Event::AddInstance(InstanceId(0)));
        // One more than queued, which runs.
        for _ in 0..=queued {
            driver.enqueue();
        }
        driver
    }

    fn step(&mut self, event: Event) -> u64 {
        self.now = self.now.saturating_add(1);
        self.scheduler.step(self.now, event, &mut self.actions);
        black_box(self.scheduler.next_wakeup());
        let mut ran = 0;
        for action in self.actions.drain() {
            if let Action::Dispatch { batch, .. } = action {
                ran += u64::from(batch.batch_size());
            }
        }
        ran
    }

    fn enqueue(&mut self) -> u64 {
        self.keys += 1;
        let ticket = Ticket {
            key: RequestKey(self.keys),
            batch_size: 1,
            batch_key: BatchKey(0),
            priority: self.keys % 3,
            timeout_ns: 0,
            sequence: None,
        };
        self.step(Event::Enqueue(ticket))
    }
}

/// One instance, always busy: it finishes, takes a batch, and as many requests
/// come as went. Per step.
fn steady(mode: &SchedulingMode, queued: u64) -> f64 {
    let mut driver = Driver::new(mode.clone(), queued);
    let mut steps = 0_u64;
    let start = Instant::now();
    while steps < ROUNDS {
        let ran = driver.step(Event::LaneFree(InstanceId(0)));
        for _ in 0..ran {
            driver.enqueue();
        }
        steps += 1 + ran;
    }
    start.elapsed().as_nanos() as f64 / steps as f64
}

/// Requests come and are cancelled, the oldest first, behind a busy instance.
/// Per step.
fn cancelling(mode: &SchedulingMode, queued: u64) -> f64 {
    let mut driver = Driver::new(mode.clone(), queued);
    let start = Instant::now();
    for _ in 0..ROUNDS / 2 {
        driver.enqueue();
        let oldest = driver.keys.saturating_sub(queued);
        driver.step(Event::Cancel(RequestKey(oldest)));
    }
    start.elapsed().as_nanos() as f64 / ROUNDS as f64
}

fn best(measure: impl Fn() -> f64) -> f64 {
    (0..SAMPLES).map(|_| measure()).fold(f64::INFINITY, f64::min)
}

fn main() {
    let timeouts = QueuePolicy { default_timeout_ns: 1 << 60, ..QueuePolicy::default() };
    let levels = DynamicSpec {
        priority_levels: 2,
        default_priority_level: 1,
        default_queue_policy: timeouts,
        ..DynamicSpec::default()
    };
    let modes = [
        ("default", SchedulingMode::Default),
        ("dynamic", SchedulingMode::Dynamic(DynamicSpec::default())),
        ("dynamic, levels and timeouts", SchedulingMode::Dynamic(levels)),
    ];
    println!("{:<30} {:>8} {:>12} {:>12}", "ns per step", "queued", "serving", "cancelling");
    for (name, mode) in &modes {
        for queued in [1, 1_000, 100_000] {
            let serving = best(|| steady(mode, queued));
            let cancelling = best(|| cancelling(mode, queued));
            println!("{name:<30} {queued:>8} {serving:>12.0} {cancelling:>12.0}");
        }
    }
}
