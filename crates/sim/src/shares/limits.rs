//! Random requests beside limits per second.

use galatea_policy::{TenantLimit, TenantLimits, TenantUsage, Time};

use crate::check::{Check, ensure};
use crate::random::Random;

const SECOND: i128 = 1_000_000_000;

/// A limit with everything that was taken from it.
struct NaiveLimit {
    per_second: u64,
    taken: Vec<(u64, u64)>,
}

impl NaiveLimit {
    fn new(per_second: Option<u64>) -> Option<Self> {
        per_second.map(|per_second| Self { per_second, taken: Vec::new() })
    }

    /// Returns true if the amount is available: since any earlier time, at most a second's amount
    /// and the amounts of the time that has passed have been taken.
    fn has(&self, now: u64, amount: u64) -> bool {
        let burst = i128::from(self.per_second);
        let needed = i128::from(amount.min(self.per_second)) * SECOND;
        let mut level = burst * SECOND;
        let mut is_enough = level >= needed;
        for (time, taken) in self.taken.iter().rev() {
            level -= i128::from(*taken) * SECOND;
            let filled = i128::from(now - time) * burst;
            is_enough &= level + filled >= needed;
        }
        is_enough
    }

    /// Returns true if the amount is available after this wait and not earlier.
    fn has_first_at(&self, now: u64, wait_ns: u64, amount: u64) -> bool {
        let until = now + wait_ns;
        self.has(until, amount) && (wait_ns == 0 || !self.has(until - 1, amount))
    }
}

/// Runs the random requests of a seed.
///
/// # Errors
///
/// Returns the broken rule.
pub fn fuzz_tenant_limits(seed: u64) -> Check {
    let mut random = Random::new(seed ^ 0x11_417);
    let mut draw = |choices: &[u64]| {
        let is_limited = random.percent(70);
        is_limited.then(|| random.pick(choices))
    };
    let limits = TenantLimits {
        requests: draw(&[1, 3, 10, 100]),
        bytes: draw(&[7, 100, 4096]),
        compute_ms: draw(&[1, 10, 500]),
    };
    let nanoseconds = limits.compute_ms.map(|milliseconds| milliseconds * 1_000_000);
    let mut naive = [limits.requests, limits.bytes, nanoseconds].map(NaiveLimit::new);
    let mut usage = TenantUsage::new(&limits, Time(0));
    let mut now = 0;
    for _ in 0..40 {
        now += random.pick(&[0, 1_000, 10_000_000, 100_000_000, 900_000_000]);
        if random.percent(30) {
            let compute_ns = random.between(1, 30_000_000);
            usage.charge_compute(Time(now), compute_ns);
            take(&mut naive[2], now, compute_ns);
            continue;
        }
        let bytes = random.pick(&[0, 1, 50, 5_000]);
        request(&mut usage, &mut naive, now, bytes)
            .map_err(|message| format!("tenant limits: {message} @{now}"))?;
    }
    Ok(())
}

fn take(limit: &mut Option<NaiveLimit>, now: u64, amount: u64) {
    if let Some(limit) = limit {
        limit.taken.push((now, amount));
    }
}

fn request(
    usage: &mut TenantUsage,
    naive: &mut [Option<NaiveLimit>; 3],
    now: u64,
    bytes: u64,
) -> Check {
    let amounts = [1, bytes, 0];
    let has_all = |naive: &[Option<NaiveLimit>; 3], time: u64| {
        let has = |(limit, amount): (&Option<NaiveLimit>, u64)| {
            limit.as_ref().is_none_or(|limit| limit.has(time, amount))
        };
        naive.iter().zip(amounts).all(has)
    };
    match usage.admit(Time(now), bytes) {
        Ok(()) => {
            ensure!(has_all(naive, now), "a request beyond the limits is admitted");
            for (limit, amount) in naive.iter_mut().zip(amounts) {
                take(limit, now, amount);
            }
        }
        Err(exceeded) => {
            let wait_ns = exceeded.retry_after_ns;
            ensure!(!has_all(naive, now), "a request within the limits is refused");
            ensure!(has_all(naive, now + wait_ns), "{wait_ns} ns is too short a wait");
            let index = match exceeded.limit {
                TenantLimit::Requests => 0,
                TenantLimit::Bytes => 1,
                TenantLimit::Compute => 2,
            };
            let named = naive[index].as_ref().ok_or("a limit that doesn't exist is exceeded")?;
            let is_exact = named.has_first_at(now, wait_ns, amounts[index]);
            ensure!(is_exact, "{exceeded:?} isn't the wait of its limit");
        }
    }
    Ok(())
}
