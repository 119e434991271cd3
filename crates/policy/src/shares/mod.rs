//! Fair shares of a model's compute among tenants: weighted fair queueing in measured nanoseconds.
//!
//! Each tenant has a *virtual time*: the compute that its requests have used, divided by its
//! weight. The tenant with the earliest virtual time is served next, so over time each tenant with
//! waiting requests gets compute in proportion to its weight. Requests of several tenants may share
//! a batch, because each request of a batch is chosen on its own.
//!
//! - The compute of a request is known only after its execution. Until then the tenant is charged
//!   the expected compute, by the request's work and the latest executions of the model. The
//!   measurement replaces the expectation ([`FairShares::settle`]), so an expectation that is wrong
//!   changes the order of a few requests and no share.
//! - A tenant that returns after a pause starts at the virtual time of the tenant that was served
//!   last. The time without requests earns no credit. A tenant also can't shed the compute that it
//!   has used by pausing.
//! - A tenant with waiting requests that hasn't been served for
//!   [`FairShareSettings::patience_ns`] is served ahead of its turn, longest wait first. A hundredth
//!   of the compute is available for this. A tenant with a tiny weight therefore doesn't starve,
//!   and takes no more than that hundredth beyond its share.
//!
//! # Bounds
//!
//! The state of a tenant takes a few dozen bytes. A step costs O(log n) in tenants with waiting
//! requests. Between two services of a tenant with waiting requests, another tenant is served until
//! its virtual time passes that of the first one, which includes at most one request beyond it.
//!
//! # Example
//!
//! ```
//! use galatea_policy::*;
//!
//! let mut shares = FairShares::new(FairShareSettings::default());
//! let (light, heavy) = (TenantId(0), TenantId(1));
//! shares.set_weight(heavy, 3);
//! for _ in 0..8 {
//!     shares.arrive(light, Time(0));
//!     shares.arrive(heavy, Time(0));
//! }
//! let mut served = [0, 0];
//! for _ in 0..8 {
//!     let tenant = shares.next_tenant(Time(0)).unwrap();
//!     let charge = shares.dispatch(tenant, 1, Time(0));
//!     shares.settle(charge, 1_000);
//!     served[tenant.0 as usize] += 1;
//! }
//! assert_eq!(served, [2, 6]);
//! ```

mod ageing;
mod compute;
mod limits;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use ageing::AgeingCredit;
use compute::ExpectedCompute;
pub use compute::divide_compute;
pub use limits::{TenantLimit, TenantLimitExceeded, TenantLimits, TenantUsage, TokenBucket};

use crate::time::Time;

/// A tenant. The driver numbers tenants from 0, because the numbers are indices of tables.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TenantId(pub u32);

impl TenantId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// The settings of [`FairShares`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FairShareSettings {
    /// The time without service after which a waiting tenant is served ahead of its turn.
    pub patience_ns: u64,
}

impl Default for FairShareSettings {
    fn default() -> Self {
        Self { patience_ns: 1_000_000_000 }
    }
}

/// Compute divided by weight, in nanoseconds with 32 binary places.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct VirtualTime(u128);

impl VirtualTime {
    fn of(compute_ns: u64, weight: u32) -> Self {
        Self((u128::from(compute_ns) << 32) / u128::from(weight))
    }
}

/// The number of an arrival or a service. Among equal tenants, the lower number is first.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct ServiceNumber(u64);

/// The compute that a dispatched request is charged until its execution has been measured.
///
/// Each charge is settled once, with the measured compute. A request that was not executed is
/// settled with 0.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a charge that isn't settled changes the shares of its tenant"]
pub struct ComputeCharge {
    tenant: TenantId,
    work: u64,
    expected_ns: u64,
    /// The charge at the weight of the time of the dispatch.
    advance: VirtualTime,
    is_ahead: bool,
}

impl ComputeCharge {
    /// Returns the tenant.
    #[must_use]
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Returns the expected compute.
    #[must_use]
    pub fn expected_ns(&self) -> u64 {
        self.expected_ns
    }

    /// Returns true if the tenant was served ahead of its turn.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        self.is_ahead
    }
}

/// A tenant's state.
#[derive(Copy, Clone, Debug)]
struct TenantShare {
    weight: u32,
    virtual_time: VirtualTime,
    /// The number of waiting requests.
    waiting: u64,
    /// The time of the latest service, or of the arrival after a pause.
    waits_since: Time,
    number: ServiceNumber,
}

impl Default for TenantShare {
    fn default() -> Self {
        Self {
            weight: 1,
            virtual_time: VirtualTime::default(),
            waiting: 0,
            waits_since: Time::default(),
            number: ServiceNumber::default(),
        }
    }
}

/// The order in which a model serves the requests of its tenants.
#[derive(Clone, Debug)]
pub struct FairShares {
    settings: FairShareSettings,
    tenants: Vec<TenantShare>,
    /// The tenants with waiting requests, in the order of their turns.
    turns: BTreeSet<(VirtualTime, ServiceNumber, TenantId)>,
    /// The same tenants, longest wait first.
    waits: BTreeSet<(ServiceNumber, TenantId)>,
    /// The virtual time of the tenant whose turn was last.
    virtual_now: VirtualTime,
    expected: ExpectedCompute,
    ageing: AgeingCredit,
    next_number: u64,
}

impl FairShares {
    /// Creates a value without tenants. A tenant that has no weight yet has weight 1.
    #[must_use]
    pub fn new(settings: FairShareSettings) -> Self {
        Self {
            settings,
            tenants: Vec::new(),
            turns: BTreeSet::new(),
            waits: BTreeSet::new(),
            virtual_now: VirtualTime::default(),
            expected: ExpectedCompute::default(),
            ageing: AgeingCredit::new(settings.patience_ns),
            next_number: 0,
        }
    }

    /// Sets a tenant's weight. The compute that it has used before counts by its previous weight.
    ///
    /// # Panics
    ///
    /// Panics if the weight is 0.
    pub fn set_weight(&mut self, tenant: TenantId, weight: u32) {
        assert!(weight > 0, "the weight of {tenant:?} is at least 1");
        self.state(tenant).weight = weight;
    }

    /// Records that a request of the tenant waits.
    pub fn arrive(&mut self, tenant: TenantId, now: Time) {
        let virtual_now = self.virtual_now;
        let state = self.state(tenant);
        state.waiting += 1;
        if state.waiting == 1 {
            state.virtual_time = state.virtual_time.max(virtual_now);
            self.begin_wait(tenant, now);
        }
    }

    /// Records that a waiting request of the tenant has left without being dispatched.
    ///
    /// # Panics
    ///
    /// Panics if none waits.
    pub fn leave(&mut self, tenant: TenantId) {
        let state = self.state(tenant);
        assert!(state.waiting > 0, "no request of {tenant:?} waits");
        state.waiting -= 1;
        if state.waiting == 0 {
            self.end_wait(tenant);
        }
    }

    /// Returns the tenant whose first request is dispatched next, or `None` if no request waits.
    #[must_use]
    pub fn next_tenant(&self, now: Time) -> Option<TenantId> {
        let (_, longest) = *self.waits.first()?;
        let waited_ns = now.saturating_since(self.tenants[longest.index()].waits_since);
        if waited_ns >= self.settings.patience_ns && self.ageing.is_available() {
            return Some(longest);
        }
        self.turns.first().map(|(_, _, tenant)| *tenant)
    }

    /// Records that the first request of [`Self::next_tenant`] is dispatched, and charges its
    /// expected compute.
    ///
    /// `work` is the request's part of a batch, in a unit that is the same for all requests of the
    /// model, such as rows.
    ///
    /// # Panics
    ///
    /// Panics if no request of the tenant waits.
    pub fn dispatch(&mut self, tenant: TenantId, work: u64, now: Time) -> ComputeCharge {
        assert!(self.state(tenant).waiting > 0, "no request of {tenant:?} waits");
        let is_ahead = self.turns.first().is_some_and(|(_, _, first)| *first != tenant);
        self.end_wait(tenant);
        let expected_ns = self.expected.of(work);
        let TenantShare { weight, virtual_time, .. } = *self.state(tenant);
        if is_ahead {
            self.ageing.spend(expected_ns);
        } else {
            self.virtual_now = self.virtual_now.max(virtual_time);
        }
        let advance = VirtualTime::of(expected_ns, weight);
        let state = self.state(tenant);
        state.virtual_time.0 += advance.0;
        state.waiting -= 1;
        if state.waiting > 0 {
            self.begin_wait(tenant, now);
        }
        ComputeCharge { tenant, work, expected_ns, advance, is_ahead }
    }

    /// Replaces a charge with the measured compute.
    pub fn settle(&mut self, charge: ComputeCharge, measured_ns: u64) {
        let ComputeCharge { tenant, work, expected_ns, advance, is_ahead } = charge;
        self.expected.learn(work, measured_ns);
        self.ageing.earn(measured_ns);
        if is_ahead {
            self.ageing.correct(expected_ns, measured_ns);
        }
        let state = *self.state(tenant);
        let turn = (state.virtual_time, state.number, tenant);
        let is_waiting = self.turns.remove(&turn);
        let measured = VirtualTime::of(measured_ns, state.weight);
        // The virtual time has grown by the advance and has not been reduced by it since.
        let corrected = VirtualTime(state.virtual_time.0 - advance.0 + measured.0);
        self.state(tenant).virtual_time = corrected;
        if is_waiting {
            self.turns.insert((corrected, state.number, tenant));
        }
    }

    /// Returns the number of waiting requests of a tenant.
    #[must_use]
    pub fn waiting(&self, tenant: TenantId) -> u64 {
        self.tenants.get(tenant.index()).map_or(0, |state| state.waiting)
    }

    fn state(&mut self, tenant: TenantId) -> &mut TenantShare {
        let index = tenant.index();
        if index >= self.tenants.len() {
            self.tenants.resize(index + 1, TenantShare::default());
        }
        &mut self.tenants[index]
    }

    /// Puts a tenant behind those with the same virtual time.
    fn begin_wait(&mut self, tenant: TenantId, now: Time) {
        let number = ServiceNumber(self.next_number);
        self.next_number += 1;
        let state = self.state(tenant);
        (state.waits_since, state.number) = (now, number);
        let turn = (state.virtual_time, number, tenant);
        self.turns.insert(turn);
        self.waits.insert((number, tenant));
    }

    fn end_wait(&mut self, tenant: TenantId) {
        let TenantShare { virtual_time, number, .. } = *self.state(tenant);
        self.turns.remove(&(virtual_time, number, tenant));
        self.waits.remove(&(number, tenant));
    }
}
