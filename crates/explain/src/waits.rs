//! The times that the requests of a queue wait, by the reason for the wait.
//!
//! At any time all requests of a queue wait for the same reason, so the queue has one clock, with a
//! sum for each reason. A request remembers the sums at its arrival; the growth of each sum since
//! then is its own wait. So a step of the scheduler costs the same however many requests are
//! explained.
//!
//! One thing differs between requests. If a batch ended early because the next request has another
//! shape, the requests that were left behind wait for an instance because of the split. Those that
//! arrive later would wait for the instance anyway.

use std::collections::BTreeMap;

/// A reason why a queued request waits.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitReason {
    /// A free instance.
    Instance,
    /// A free instance, behind a batch that it could not join because of a shape.
    Shape,
    /// More requests for its batch, or the end of the batch's delay.
    BatchDelay,
    /// More requests for its batch, as long as the deadlines of the batch allow.
    Window,
    /// The rate limiter.
    Permit,
    /// A slot for its sequence.
    Slot,
    /// An earlier request of its sequence.
    Predecessor,
    /// Further requests, because a test variable holds requests back.
    Hold,
}

impl WaitReason {
    pub(crate) const COUNT: usize = 8;

    /// Every reason.
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

    /// The reason's name for programs, which does not change.
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

/// Nanoseconds by the reason for the wait.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitTimes([u64; WaitReason::COUNT]);

impl WaitTimes {
    /// The time spent on a reason.
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

    /// The times that were added since `before`.
    fn since(&self, before: &Self) -> Self {
        let mut grown = Self::default();
        for wait in WaitReason::ALL {
            grown.add(wait, self.time_of(wait).saturating_sub(before.time_of(wait)));
        }
        grown
    }
}

/// The clock of a queue. Times are in nanoseconds and never go back: an earlier time counts as the
/// latest one.
#[derive(Clone, Debug)]
pub struct WaitClock {
    now: u64,
    wait: WaitReason,
    /// True if the last batch ended early because of a shape.
    is_split: bool,
    sums: WaitTimes,
    waiting: BTreeMap<u64, QueuedWait>,
    /// The requests that arrived after that batch.
    newcomers: Vec<u64>,
}

#[derive(Copy, Clone, Debug)]
struct QueuedWait {
    /// The sums when the request arrived.
    before: WaitTimes,
    /// The times whose reason differs between this request and those in front of it.
    own: WaitTimes,
}

impl WaitClock {
    /// A clock for a queue whose requests wait for this reason.
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

    /// Returns true if no request waits.
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

    /// Sets the reason for which requests wait from now on.
    pub fn set(&mut self, now: u64, wait: WaitReason) {
        self.pass(now);
        self.wait = wait;
    }

    /// Closes a batch; `is_split` tells whether it ended early because of a shape.
    pub fn close_batch(&mut self, now: u64, is_split: bool) {
        self.pass(now);
        for key in std::mem::take(&mut self.newcomers) {
            let Some(waiting) = self.waiting.get_mut(&key) else { continue };
            let behind = self.sums.since(&waiting.before).time_of(WaitReason::Shape);
            waiting.own.add(WaitReason::Instance, behind);
            // The time deducted here was never this request's.
            waiting.before.add(WaitReason::Shape, behind);
        }
        self.is_split = is_split;
    }

    /// Removes a request from the queue and returns its waits; `None` if it is unknown.
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

/// The waits of all requests of a queue together, explained or not. Each step of the
/// scheduler adds the time since the one before for each request that waited in between.
#[derive(Clone, Debug, Default)]
pub struct QueueWaits {
    now: u64,
    /// The number of requests that were waiting when a shape ended a batch early, and still wait.
    behind_split: u64,
    sums: WaitTimes,
}

impl QueueWaits {
    /// The sums so far, in nanoseconds.
    #[must_use]
    pub const fn sums(&self) -> &WaitTimes {
        &self.sums
    }

    /// Skips time in which no request waited.
    pub const fn skip(&mut self, now: u64) {
        self.now = now;
    }

    /// Counts time until now in which this many requests waited, all for the same reason.
    pub fn add_time(&mut self, now: u64, waiting: u64, wait: WaitReason) {
        let ns = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        let behind = if wait == WaitReason::Instance { self.behind_split.min(waiting) } else { 0 };
        self.sums.add(WaitReason::Shape, ns.saturating_mul(behind));
        self.sums.add(wait, ns.saturating_mul(waiting.saturating_sub(behind)));
    }

    /// Closes a batch; `split` is the number of requests that it left behind because of a shape.
    pub const fn count_batch(&mut self, split: u64) {
        self.behind_split = split;
    }
}
