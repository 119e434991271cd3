//! Loads with deadlines: levels, and predictions that turn out to be wrong.

use galatea_policy::{DynamicBatcherSpec, RequestKey, Time};
use galatea_simulate::SimulationWorld;

use super::super::{Costs, Kind, World};
use crate::check::{Check, ensure};
use crate::random::Random;

/// The request without a deadline is at a later level than all requests with one, so it never gets
/// a turn before them.
pub(super) fn check_levels(random: &mut Random) -> Check {
    let mut world = World::scene(Kind::Deadlines, random, 1, Costs::by_element(100, 0))?;
    world.rebuild(DynamicBatcherSpec {
        priority_levels: 2,
        default_priority_level: 2,
        ..DynamicBatcherSpec::default()
    });
    world.add_instance()?;
    world.arrive_with(0, 1, 0, 1, Time::MAX)?;
    let later = RequestKey(world.arrivals);
    world.arrive_with(0, 1, 0, 2, Time::MAX)?;
    for _ in 0..20 {
        world.arrive_with(0, 1, 0, 1, world.after(1_000))?;
        world.pass_ns(100)?;
    }
    ensure!(world.waiting.contains_key(&later), "{later:?} goes before those of level 1");
    world.pass_until(Time::MAX)
}

/// The first executions are so slow that every later request looks hopeless. The scheduler
/// discovers its mistake even if more requests arrive than it considers possible, in which case
/// batches would wait for more requests.
pub(super) fn check_recovery(random: &mut Random) -> Check {
    let mut world = World::scene(Kind::Deadlines, random, 8, Costs::by_element(10_000, 0))?;
    world.objective_ns = 1_000;
    world.rebuild(DynamicBatcherSpec::default());
    world.add_instance()?;
    // The second probe reveals that executions are fast again.
    let (slow, arrivals, gap_ns, least) = match random.between(0, 1) {
        0 => (random.between(1, 5), 200, 20_000, 150),
        _ => (60, 500, 3_000, 350),
    };
    for number in 0..arrivals {
        if number == slow {
            world.costs.fixed = 100;
        }
        world.arrive_with(0, 1, 0, 0, Time::MAX)?;
        world.pass_ns(gap_ns)?;
    }
    let executions = world.timed.executions;
    ensure!(executions >= least, "only {executions} of {arrivals} requests were executed");
    Ok(())
}
