//! The compute that is available for tenants that have waited too long.

/// One part in this many of the compute serves tenants ahead of their turns. A larger part would
/// end long waits sooner, and shares would differ more from the weights.
const PARTS: i128 = 100;

/// A credit that grows with the compute of all requests.
#[derive(Copy, Clone, Debug)]
pub(super) struct AgeingCredit {
    /// The credit in parts of a nanosecond, negative after a service that took more than it.
    parts: i128,
    /// The credit that can be saved. It bounds how much of a short interval serves tenants ahead of
    /// their turns.
    parts_max: i128,
}

impl AgeingCredit {
    /// Creates a credit of 0, which saves at most what this much compute earns.
    pub(super) fn new(compute_ns_max: u64) -> Self {
        Self { parts: 0, parts_max: i128::from(compute_ns_max) }
    }

    pub(super) fn is_available(self) -> bool {
        self.parts > 0
    }

    /// Adds the credit for measured compute.
    pub(super) fn earn(&mut self, measured_ns: u64) {
        self.add(i128::from(measured_ns));
    }

    pub(super) fn spend(&mut self, expected_ns: u64) {
        self.parts -= PARTS * i128::from(expected_ns);
    }

    /// Replaces expected compute that was spent with the measured one.
    pub(super) fn correct(&mut self, expected_ns: u64, measured_ns: u64) {
        self.add(PARTS * (i128::from(expected_ns) - i128::from(measured_ns)));
    }

    fn add(&mut self, parts: i128) {
        self.parts = (self.parts + parts).min(self.parts_max);
    }
}
