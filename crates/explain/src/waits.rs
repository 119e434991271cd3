//! The wait times of queued requests, by reason.
//!
//! At any moment, all requests in a queue wait for the same reason, so one clock per queue with one
//! sum per reason is enough. A request remembers the sums at its arrival, and its own waits are the
//! amounts by which they have grown since. A scheduler step therefore costs the same regardless of
//! the number of explained requests.
//!
//! There is one exception. If a batch ends early because the next request has another shape, the
//! requests left behind wait for an instance because of the split. Requests that arrive later would
//! have had to wait for the instance anyway.

use std::collections::BTreeMap;

/// A reason why a queued request waits.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitReason {
    /// A free instance.
    Instance,
    /// A free instance, after a batch that the request could not join because of its shape.
    Shape,
    /// More requests for its batch, or the end of the batch delay.
    BatchDelay,
    /// More requests for its batch, as long as the batch's deadlines allow.
    Window,
    /// The rate limiter.
    Permit,
    /// A slot for its sequence.
    Slot,
    /// An earlier request of its sequence.
    Predecessor,
    /// More requests, because a test variable holds requests back.
    Hold,
}

impl WaitReason {
    pub(crate) const COUNT: usize = 8;

    /// All reasons.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Instance,
        Self::Shape,
        Self::BatchDelay,
        Self::Window,
        Self::Permit,
        Self::Slot,
        Self::Predecessor,
        Self::Hold,
    ];

    /// A stable, machine-readable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Instance => "instance",
            Self::Shape => "shape",
            Self::BatchDelay => "batch_delay",
            Self::Window => "deadline_window",
            Self::Permit => "rate_limiter",
            Self::Slot => "slot",
            Self::Predecessor => "predecessor",
            Self::Hold => "hold",
        }
    }
}

/// Wait times in nanoseconds, by reason.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitTimes([u64; WaitReason::COUNT]);

impl WaitTimes {
    /// The time spent waiting for a reason.
    #[must_use]
    pub fn time_of(&self, wait: WaitReason) -> u64 {
        self.0.get(wait as usize).copied().unwrap_or_default()
    }

    /// Adds time to a reason.
    pub fn add(&mut self, wait: WaitReason, ns: u64) {
        if let Some(sum) = self.0.get_mut(wait as usize) {
            *sum = sum.saturating_add(ns);
        }
    }

    /// The sum over all reasons.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.iter().copied().fold(0, u64::saturating_add)
    }

    /// The time added since `before`.
    fn since(&self, before: &Self) -> Self {
        let mut grown = Self::default();
        for wait in WaitReason::ALL {
            grown.add(wait, self.time_of(wait).saturating_sub(before.time_of(wait)));
        }
        grown
    }
}

/// A queue's clock. Times are in nanoseconds and never go back: an earlier time is treated as the
/// latest one seen.
#[derive(Clone, Debug)]
pub struct QueueWaitTracker {
    now: u64,
    wait: WaitReason,
    /// True if the last batch ended early because of a shape.
    is_split: bool,
    sums: WaitTimes,
    waiting: BTreeMap<u64, QueuedWait>,
    /// The requests that arrived after that batch closed.
    newcomers: Vec<u64>,
}

#[derive(Copy, Clone, Debug)]
struct QueuedWait {
    /// The clock's sums when the request arrived.
    before: WaitTimes,
    /// The times whose reason differs between this request and the requests ahead of it.
    own: WaitTimes,
}

impl QueueWaitTracker {
    /// A clock for a queue whose requests currently wait for `wait`.
    #[must_use]
    pub const fn new(now: u64, wait: WaitReason) -> Self {
        Self {
            now,
            wait,
            is_split: false,
            sums: WaitTimes([0; WaitReason::COUNT]),
            waiting: BTreeMap::new(),
            newcomers: Vec::new(),
        }
    }

    /// Returns true if no request is waiting.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a request to the queue.
    pub fn arrive(&mut self, now: u64, key: u64) {
        self.pass(now);
        self.waiting.insert(key, QueuedWait { before: self.sums, own: WaitTimes::default() });
        if self.is_split {
            self.newcomers.push(key);
        }
    }

    /// Sets the reason why requests wait from now on.
    pub fn set_wait_reason(&mut self, now: u64, wait: WaitReason) {
        self.pass(now);
        self.wait = wait;
    }

    /// Closes a batch; `is_split` is true if it ended early because of a shape.
    pub fn close_batch(&mut self, now: u64, is_split: bool) {
        self.pass(now);
        for key in std::mem::take(&mut self.newcomers) {
            let Some(waiting) = self.waiting.get_mut(&key) else { continue };
            let behind = self.sums.since(&waiting.before).time_of(WaitReason::Shape);
            waiting.own.add(WaitReason::Instance, behind);
            // The time deducted here never belonged to this request.
            waiting.before.add(WaitReason::Shape, behind);
        }
        self.is_split = is_split;
    }

    /// Removes a request from the queue and returns its waits, or `None` if it is unknown.
    pub fn remove_request(&mut self, now: u64, key: u64) -> Option<WaitTimes> {
        self.pass(now);
        let QueuedWait { before, own } = self.waiting.remove(&key)?;
        let mut waited = self.sums.since(&before);
        if self.newcomers.contains(&key) {
            self.newcomers.retain(|one| *one != key);
            let behind = std::mem::take(waited.0.get_mut(WaitReason::Shape as usize)?);
            waited.add(WaitReason::Instance, behind);
        }
        for wait in WaitReason::ALL {
            waited.add(wait, own.time_of(wait));
        }
        Some(waited)
    }

    fn pass(&mut self, now: u64) {
        let wait = match self.wait {
            WaitReason::Instance if self.is_split => WaitReason::Shape,
            wait => wait,
        };
        self.sums.add(wait, now.saturating_sub(self.now));
        self.now = self.now.max(now);
    }
}

/// The total waits of all requests in a queue, explained or not. Each scheduler step adds, for
/// every request that was waiting, the time since the previous step.
#[derive(Clone, Debug, Default)]
pub struct QueueWaitTotals {
    now: u64,
    /// The number of waiting requests that were left behind when a shape ended a batch early.
    behind_split: u64,
    sums: WaitTimes,
}

impl QueueWaitTotals {
    /// The totals so far, in nanoseconds.
    #[must_use]
    pub const fn sums(&self) -> &WaitTimes {
        &self.sums
    }

    /// Skips a period in which no request waited.
    pub const fn skip_idle(&mut self, now: u64) {
        self.now = now;
    }

    /// Adds the time until now, during which this many requests waited for the same reason.
    pub fn add_time(&mut self, now: u64, waiting: u64, wait: WaitReason) {
        let ns = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        let behind = if wait == WaitReason::Instance { self.behind_split.min(waiting) } else { 0 };
        self.sums.add(WaitReason::Shape, ns.saturating_mul(behind));
        self.sums.add(wait, ns.saturating_mul(waiting.saturating_sub(behind)));
    }

    /// Closes a batch; `split` is the number of requests left behind because of a shape.
    pub const fn close_batch(&mut self, split: u64) {
        self.behind_split = split;
    }
}
