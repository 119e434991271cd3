//! Loads of a purpose, for a scheduler that knows what executions cost: what a batch leaves to
//! others, who is passed over, what is admitted, and how much caution deadlines need.

use galatea_policy::{RequestKey, Time};
use galatea_simulate::TimedWorld;

use super::super::{Costs, Kind, World};
use crate::check::{Check, ensure};
use crate::random::Random;

/// Batches of such requests pay.
const PAYING: Costs = Costs::by_element(100_000, 1_000);

/// They do not.
const LINEAR: Costs = Costs::by_element(1_000, 1_000);

const MILLISECOND: u64 = 1_000_000;

/// All of these loads.
pub(super) fn check_known_costs(random: &mut Random) -> Check {
    check_consideration(random)?;
    check_passing_over(random)?;
    check_patience(random)?;
    check_window(random)?;
    check_admission(random)?;
    check_caution(random)
}

/// A batch of short requests beside a long one with a deadline, which fits in no batch with them:
/// the batch leaves it its time, but is whole if another instance has time for it.
fn check_consideration(random: &mut Random) -> Check {
    let mut world = World::experienced(random, PAYING, (16, 4))?;
    let instances = random.between_u32(1, 2);
    if instances == 2 {
        world.add_instance()?;
    }
    // One instance is busy for 356 µs, and another one for 366 µs. Then all short requests
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

/// A long request that 16 batches pass over, which have requests before and behind it. What takes
/// its place in the queue's memory afterwards was passed over by none.
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

/// Faster batches are needed than that of a long request alone. It is in the next batch all the
/// same if there is time for all.
fn check_patience(random: &mut Random) -> Check {
    let mut world = World::experienced(random, PAYING, (16, 4))?;
    for _ in 0..100 {
        world.arrive_plainly(60, world.after(20 * MILLISECOND))?;
        // 1.1 to 1.2 times as much work as an instance does one by one.
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

/// Far more arrives than can be executed, most of it too late. What is in time waits for the
/// others of a batch.
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

/// Requests that are executed one by one: as many are admitted as there is time for, and the
/// others are refused when they arrive.
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
    // A long request behind them has time for 0.7 of its execution.
    let long = RequestKey(world.arrivals);
    let short_end = begins.saturating_add(fitting * takes + takes / 2);
    world.arrive_plainly(640, short_end.saturating_add(long_takes / 10 * 7))?;
    ensure!(!world.waiting.contains_key(&long), "what is too long for its time was admitted");
    world.finish()?;
    Ok(())
}

/// Executions that never take longer than expected: after some hundreds of them, a batch may end
/// shortly before the deadlines in it.
fn check_caution(random: &mut Random) -> Check {
    let mut world = World::experienced(random, PAYING, (16, 40))?;
    // All together take 1 ms.
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
    /// One instance, batches of these rows at most, and a scheduler that has seen each of some lengths
    /// so often, alone.
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

    /// Lets time pass until an execution ends, if one does.
    fn pass_until_an_end(&mut self) -> Check {
        let ends = self.timed.lanes.values().copied().flatten().min();
        self.pass_until(ends.unwrap_or(self.timed.now))
    }
}
