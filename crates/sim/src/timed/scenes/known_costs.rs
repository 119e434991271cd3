//! Targeted loads for a scheduler with known execution costs: how much time a batch leaves for
//! other requests, which requests are passed over or admitted, and how much caution deadlines need.

use galatea_policy::{RequestKey, Time};
use galatea_simulate::SimulationWorld;

use super::super::{Costs, Kind, World};
use crate::check::{Check, ensure};
use crate::random::Random;

/// Costs with which batches pay off.
const PAYING: Costs = Costs::by_element(100_000, 1_000);

/// Costs with which batches don't pay off.
const LINEAR: Costs = Costs::by_element(1_000, 1_000);

const MILLISECOND: u64 = 1_000_000;

/// Runs and checks all of these loads.
pub(super) fn check_known_costs(random: &mut Random) -> Check {
    check_consideration(random)?;
    check_passing_over(random)?;
    check_patience(random)?;
    check_window(random)?;
    check_admission(random)?;
    check_caution(random)
}

/// A batch of short requests competes with a long request that has a deadline and doesn't fit in
/// any batch with them. The batch leaves enough time for the long request, but contains all short
/// requests if another instance has time for the long one.
fn check_consideration(random: &mut Random) -> Check {
    let mut world = World::experienced(random, PAYING, (16, 4))?;
    let instances = random.between_u32(1, 2);
    if instances == 2 {
        world.add_instance()?;
    }
    // One instance is busy for 356 µs and another for 366 µs. After that, all short requests
    // together take 1 ms, and the long one takes 612 µs.
    (0..instances).try_for_each(|id| world.arrive_plainly(256 + 10 * id, Time::MAX))?;
    let begins = world.after(PAYING.of(1, 256));
    world.arrive_plainly(60, begins.saturating_add(1_350_000))?;
    let long = RequestKey(world.arrivals);
    let within = random.between(1_400_000, 1_540_000);
    world.arrive_plainly(512, begins.saturating_add(within))?;
    for _ in 0..14 {
        let within = random.between(50 * MILLISECOND, 60 * MILLISECOND);
        world.arrive_plainly(60, begins.saturating_add(within))?;
    }
    ensure!(world.waiting.contains_key(&long), "the long request was refused");
    let executions = world.finish()?;
    ensure!(world.late == 0, "the long request is late");
    ensure!(world.refused_late == 0, "a long request is refused for the sake of a batch");
    ensure!(executions == 4, "{executions} executions with {instances} instances");
    Ok(())
}

/// A long request is passed over by 16 batches, which have requests before and behind it. The
/// request that later takes its place in the queue's memory hasn't been passed over by any.
fn check_passing_over(random: &mut Random) -> Check {
    let mut world = World::experienced(random, PAYING, (16, 4))?;
    world.arrive_plainly(60, Time::MAX)?;
    let begins = world.timed.now;
    world.arrive_plainly(1_024, begins.saturating_add(50 * MILLISECOND))?;
    for _ in 0..20 {
        world.arrive_plainly(60, begins.saturating_add(20 * MILLISECOND))?;
        world.arrive_plainly(60, begins.saturating_add(60 * MILLISECOND))?;
        world.pass_until_an_end()?;
    }
    world.finish()?;
    world.arrive_plainly(60, Time::MAX)?;
    for _ in 0..15 {
        world.arrive_plainly(60, Time::MAX)?;
    }
    let executions = world.finish()?;
    ensure!(executions == 2, "{executions} executions of 1 and 15 requests that are alike");
    Ok(())
}

/// The load needs faster batches than one with only the long request. The next batch still contains
/// the long request if there is time for all requests.
fn check_patience(random: &mut Random) -> Check {
    let mut world = World::experienced(random, PAYING, (16, 4))?;
    for _ in 0..100 {
        world.arrive_plainly(60, world.after(20 * MILLISECOND))?;
        // The load is 1.1 to 1.2 times the work that an instance completes one by one.
        let gap = PAYING.of(1, 60) * 100 / random.between(110, 120);
        world.pass_ns(gap)?;
    }
    let long = RequestKey(world.arrivals);
    world.arrive_plainly(256, world.after(8 * MILLISECOND))?;
    for _ in 0..4 {
        world.arrive_plainly(60, world.after(20 * MILLISECOND))?;
    }
    world.pass_until_an_end()?;
    ensure!(!world.waiting.contains_key(&long), "a long request is passed over, but has time");
    world.finish()?;
    Ok(())
}

/// Far more requests arrive than can be executed, and most are too late. A request that is in time
/// waits for the rest of its batch.
fn check_window(random: &mut Random) -> Check {
    let costs = Costs { fixed: MILLISECOND, ..PAYING };
    let mut world = World::experienced(random, costs, (16, 4))?;
    for _ in 0..80 {
        world.arrive_plainly(60, world.after(MILLISECOND / 2))?;
        world.pass_ns(random.between(50_000, 70_000))?;
    }
    let first = RequestKey(world.arrivals);
    world.arrive_plainly(60, world.after(20 * MILLISECOND))?;
    ensure!(world.waiting.contains_key(&first), "a batch of one request is executed at once");
    for _ in 0..15 {
        world.arrive_plainly(60, world.after(20 * MILLISECOND))?;
    }
    ensure!(world.waiting.is_empty(), "a full batch waits");
    world.finish()?;
    Ok(())
}

/// Requests are executed one by one: as many are admitted as there is time for, and the others are
/// refused on arrival.
fn check_admission(random: &mut Random) -> Check {
    let mut world = World::experienced(random, LINEAR, (2, 4))?;
    let (takes, long_takes) = (LINEAR.of(1, 64), LINEAR.of(1, 640));
    world.arrive_plainly(64, Time::MAX)?;
    let begins = world.after(takes);
    let fitting = random.between(3, 7);
    for _ in 0..12 {
        world.arrive_plainly(64, begins.saturating_add(fitting * takes + takes / 2))?;
    }
    let admitted = world.waiting.len() as u64;
    let expected = fitting - 1..=fitting + 2;
    ensure!(expected.contains(&admitted), "{admitted} are admitted in time for {fitting}");
    // A long request behind them has time for only 0.7 of its execution.
    let long = RequestKey(world.arrivals);
    let short_end = begins.saturating_add(fitting * takes + takes / 2);
    world.arrive_plainly(640, short_end.saturating_add(long_takes / 10 * 7))?;
    ensure!(!world.waiting.contains_key(&long), "what is too long for its time was admitted");
    world.finish()?;
    Ok(())
}

/// Executions never take longer than expected: after a few hundred of them, a batch may end shortly
/// before its deadlines.
fn check_caution(random: &mut Random) -> Check {
    let mut world = World::experienced(random, PAYING, (16, 40))?;
    // All requests together take 1 ms.
    world.arrive_plainly(256, Time::MAX)?;
    let begins = world.after(PAYING.of(1, 256));
    for _ in 0..15 {
        world.arrive_plainly(60, begins.saturating_add(1_120_000))?;
    }
    let executions = world.finish()?;
    ensure!(world.late == 0, "{} of a batch are late", world.late);
    ensure!(executions == 2, "{executions} executions, although there was time for a batch");
    Ok(())
}

impl World {
    /// Creates a scene with one instance, batches of at most these rows, and a scheduler that has
    /// executed a request of each of these lengths alone this many times.
    fn experienced(
        random: &mut Random,
        costs: Costs,
        (max_rows, times): (u32, u32),
    ) -> Result<World, String> {
        let mut world = World::scene(Kind::PaddedDeadlines, random, max_rows, costs)?;
        for length in [4, 8, 16, 32, 64, 128, 256, 512, 1024] {
            for _ in 0..times {
                world.arrive_plainly(length, Time::MAX)?;
                world.pass_ns(10 * MILLISECOND)?;
            }
        }
        Ok(world)
    }

    /// Advances time to the end of the next execution, if there is one.
    fn pass_until_an_end(&mut self) -> Check {
        let ends = self.timed.lanes.values().copied().flatten().min();
        self.pass_until(ends.unwrap_or(self.timed.now))
    }
}
