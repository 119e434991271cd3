//! The compute of requests: expected before their executions, and divided among them afterwards.

/// The weight of an execution in the expectation: each one counts 15/16 of the next.
const DECAY: u128 = 16;

/// Binary places of the sums.
const PLACES: u32 = 16;

/// The work that a request counts as at most, so that no product overflows.
const WORK_MAX: u64 = 1 << 40;

fn counted(work: u64) -> u128 {
    u128::from(work.clamp(1, WORK_MAX))
}

/// The expected compute of a request, by the latest requests of the model.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct ExpectedCompute {
    compute: u128,
    work: u128,
}

impl ExpectedCompute {
    /// Returns the expected nanoseconds of a request, 0 before the first measurement.
    pub(super) fn of(self, work: u64) -> u64 {
        let expected = (self.compute * counted(work)).checked_div(self.work).unwrap_or(0);
        u64::try_from(expected).unwrap_or(u64::MAX)
    }

    /// Records the measured compute of a request. Requests that were not executed teach nothing.
    pub(super) fn learn(&mut self, work: u64, measured_ns: u64) {
        if measured_ns == 0 {
            return;
        }
        let newest = |sum: u128, value: u128| sum - sum / DECAY + (value << PLACES);
        self.compute = newest(self.compute, u128::from(measured_ns));
        self.work = newest(self.work, counted(work));
    }
}

/// Divides the duration of an execution among the requests of its batch by their work.
///
/// The parts add up to the duration exactly, and no part differs from its exact value by a
/// nanosecond or more. A request without work counts as one unit of work.
pub fn divide_compute(
    duration_ns: u64,
    works: impl Iterator<Item = u64> + Clone,
) -> impl Iterator<Item = u64> {
    let total: u128 = works.clone().map(counted).sum();
    let (mut before, mut done) = (0, 0_u64);
    works.map(move |work| {
        before += counted(work);
        let until = u64::try_from(u128::from(duration_ns) * before / total);
        let until = until.expect("the parts of a duration are at most the duration");
        let part = until - done;
        done = until;
        part
    })
}
