//! The compute that each tenant has got, and the rules for it.

use std::collections::VecDeque;

use super::naive::{NaiveCharge, NaiveShares};
use crate::check::{Check, ensure};

/// The window in which shares are compared with weights.
const WINDOW_NS: u64 = 10_000_000_000;

/// A tenant that waits for its next service.
#[derive(Clone, Debug)]
struct Wait {
    since: u64,
    /// For each other tenant, the compute after which its turn is behind that of this one.
    lead: Vec<u128>,
    /// The expected compute of its requests that were dispatched in their turns since then.
    dispatched: Vec<u128>,
    /// The compute that it was charged and given back since then.
    refunds: Vec<u128>,
    /// The compute that this tenant was charged in addition since then.
    extra: u128,
}

#[derive(Clone, Debug)]
pub(super) struct SharesLedger {
    patience: u64,
    waits: Vec<Option<Wait>>,
    /// The largest compute of a request, expected or measured.
    compute_max: u128,
    execution_max: u64,
    have_weights_changed: bool,
    /// The tenants whose requests always wait.
    backlogged: Vec<bool>,
    /// The measured compute of these tenants within the window.
    recent: VecDeque<(u64, usize, u64)>,
    in_window: Vec<u64>,
}

impl SharesLedger {
    pub(super) fn new(patience: u64, backlogged: Vec<bool>) -> Self {
        Self {
            patience,
            waits: vec![None; backlogged.len()],
            compute_max: 0,
            execution_max: 0,
            have_weights_changed: false,
            in_window: vec![0; backlogged.len()],
            backlogged,
            recent: VecDeque::new(),
        }
    }

    /// Records that a tenant with waiting requests begins to wait for its next service.
    pub(super) fn begin_wait(&mut self, tenant: usize, now: u64, naive: &NaiveShares) {
        let own = naive.tenants[tenant].used;
        let lead = naive.tenants.iter().map(|other| {
            let used =
                if other.waiting > 0 { other.used } else { other.used.max(naive.latest_turn) };
            (own.saturating_sub(used) * other.weight) >> 32
        });
        let lead: Vec<u128> = lead.collect();
        self.waits[tenant] = Some(Wait {
            since: now,
            dispatched: vec![0; lead.len()],
            refunds: vec![0; lead.len()],
            lead,
            extra: 0,
        });
    }

    pub(super) fn end_wait(&mut self, tenant: usize) {
        self.waits[tenant] = None;
    }

    pub(super) fn weights_changed(&mut self) {
        self.have_weights_changed = true;
    }

    /// Checks the wait of a tenant that is served now.
    pub(super) fn check_service(&self, tenant: usize, now: u64, naive: &NaiveShares) -> Check {
        let Some(wait) = &self.waits[tenant] else {
            return Err(format!("tenant {tenant} is served and doesn't wait"));
        };
        self.check_wait(tenant, now)?;
        // A charge that was made at another weight is given back at that weight.
        if self.have_weights_changed {
            return Ok(());
        }
        let weight = naive.tenants[tenant].weight;
        for (other, state) in naive.tenants.iter().enumerate() {
            let behind = (state.weight * wait.extra).div_ceil(weight);
            let bound = wait.lead[other] + wait.refunds[other] + behind + self.compute_max + 2;
            let dispatched = wait.dispatched[other];
            ensure!(
                other == tenant || dispatched <= bound,
                "tenant {tenant} waits for {dispatched} ns of tenant {other}, {bound} is the most"
            );
        }
        Ok(())
    }

    /// Checks that a tenant isn't waiting too long.
    fn check_wait(&self, tenant: usize, now: u64) -> Check {
        let Some(wait) = &self.waits[tenant] else { return Ok(()) };
        let services = 2 * (self.waits.len() as u128 + 1);
        let bound = u128::from(self.patience)
            + services * 100 * self.compute_max
            + 2 * u128::from(self.execution_max);
        let waited = now - wait.since;
        ensure!(u128::from(waited) <= bound, "tenant {tenant} waits {waited} ns, {bound} at most");
        Ok(())
    }

    /// Checks the tenants that wait now.
    pub(super) fn check_waits(&self, now: u64) -> Check {
        (0..self.waits.len()).try_for_each(|tenant| self.check_wait(tenant, now))
    }

    pub(super) fn dispatched(&mut self, charge: &NaiveCharge) {
        self.compute_max = self.compute_max.max(charge.expected);
        if !charge.is_ahead {
            for wait in self.waits.iter_mut().flatten() {
                wait.dispatched[charge.tenant] += charge.expected;
            }
        }
    }

    pub(super) fn executed(&mut self, duration: u64) {
        self.execution_max = self.execution_max.max(duration);
    }

    pub(super) fn settled(
        &mut self,
        now: u64,
        charge: &NaiveCharge,
        measured: u64,
        naive: &NaiveShares,
    ) -> Check {
        let tenant = charge.tenant;
        let compute = u128::from(measured);
        self.compute_max = self.compute_max.max(compute);
        for (waiting, wait) in self.waits.iter_mut().enumerate() {
            let Some(wait) = wait else { continue };
            wait.refunds[tenant] += charge.expected.saturating_sub(compute);
            if waiting == tenant {
                wait.extra += compute.saturating_sub(charge.expected);
            }
        }
        self.check_window(now, tenant, measured, naive)
    }

    /// Checks that tenants whose requests always wait have got their shares, within 2 %.
    fn check_window(
        &mut self,
        now: u64,
        tenant: usize,
        measured: u64,
        naive: &NaiveShares,
    ) -> Check {
        if !self.backlogged[tenant] {
            return Ok(());
        }
        self.recent.push_back((now, tenant, measured));
        self.in_window[tenant] += measured;
        let Some(begin) = now.checked_sub(WINDOW_NS) else { return Ok(()) };
        while let Some((time, earlier, compute)) = self.recent.front().copied()
            && time <= begin
        {
            self.in_window[earlier] -= compute;
            self.recent.pop_front();
        }
        let members = || (0..self.backlogged.len()).filter(|one| self.backlogged[*one]);
        let compute: u64 = self.in_window.iter().sum();
        let weights: u128 = members().map(|one| naive.tenants[one].weight).sum();
        for one in members() {
            let due = u128::from(compute) * naive.tenants[one].weight / weights;
            let got = u128::from(self.in_window[one]);
            ensure!(
                due.abs_diff(got) * 50 <= due,
                "tenant {one} got {got} ns in ten seconds before {now}, its share is {due}"
            );
        }
        Ok(())
    }
}
