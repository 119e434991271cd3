//! The settings, costs and arrivals of a seed.

use galatea_policy::{
    DynamicBatcherSpec, QueuePolicy, SchedulerEvent, SchedulingMode, Time, TimeoutAction,
};
use galatea_simulate::{SchedulerSimulation, SimulationWorld};

use super::knowledge::Knowledge;
use super::{Costs, Kind, OwnDeadlines, World, settings};
use crate::check::Check;
use crate::random::Random;

impl World {
    pub(super) fn new(kind: Kind, random: &mut Random) -> Self {
        match kind {
            Kind::Deadlines => World::by_deadlines(random),
            Kind::Padded => World::padded(random),
            Kind::PaddedDeadlines => World::padded_by_deadlines(random),
        }
    }

    /// Creates a world without limits and costs.
    fn empty(kind: Kind) -> Self {
        World {
            kind,
            timed: SchedulerSimulation::new(settings(1, SchedulingMode::Default)),
            queue: DynamicBatcherSpec::default(),
            objective_ns: u64::MAX,
            budget: u64::MAX,
            max_rows: 1,
            costs: Costs::default(),
            batches_take: None,
            longest: 0,
            own_deadlines: OwnDeadlines::Few,
            arrivals: 0,
            moved_back: 0,
            waiting: std::collections::BTreeMap::new(),
            knowledge: Knowledge::new(kind),
            passed_over: 0,
            late: 0,
            refused: 0,
            refused_late: 0,
            recovered_at: None,
            probing: None,
            is_draining: false,
            is_drained: false,
        }
    }

    fn by_deadlines(random: &mut Random) -> Self {
        let mut world = World::empty(Kind::Deadlines);
        world.max_rows = random.between_u32(1, 8);
        world.costs = Costs {
            fixed: random.between(1, 400),
            row: random.between(1, 100),
            element: random.pick(&[0, 10, 50]),
            square: 0,
        };
        let levels = random.pick(&[0, 0, 2]);
        let policy = QueuePolicy {
            default_timeout_ns: random.pick(&[0, 0, 2_000]),
            max_queue_size: random.pick(&[0, 0, 5]),
            ..QueuePolicy::default()
        };
        let full = world.costs.of(world.max_rows, 0);
        world.objective_ns = random.pick(&[full, full * 2, full * 4, u64::MAX]);
        world.own_deadlines =
            random.pick(&[OwnDeadlines::Few, OwnDeadlines::Few, OwnDeadlines::Most]);
        world.rebuild(queue(levels, policy, 0));
        world
    }

    fn padded(random: &mut Random) -> Self {
        let mut world = World::empty(Kind::Padded);
        let levels = random.pick(&[0, 0, 2]);
        let policy = QueuePolicy {
            timeout_action: random.pick(&[TimeoutAction::Reject, TimeoutAction::Delay]),
            default_timeout_ns: random.pick(&[0, 0, 20_000]),
            max_queue_size: random.pick(&[0, 0, 30]),
            ..QueuePolicy::default()
        };
        let max_queue_delay_ns = random.pick(&[0, 0, 500, 5_000]);
        world.budget = random.pick(&[u64::MAX, 40, 200, 1_000]);
        world.max_rows = random.between_u32(2, 16);
        world.costs = padded_costs(random, &[0, 50, 500, 5_000]);
        world.longest = random.pick(&[8, 64, 256]);
        world.rebuild(queue(levels, policy, max_queue_delay_ns));
        world
    }

    fn padded_by_deadlines(random: &mut Random) -> Self {
        let mut world = World::empty(Kind::PaddedDeadlines);
        let levels = random.pick(&[0, 0, 2]);
        world.costs = padded_costs(random, &[50, 500, 5_000]);
        world.longest = random.pick(&[8, 64, 256]);
        world.max_rows = random.between_u32(2, 16);
        let (costs, longest) = (world.costs, world.longest);
        let full_ns = costs.of(world.max_rows, longest / 3 + 1) + costs.of(1, longest);
        let policy = QueuePolicy {
            default_timeout_ns: random.pick(&[0, 0, full_ns]),
            max_queue_size: random.pick(&[0, 0, 30]),
            ..QueuePolicy::default()
        };
        world.objective_ns = random.pick(&[full_ns, 2 * full_ns, 5 * full_ns, u64::MAX]);
        world.budget = random.pick(&[u64::MAX, 40, 200, 1_000]);
        world.rebuild(queue(levels, policy, 0));
        world
    }

    /// Runs a load.
    pub(super) fn live(&mut self, random: &mut Random) -> Check {
        let lanes_max = if self.kind.is_padded() { 2 } else { 3 };
        for _ in 0..random.between_u32(1, lanes_max) {
            self.add_instance()?;
        }
        let gap = self.draw_gap(random);
        for _ in 0..self.draw_requests(random) {
            self.pass_ns(random.between(0, 2 * gap))?;
            match random.between(1, 100) {
                1..=4 => self.cancel(random)?,
                5..=6 => self.step(SchedulerEvent::Tick)?,
                7 => (0..random.between(1, 80)).try_for_each(|_| self.arrive(random))?,
                _ => self.arrive(random)?,
            }
        }
        self.drain()?;
        self.check_promises()
    }

    /// Returns the mean time between arrivals.
    fn draw_gap(&self, random: &mut Random) -> u64 {
        if self.kind.is_padded() {
            return self.costs.of(1, self.longest / 3) / random.pick(&[1, 2, 4]);
        }
        self.costs.of(self.max_rows, 0) / random.between(1, 2 * u64::from(self.max_rows))
    }

    fn draw_requests(&self, random: &mut Random) -> u64 {
        match (self.kind, self.own_deadlines) {
            (Kind::Deadlines, OwnDeadlines::Few) => random.between(10, 150),
            (Kind::Deadlines, OwnDeadlines::Most) => random.between(10, 400),
            (Kind::Padded, _) => random.between(50, 600),
            (Kind::PaddedDeadlines, _) => random.between(50, 900),
        }
    }

    fn arrive(&mut self, random: &mut Random) -> Check {
        if !self.kind.is_padded() {
            let class = random.pick(&[0, 0, 2, 3]);
            let deadline = match (self.own_deadlines, random.between(1, 20)) {
                (OwnDeadlines::Few, 1..=5) => self.after(random.between(0, 2_000)),
                (OwnDeadlines::Most, 2..) => self.after(random.between(500, 5_000)),
                _ => Time::MAX,
            };
            let rows = random.between_u32(1, self.max_rows.min(2));
            return self.arrive_with(class, rows, class, random.pick(&[0, 1, 2]), deadline);
        }
        let length = match random.between(1, 10) {
            1 => self.longest,
            2 => random.between_u32(0, self.longest),
            _ => random.between_u32(1, self.longest / 3 + 1),
        };
        let deadline = match self.kind.has_deadlines() && random.between(1, 6) == 1 {
            true => self.after(random.between(0, 4 * self.costs.of(4, self.longest))),
            false => Time::MAX,
        };
        let class = random.pick(&[0, 0, 0, 0, 1]);
        let rows = random.pick(&[1, 1, 1, 2]);
        self.arrive_with(length, rows, class, random.pick(&[0, 1, 2]), deadline)
    }
}

fn padded_costs(random: &mut Random, fixed: &[u64]) -> Costs {
    let (fixed, element) = (random.pick(fixed), random.between(1, 20));
    Costs { fixed, row: 0, element, square: random.pick(&[0, 0, 2]) }
}

fn queue(
    levels: u64,
    default_queue_policy: QueuePolicy,
    max_queue_delay_ns: u64,
) -> DynamicBatcherSpec {
    DynamicBatcherSpec {
        priority_levels: levels,
        default_priority_level: levels.min(1),
        default_queue_policy,
        max_queue_delay_ns,
        ..DynamicBatcherSpec::default()
    }
}
