//! The order of tenants, found by looking at all of them.

/// A tenant's numbers.
#[derive(Clone, Debug)]
pub(super) struct NaiveTenant {
    pub(super) weight: u128,
    /// Compute by weight, in 2^-32 nanoseconds.
    pub(super) used: u128,
    pub(super) waiting: u64,
    served_at: u64,
    /// The number of the latest service or arrival.
    number: u64,
}

/// A charge for a dispatched request.
#[derive(Clone, Debug)]
pub(super) struct NaiveCharge {
    pub(super) tenant: usize,
    pub(super) expected: u128,
    advance: u128,
    pub(super) is_ahead: bool,
    work: u128,
}

#[derive(Clone, Debug)]
pub(super) struct NaiveShares {
    pub(super) tenants: Vec<NaiveTenant>,
    patience: u64,
    /// The latest start of a turn.
    pub(super) latest_turn: u128,
    /// A hundred times the credit for tenants that have waited too long.
    credit: i128,
    compute_sum: u128,
    work_sum: u128,
    numbers: u64,
}

impl NaiveShares {
    pub(super) fn new(patience: u64, weights: &[u32]) -> Self {
        let tenant = |weight: &u32| NaiveTenant {
            weight: u128::from(*weight),
            used: 0,
            waiting: 0,
            served_at: 0,
            number: 0,
        };
        Self {
            tenants: weights.iter().map(tenant).collect(),
            patience,
            latest_turn: 0,
            credit: 0,
            compute_sum: 0,
            work_sum: 0,
            numbers: 0,
        }
    }

    pub(super) fn arrive(&mut self, tenant: usize, now: u64) {
        let latest_turn = self.latest_turn;
        let one = &mut self.tenants[tenant];
        one.waiting += 1;
        if one.waiting == 1 {
            one.used = one.used.max(latest_turn);
            self.stamp(tenant, now);
        }
    }

    pub(super) fn leave(&mut self, tenant: usize) {
        self.tenants[tenant].waiting -= 1;
    }

    fn stamp(&mut self, tenant: usize, now: u64) {
        let one = &mut self.tenants[tenant];
        (one.served_at, one.number) = (now, self.numbers);
        self.numbers += 1;
    }

    fn waiting(&self) -> impl Iterator<Item = usize> {
        (0..self.tenants.len()).filter(|tenant| self.tenants[*tenant].waiting > 0)
    }

    /// Returns the tenant with the least compute by weight.
    fn turn(&self) -> Option<usize> {
        self.waiting().min_by_key(|one| (self.tenants[*one].used, self.tenants[*one].number))
    }

    pub(super) fn next(&self, now: u64) -> Option<usize> {
        let longest = self.waiting().min_by_key(|one| self.tenants[*one].number)?;
        let is_over = now - self.tenants[longest].served_at >= self.patience;
        if is_over && self.credit > 0 { Some(longest) } else { self.turn() }
    }

    pub(super) fn dispatch(&mut self, tenant: usize, work: u64, now: u64) -> NaiveCharge {
        let is_ahead = self.turn() != Some(tenant);
        let work = u128::from(work);
        let expected = (self.compute_sum * work).checked_div(self.work_sum).unwrap_or(0);
        if is_ahead {
            self.credit -= 100 * signed(expected);
        } else {
            self.latest_turn = self.latest_turn.max(self.tenants[tenant].used);
        }
        let one = &mut self.tenants[tenant];
        let advance = (expected << 32) / one.weight;
        one.used += advance;
        one.waiting -= 1;
        self.stamp(tenant, now);
        NaiveCharge { tenant, expected, advance, is_ahead, work }
    }

    pub(super) fn settle(&mut self, charge: &NaiveCharge, measured: u64) {
        let measured = u128::from(measured);
        if measured > 0 {
            self.compute_sum = self.compute_sum - self.compute_sum / 16 + (measured << 16);
            self.work_sum = self.work_sum - self.work_sum / 16 + (charge.work << 16);
        }
        let limit = i128::from(self.patience);
        self.credit = (self.credit + signed(measured)).min(limit);
        if charge.is_ahead {
            let correction = 100 * (signed(charge.expected) - signed(measured));
            self.credit = (self.credit + correction).min(limit);
        }
        let one = &mut self.tenants[charge.tenant];
        one.used = one.used - charge.advance + (measured << 32) / one.weight;
    }
}

fn signed(number: u128) -> i128 {
    i128::try_from(number).expect("less than 2^127 nanoseconds")
}
