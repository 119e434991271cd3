//! Random tenants whose requests share batches, and executions that cost what they cost.

use galatea_policy::{
    ComputeCharge, FairShareSettings, FairShares, TenantId, Time, divide_compute,
};

use super::ledger::SharesLedger;
use super::naive::{NaiveCharge, NaiveShares};
use super::tenant::{SimulatedTenant, TenantBehavior};
use crate::check::{Check, ensure};
use crate::random::Random;

/// The duration of an execution by its work.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum ComputeCurve {
    Linear,
    /// Most of the duration doesn't depend on the work.
    Fixed,
    Concave,
}

impl ComputeCurve {
    /// Returns the duration of an execution with this percentage of a unit of work.
    fn duration(self, percent: u64, unit_ns: u64) -> u64 {
        let hundredths = match self {
            Self::Linear => percent,
            Self::Fixed => 300 + percent / 4,
            Self::Concave => 10 * percent.isqrt(),
        };
        hundredths * unit_ns / 100
    }
}

struct SharedExecution {
    ends: u64,
    duration: u64,
    members: Vec<(ComputeCharge, NaiveCharge)>,
    works: Vec<u64>,
    /// True if the requests return unexecuted.
    is_refused: bool,
}

struct SharesWorld {
    shares: FairShares,
    naive: NaiveShares,
    ledger: SharesLedger,
    tenants: Vec<SimulatedTenant>,
    instances: Vec<Option<SharedExecution>>,
    batch_max: usize,
    curve: ComputeCurve,
    unit_ns: u64,
    /// The chance of a cancellation, a refused execution or a changed weight, in percent.
    fault_percent: u64,
    now: u64,
    random: Random,
}

/// Runs the short world of a seed: cancellations, refused executions, changed weights.
///
/// # Errors
///
/// Returns the broken rule.
pub fn fuzz_shares(seed: u64) -> Check {
    let mut random = Random::new(seed ^ 0x5_4A2E);
    let count = random.between(2, 6);
    let weights: Vec<u32> = (0..count).map(|_| random.pick(&[1, 1, 2, 3, 10, 1000])).collect();
    let unit_ns = random.between(100_000, 1_000_000);
    let behaviors = weights.iter().map(|_| {
        let interval_ns = unit_ns * random.pick(&[3, 10, 50]);
        match random.between(1, 4) {
            1 => TenantBehavior::Backlogged,
            2 => TenantBehavior::Bursts { count: random.between(2, 12), interval_ns },
            _ => TenantBehavior::Bursts { count: 1, interval_ns },
        }
    });
    let behaviors: Vec<TenantBehavior> = behaviors.collect();
    let patience = unit_ns * random.pick(&[5, 20, 100]);
    let mut world = SharesWorld::new(patience, unit_ns, &weights, &behaviors, random);
    world.fault_percent = world.random.pick(&[0, 0, 3]);
    let until = unit_ns * 150;
    world.run(until).map_err(|message| format!("shares: {message} @{}", world.now))
}

/// Runs a world of 12 seconds in which some tenants always have waiting requests, and checks their
/// shares over each ten seconds.
///
/// # Errors
///
/// Returns the broken rule.
pub fn check_shares(seed: u64) -> Check {
    let mut random = Random::new(seed ^ 0x5_4A2F);
    let (mut weights, mut behaviors) = (Vec::new(), Vec::new());
    for _ in 0..random.between(2, 4) {
        weights.push(random.pick(&[100_000, 200_000, 300_000, 400_000]));
        behaviors.push(TenantBehavior::Backlogged);
    }
    for _ in 0..random.between(0, 2) {
        weights.push(random.pick(&[1, 100_000]));
        let interval_ns = random.pick(&[5_000_000, 50_000_000]);
        behaviors.push(TenantBehavior::Bursts { count: random.between(1, 10), interval_ns });
    }
    let unit_ns = random.between(100_000, 250_000);
    let patience = FairShareSettings::default().patience_ns;
    let mut world = SharesWorld::new(patience, unit_ns, &weights, &behaviors, random);
    let until = 12_000_000_000;
    world.run(until).map_err(|message| format!("shares over time: {message} @{}", world.now))
}

impl SharesWorld {
    fn new(
        patience_ns: u64,
        unit_ns: u64,
        weights: &[u32],
        behaviors: &[TenantBehavior],
        mut random: Random,
    ) -> Self {
        let mut shares = FairShares::new(FairShareSettings { patience_ns });
        for (tenant, weight) in (0..).zip(weights) {
            shares.set_weight(TenantId(tenant), *weight);
        }
        let is_backlogged = |one: &TenantBehavior| *one == TenantBehavior::Backlogged;
        let ledger = SharesLedger::new(patience_ns, behaviors.iter().map(is_backlogged).collect());
        let tenants = behaviors.iter().map(|one| SimulatedTenant::new(*one, &mut random));
        let tenants = tenants.collect();
        let curves = [ComputeCurve::Linear, ComputeCurve::Fixed, ComputeCurve::Concave];
        let instances = random.between(1, 2);
        Self {
            shares,
            naive: NaiveShares::new(patience_ns, weights),
            ledger,
            tenants,
            instances: (0..instances).map(|_| None).collect(),
            batch_max: random.pick(&[1, 2, 8]),
            curve: random.pick(&curves),
            unit_ns,
            fault_percent: 0,
            now: 0,
            random,
        }
    }

    fn run(&mut self, until: u64) -> Check {
        while let Some(next) = self.next_event()
            && next <= until
        {
            self.now = next;
            for instance in 0..self.instances.len() {
                let is_due = |one: &mut SharedExecution| one.ends <= next;
                if let Some(execution) = self.instances[instance].take_if(is_due) {
                    self.finish(execution)?;
                }
            }
            self.arrive();
            if self.random.percent(self.fault_percent) {
                self.disturb();
            }
            self.fill()?;
        }
        self.ledger.check_waits(self.now)
    }

    fn next_event(&self) -> Option<u64> {
        let ends = self.instances.iter().flatten().map(|execution| execution.ends);
        let arrivals = self.tenants.iter().filter_map(|tenant| tenant.next_arrival);
        ends.chain(arrivals).min().map(|time| time.max(self.now))
    }

    fn arrive(&mut self) {
        for index in 0..self.tenants.len() {
            let tenant = &mut self.tenants[index];
            if tenant.next_arrival.is_none_or(|time| time > self.now) {
                continue;
            }
            for _ in tenant.arrivals(self.now, &mut self.random) {
                self.shares.arrive(id(index), Time(self.now));
                self.naive.arrive(index, self.now);
                if self.naive.tenants[index].waiting == 1 {
                    self.ledger.begin_wait(index, self.now, &self.naive);
                }
            }
        }
    }

    /// Cancels a request or changes a weight.
    fn disturb(&mut self) {
        let last = self.tenants.len() as u64 - 1;
        let index = usize::try_from(self.random.between(0, last)).expect("small");
        if self.random.percent(20) {
            let weight = self.random.pick(&[1, 5, 50]);
            self.shares.set_weight(id(index), weight);
            self.naive.tenants[index].weight = u128::from(weight);
            self.ledger.weights_changed();
        } else if self.tenants[index].queue.pop_back().is_some() {
            self.shares.leave(id(index));
            self.naive.leave(index);
            if self.naive.tenants[index].waiting == 0 {
                self.ledger.end_wait(index);
            }
        }
    }

    /// Starts executions on idle instances while requests wait.
    fn fill(&mut self) -> Check {
        for instance in 0..self.instances.len() {
            if self.instances[instance].is_none() {
                self.instances[instance] = self.form_batch()?;
            }
        }
        Ok(())
    }

    fn form_batch(&mut self) -> Result<Option<SharedExecution>, String> {
        let (mut members, mut works, mut percent) = (Vec::new(), Vec::new(), 0);
        while members.len() < self.batch_max {
            let Some(index) = self.choose()? else { break };
            self.ledger.check_service(index, self.now, &self.naive)?;
            let tenant = &mut self.tenants[index];
            let work = tenant.take(self.now).ok_or("a tenant without requests is served")?;
            percent += work * tenant.cost_percent;
            let charge = self.shares.dispatch(id(index), work, Time(self.now));
            let naive = self.naive.dispatch(index, work, self.now);
            ensure!(
                u128::from(charge.expected_ns()) == naive.expected
                    && charge.is_ahead() == naive.is_ahead,
                "{charge:?} differs from {naive:?}"
            );
            self.ledger.dispatched(&naive);
            if self.naive.tenants[index].waiting > 0 {
                self.ledger.begin_wait(index, self.now, &self.naive);
            } else {
                self.ledger.end_wait(index);
            }
            members.push((charge, naive));
            works.push(work);
        }
        if members.is_empty() {
            return Ok(None);
        }
        let duration = self.curve.duration(percent, self.unit_ns);
        let is_refused = self.random.percent(self.fault_percent);
        self.ledger.executed(duration);
        let ends = self.now + duration;
        Ok(Some(SharedExecution { ends, duration, members, works, is_refused }))
    }

    /// Returns the tenant that is served next. One is served if and only if a request waits.
    fn choose(&self) -> Result<Option<usize>, String> {
        let chosen = self.shares.next_tenant(Time(self.now)).map(|tenant| tenant.0 as usize);
        let is_waiting = self.tenants.iter().any(|tenant| !tenant.queue.is_empty());
        ensure!(
            chosen.is_some() == is_waiting,
            "{chosen:?} is served, requests wait: {is_waiting}"
        );
        let expected = self.naive.next(self.now);
        ensure!(chosen == expected, "{chosen:?} is served, {expected:?} is next");
        Ok(chosen)
    }

    fn finish(&mut self, execution: SharedExecution) -> Check {
        let SharedExecution { duration, members, works, is_refused, .. } = execution;
        let parts: Vec<u64> = divide_compute(duration, works.iter().copied()).collect();
        ensure!(parts.iter().sum::<u64>() == duration, "{parts:?} aren't {duration} ns");
        let total: u128 = works.iter().copied().map(u128::from).sum();
        for ((part, work), (charge, naive)) in parts.into_iter().zip(works).zip(members) {
            let exact = u128::from(duration) * u128::from(work);
            let is_close = exact.abs_diff(u128::from(part) * total) < total;
            ensure!(is_close, "{part} of {duration} ns for {work} of {total}");
            let measured = if is_refused { 0 } else { part };
            self.shares.settle(charge, measured);
            self.naive.settle(&naive, measured);
            self.ledger.settled(self.now, &naive, measured, &self.naive)?;
        }
        Ok(())
    }
}

fn id(index: usize) -> TenantId {
    TenantId(u32::try_from(index).expect("few tenants"))
}
