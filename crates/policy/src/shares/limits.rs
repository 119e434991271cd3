//! The limits of a tenant: token buckets for requests, bytes and compute.

use crate::time::Time;

/// Nanoseconds in a second, and the parts of a token.
const SECOND_NS: i128 = 1_000_000_000;

/// A limit on an amount per second, which allows bursts.
///
/// The bucket holds at most `burst` tokens, and fills at the limit's rate. An amount that exceeds
/// the burst is admitted when the bucket is full, and leaves a debt.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct TokenBucket {
    per_second: u64,
    burst: u64,
    /// The tokens in billionths, negative after an amount that was larger than they were.
    level: i128,
    /// The time of the level.
    at: Time,
}

impl TokenBucket {
    /// Creates a full bucket.
    ///
    /// # Panics
    ///
    /// Panics if the rate or the burst is 0.
    #[must_use]
    pub fn new(per_second: u64, burst: u64, now: Time) -> Self {
        assert!(per_second > 0 && burst > 0, "a limit of 0 per second admits nothing");
        Self { per_second, burst, level: i128::from(burst) * SECOND_NS, at: now }
    }

    /// Returns the nanoseconds until the amount can be taken; 0 means now.
    #[must_use]
    pub fn wait_ns(&self, now: Time, amount: u64) -> u64 {
        let needed = i128::from(amount.min(self.burst)) * SECOND_NS;
        let missing = needed - self.level_at(now);
        if missing <= 0 {
            return 0;
        }
        let rate = i128::from(self.per_second);
        u64::try_from((missing + rate - 1) / rate).unwrap_or(u64::MAX)
    }

    /// Takes the amount, which may leave a debt.
    pub fn take(&mut self, now: Time, amount: u64) {
        self.level = self.level_at(now) - i128::from(amount) * SECOND_NS;
        self.at = self.at.max(now);
    }

    fn level_at(&self, now: Time) -> i128 {
        let filled = i128::from(now.saturating_since(self.at)) * i128::from(self.per_second);
        (self.level + filled).min(i128::from(self.burst) * SECOND_NS)
    }
}

/// The kind of a limit.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum TenantLimit {
    /// Requests per second.
    Requests,
    /// Bytes of requests per second.
    Bytes,
    /// Milliseconds of compute per second.
    Compute,
}

/// The limits of a tenant, per second. `None` means unlimited.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct TenantLimits {
    /// The number of requests.
    pub requests: Option<u64>,
    /// The number of bytes of requests.
    pub bytes: Option<u64>,
    /// The milliseconds of compute.
    pub compute_ms: Option<u64>,
}

/// The refusal of a request because of a limit.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct TenantLimitExceeded {
    /// The limit whose wait is the longest.
    pub limit: TenantLimit,
    /// The time after which the request would be admitted, if no other request came before it.
    pub retry_after_ns: u64,
}

/// The use of a tenant's limits.
///
/// Each limit allows a burst of one second's amount.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct TenantUsage {
    requests: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
    /// In nanoseconds of compute. Compute is known after the execution, so it is taken then, and a
    /// request is admitted while there is no debt.
    compute: Option<TokenBucket>,
}

impl TenantUsage {
    /// Creates the use of limits that are unused.
    #[must_use]
    pub fn new(limits: &TenantLimits, now: Time) -> Self {
        let bucket = |per_second: u64| TokenBucket::new(per_second, per_second, now);
        let nanoseconds = |milliseconds: u64| milliseconds.saturating_mul(1_000_000);
        Self {
            requests: limits.requests.map(bucket),
            bytes: limits.bytes.map(bucket),
            compute: limits.compute_ms.map(nanoseconds).map(bucket),
        }
    }

    /// Admits a request with this number of bytes, or takes nothing.
    ///
    /// # Errors
    ///
    /// Returns the exceeded limit.
    pub fn admit(&mut self, now: Time, bytes: u64) -> Result<(), TenantLimitExceeded> {
        let wait_ns = |bucket: &Option<TokenBucket>, amount: u64| {
            bucket.as_ref().map_or(0, |bucket| bucket.wait_ns(now, amount))
        };
        let waits = [
            (wait_ns(&self.requests, 1), TenantLimit::Requests),
            (wait_ns(&self.bytes, bytes), TenantLimit::Bytes),
            (wait_ns(&self.compute, 0), TenantLimit::Compute),
        ];
        for (wait_ns, limit) in waits {
            let is_longest = waits.iter().all(|(other, _)| *other <= wait_ns);
            if wait_ns > 0 && is_longest {
                return Err(TenantLimitExceeded { limit, retry_after_ns: wait_ns });
            }
        }
        if let Some(requests) = &mut self.requests {
            requests.take(now, 1);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.take(now, bytes);
        }
        Ok(())
    }

    /// Charges the compute of an execution.
    pub fn charge_compute(&mut self, now: Time, compute_ns: u64) {
        if let Some(compute) = &mut self.compute {
            compute.take(now, compute_ns);
        }
    }
}
