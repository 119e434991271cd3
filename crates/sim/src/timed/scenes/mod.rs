//! Targeted loads.

mod deadlines;
mod known_costs;
mod padded_deadlines;
mod padding;

use galatea_policy::{DynamicBatcherSpec, Time};
use galatea_simulate::SimulationWorld;

use super::{Costs, Kind, World};
use crate::check::{Check, ensure};
use crate::random::Random;

pub(super) fn check_deadlines(random: &mut Random) -> Check {
    deadlines::check_recovery(random)?;
    deadlines::check_levels(random)
}

pub(super) fn check_padding(random: &mut Random) -> Check {
    check_gain(Kind::Padded, random)?;
    padding::check_luck(random)?;
    padding::check_spread(random)?;
    padding::check_patience(random)
}

pub(super) fn check_padded_deadlines(random: &mut Random, seed: u64) -> Check {
    check_gain(Kind::PaddedDeadlines, random)?;
    padded_deadlines::check_order(random)?;
    known_costs::check_known_costs(random)?;
    padded_deadlines::check_goodput(seed)
}

/// Many requests of one length arrive at once, with execution costs that depend little on batch
/// size: the batches grow to the permitted maximum.
fn check_gain(kind: Kind, random: &mut Random) -> Check {
    let mut world = World::new(kind, random);
    let length = random.between_u32(1, 64);
    world.costs = Costs::by_element(1_000_000, 1);
    world.objective_ns =
        if kind.has_deadlines() { random.pick(&[u64::MAX, 1_000_000_000]) } else { u64::MAX };
    world.rebuild(DynamicBatcherSpec::default());
    world.add_instance()?;
    for _ in 0..400 {
        world.arrive_plainly(length, Time::MAX)?;
    }
    world.pass_until(Time::MAX)?;
    let allowed = u64::from(world.max_rows).min(world.budget / u64::from(length)).max(1);
    let expected = 40 + 400 / allowed + 1;
    let executions = world.timed.executions;
    ensure!(executions <= expected, "{executions} executions of 400, {allowed} at once");
    Ok(())
}

impl World {
    /// Creates a scene with one instance and batches of at most these rows, without any other
    /// limit.
    fn scene(
        kind: Kind,
        random: &mut Random,
        max_rows: u32,
        costs: Costs,
    ) -> Result<World, String> {
        let mut world = World::new(kind, random);
        (world.max_rows, world.costs) = (max_rows, costs);
        (world.budget, world.objective_ns) = (u64::MAX, u64::MAX);
        world.rebuild(DynamicBatcherSpec::default());
        world.add_instance()?;
        Ok(world)
    }
}
