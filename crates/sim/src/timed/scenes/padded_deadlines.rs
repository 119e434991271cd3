//! Loads with different lengths and deadlines: urgent requests are served in time, and goodput
//! benefits.

use galatea_policy::{
    DeadlineBatcherSpec, DynamicBatcherSpec, PaddingSpec, QueuePolicy, RequestKey, SchedulingMode,
    Time,
};
use galatea_simulate::{Arrival, Execution, Report, simulate_open_loop};

use super::super::{Costs, Kind, World, settings};
use crate::check::{Check, ensure};
use crate::random::Random;

/// Well-filled batches compete with one urgent request of another length, which is served before
/// they would make it late.
pub(super) fn check_order(random: &mut Random) -> Check {
    let mut world =
        World::scene(Kind::PaddedDeadlines, random, 16, Costs::by_element(100_000, 1_000))?;
    for length in [4, 8, 16, 32, 64, 128, 256, 512] {
        for _ in 0..4 {
            world.arrive_plainly(length, Time::MAX)?;
            world.pass_ns(10_000_000)?;
        }
    }
    // The instance is busy for 356 µs. After that, a full batch with the first request would take
    // longer than the second request has time for.
    world.arrive_plainly(256, Time::MAX)?;
    let now = world.timed.now;
    world.arrive_plainly(60, now.saturating_add(1_100_000))?;
    let urgent = RequestKey(world.arrivals);
    world.arrive_plainly(4, now.saturating_add(1_150_000))?;
    for _ in 0..14 {
        let within = random.between(50_000_000, 60_000_000);
        world.arrive_plainly(60, now.saturating_add(within))?;
    }
    ensure!(world.waiting.contains_key(&urgent), "the urgent request was refused");
    world.finish()?;
    ensure!(world.late == 0, "the urgent request is late");
    ensure!(world.refused_late == 0, "an urgent request is refused for the sake of a batch");
    Ok(())
}

/// A load near or beyond the capacity, compared with padding and timeouts.
pub(super) fn check_goodput(seed: u64) -> Check {
    let mut random = Random::new(seed ^ 0x600D);
    let costs = Costs {
        fixed: random.pick(&[50_000, 1_000_000]),
        row: 0,
        element: random.pick(&[2_000, 20_000]),
        square: random.pick(&[0, 2_000]),
    };
    let load = random.pick(&[0.3, 0.8, 1.2, 1.6]);
    let lengths: Vec<u32> = (0..3_000).map(|_| some_length(&mut random)).collect();
    let mean = lengths.iter().map(|one| costs.of(8, *one) / 8).sum::<u64>() / 3_000;
    let objective_ns = 4 * costs.of(8, 64) + costs.of(1, 256);
    let mut now = 0.0;
    let arrivals: Vec<Arrival> = (lengths.iter())
        .map(|length| {
            let share = (random.number() >> 11) as f64 / (1_u64 << 53) as f64;
            now += -(1.0 - share).ln() * mean as f64 / load;
            Arrival { deadline_ns: objective_ns, length: *length, ..Arrival::at(now as u64) }
        })
        .collect();
    let run = |mode| play(mode, costs, &arrivals, seed);
    let padding = Some(PaddingSpec { budget: u64::MAX });
    let with_timeout = |percent: u64| {
        let default_timeout_ns = objective_ns / 100 * percent;
        let default_queue_policy = QueuePolicy { default_timeout_ns, ..QueuePolicy::default() };
        DynamicBatcherSpec { padding, default_queue_policy, ..DynamicBatcherSpec::default() }
    };
    let ours =
        run(SchedulingMode::Deadline(DeadlineBatcherSpec { objective_ns, queue: with_timeout(0) }));
    let others = [0, 30, 50, 70].map(|percent| run(SchedulingMode::Dynamic(with_timeout(percent))));
    let best = others.iter().map(|report| report.in_time).max().unwrap_or(0);
    let ratio = ours.in_time as f64 / best.max(1) as f64;
    let cell = format!("{costs:?}, load {load}, objective {objective_ns}");
    let is_close = ratio >= RATIO_MIN;
    ensure!(is_close, "{ratio:.3} of the goodput with time-outs at {cell}");
    let late = ours.late;
    ensure!(late <= 40, "{late} of {} late at {cell}", ours.answered());
    Ok(())
}

/// The minimum goodput of a short load, as a share of that with the best timeout.
const RATIO_MIN: f64 = 0.9;

fn some_length(random: &mut Random) -> u32 {
    match random.between(1, 20) {
        1 => random.between_u32(100, 256),
        2..=5 => random.between_u32(40, 100),
        _ => random.between_u32(5, 40),
    }
}

fn play(mode: SchedulingMode, costs: Costs, arrivals: &[Arrival], seed: u64) -> Report {
    let mut random = Random::new(seed ^ 0xD07A);
    simulate_open_loop(&settings(16, mode), 1, arrivals, |execution: Execution| {
        costs.of(execution.rows, execution.length) * random.between(95, 105) / 100
    })
}
