//! Loads with different lengths: how much padding is allowed, lucky executions, and which requests
//! are delayed.

use galatea_policy::{RequestKey, Time};

use super::super::{Costs, Kind, World};
use crate::check::{Check, ensure};
use crate::random::Random;

/// A few long requests among short ones, with mostly fixed execution costs: without a bound, the
/// batches would be almost entirely padding.
pub(super) fn check_spread(random: &mut Random) -> Check {
    let long = random.between_u32(100, 256);
    let mut world = World::scene(Kind::Padded, random, 16, Costs::by_element(1_000_000, 1))?;
    for number in 0..400 {
        world.arrive_plainly(if number % 20 == 0 { long } else { 1 }, Time::MAX)?;
    }
    world.pass_until(Time::MAX)
}

/// Batches usually take three times as long as their requests one by one, but occasionally only a
/// tenth: the typical duration counts, not the best one seen.
pub(super) fn check_luck(random: &mut Random) -> Check {
    let length = random.between_u32(8, 64);
    let mut world = World::scene(Kind::Padded, random, 4, Costs::by_element(0, 100))?;
    world.batches_take = Some([30, 30, 1, 30, 30]);
    for _ in 0..300 {
        world.arrive_plainly(length, Time::MAX)?;
    }
    world.pass_until(Time::MAX)?;
    world.check_long_load()
}

/// Once it is known that batches save only a twentieth of the time, a long request isn't delayed
/// for such a batch of younger ones. It is delayed for a batch that takes half the time.
pub(super) fn check_patience(random: &mut Random) -> Check {
    let (mut world, key, short) = wait_with_a_long_one(random, 700)?;
    let soon_ns = 3 * world.costs.of(1, short);
    world.pass_ns(soon_ns)?;
    ensure!(!world.waiting.contains_key(&key), "{key:?} is put off for a batch that gains little");
    world.pass_until(Time::MAX)?;
    let (mut world, key, _) = wait_with_a_long_one(random, 10_000)?;
    ensure!(world.waiting.contains_key(&key), "{key:?} is in a batch of short requests");
    let left = world.waiting.len();
    ensure!(left <= 5, "{left} of 17 wait still, although a batch of most is twice as fast");
    world.pass_until(Time::MAX)
}

/// Queues a short request, a long one and 15 more short ones during an execution, and lets that
/// execution end. Each execution has this fixed cost. Returns the key of the long request and the
/// length of the others.
fn wait_with_a_long_one(
    random: &mut Random,
    fixed: u64,
) -> Result<(World, RequestKey, u32), String> {
    let mut world = World::scene(Kind::Padded, random, 16, Costs::by_element(fixed, 1_000))?;
    for length in [4, 8, 16, 32, 64, 128, 256, 512] {
        for _ in 0..40 {
            world.arrive_plainly(length, Time::MAX)?;
            world.pass_ns(10_000_000)?;
        }
    }
    let (short, long) = (random.between_u32(9, 11), random.between_u32(190, 210));
    world.arrive_plainly(512, Time::MAX)?;
    world.arrive_plainly(short, Time::MAX)?;
    let key = RequestKey(world.arrivals);
    world.arrive_plainly(long, Time::MAX)?;
    for _ in 0..15 {
        world.arrive_plainly(short, Time::MAX)?;
    }
    world.pass_ns(world.costs.of(1, 512))?;
    Ok((world, key, short))
}
