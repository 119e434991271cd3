//! The times that the requests of a queue wait, by the reason for the wait.
//!
//! All requests of a queue wait for the same at any time, so the queue has one clock, with a sum
//! for each reason. A request remembers the sums of its arrival; what they have grown by is what
//! it waited for. So a step of the scheduler costs the same however many requests are explained.
//!
//! One thing differs from request to request. After a batch that ended early because the next
//! request has another shape, the requests behind it wait for an instance on account of that.
//! Those that arrive later would wait for the instance anyway.

use std::collections::BTreeMap;

/// A reason for which a queued request waits.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// An instance that is free.
    Instance,
    /// The same, behind a batch that it could not join because of its shape or another's.
    Shape,
    /// More requests for its batch, or the end of the batch's delay.
    BatchDelay,
    /// The same, as long as the deadlines of the batch allow.
    Window,
    /// The rate limiter.
    Permit,
    /// A slot for its sequence.
    Slot,
    /// An earlier request of its sequence.
    Predecessor,
    /// Further requests, because a variable for tests holds requests back.
    Hold,
}

impl Wait {
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

    /// Its name for programs, which does not change.
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

/// Nanoseconds by what was waited for.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitTimes([u64; Wait::COUNT]);

impl WaitTimes {
    /// The time spent on a reason.
    #[must_use]
    pub fn of(&self, wait: Wait) -> u64 {
        self.0.get(wait as usize).copied().unwrap_or_default()
    }

    /// Adds time to a reason.
    pub fn add(&mut self, wait: Wait, ns: u64) {
        if let Some(sum) = self.0.get_mut(wait as usize) {
            *sum = sum.saturating_add(ns);
        }
    }

    /// The sum of all.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.iter().copied().fold(0, u64::saturating_add)
    }

    /// The times that were added since `before`.
    fn since(&self, before: &Self) -> Self {
        let mut grown = Self::default();
        for wait in Wait::ALL {
            grown.add(wait, self.of(wait).saturating_sub(before.of(wait)));
        }
        grown
    }
}

/// The clock of a queue. Times are nanoseconds and never go back: an earlier one counts as the
/// latest.
#[derive(Clone, Debug)]
pub struct WaitClock {
    now: u64,
    wait: Wait,
    /// True if the last batch ended early because of a shape.
    is_split: bool,
    sums: WaitTimes,
    waiting: BTreeMap<u64, QueuedWait>,
    /// The requests that arrived after that batch.
    newcomers: Vec<u64>,
}

#[derive(Copy, Clone, Debug)]
struct QueuedWait {
    /// The sums when it arrived.
    before: WaitTimes,
    /// The times that count as another wait for it than for the requests in front of it.
    own: WaitTimes,
}

impl WaitClock {
    /// A clock of a queue whose requests wait for this.
    #[must_use]
    pub const fn new(now: u64, wait: Wait) -> Self {
        Self {
            now,
            wait,
            is_split: false,
            sums: WaitTimes([0; Wait::COUNT]),
            waiting: BTreeMap::new(),
            newcomers: Vec::new(),
        }
    }

    /// Returns true if no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A request is queued.
    pub fn arrive(&mut self, now: u64, key: u64) {
        self.pass(now);
        self.waiting.insert(key, QueuedWait { before: self.sums, own: WaitTimes::default() });
        if self.is_split {
            self.newcomers.push(key);
        }
    }

    /// From now on requests wait for this.
    pub fn set(&mut self, now: u64, wait: Wait) {
        self.pass(now);
        self.wait = wait;
    }

    /// A batch was closed; `is_split` tells whether it ended early because of a shape.
    pub fn close(&mut self, now: u64, is_split: bool) {
        self.pass(now);
        for key in std::mem::take(&mut self.newcomers) {
            let Some(waiting) = self.waiting.get_mut(&key) else { continue };
            let behind = self.sums.since(&waiting.before).of(Wait::Shape);
            waiting.own.add(Wait::Instance, behind);
            // What is taken out here was never this request's.
            waiting.before.add(Wait::Shape, behind);
        }
        self.is_split = is_split;
    }

    /// A request leaves the queue; returns what it waited for. `None` if it is not known.
    pub fn leave(&mut self, now: u64, key: u64) -> Option<WaitTimes> {
        self.pass(now);
        let QueuedWait { before, own } = self.waiting.remove(&key)?;
        let mut waited = self.sums.since(&before);
        if self.newcomers.contains(&key) {
            self.newcomers.retain(|one| *one != key);
            let behind = std::mem::take(waited.0.get_mut(Wait::Shape as usize)?);
            waited.add(Wait::Instance, behind);
        }
        for wait in Wait::ALL {
            waited.add(wait, own.of(wait));
        }
        Some(waited)
    }

    fn pass(&mut self, now: u64) {
        let wait = match self.wait {
            Wait::Instance if self.is_split => Wait::Shape,
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
    /// The number of waiting requests that were there when a shape ended a batch early.
    behind_split: u64,
    sums: WaitTimes,
}

impl QueueWaits {
    /// The sums so far, in nanoseconds.
    #[must_use]
    pub const fn sums(&self) -> &WaitTimes {
        &self.sums
    }

    /// No request waited until now.
    pub const fn skip(&mut self, now: u64) {
        self.now = now;
    }

    /// This many requests waited until now, all for the same.
    pub fn pass(&mut self, now: u64, waiting: u64, wait: Wait) {
        let ns = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        let behind = if wait == Wait::Instance { self.behind_split.min(waiting) } else { 0 };
        self.sums.add(Wait::Shape, ns.saturating_mul(behind));
        self.sums.add(wait, ns.saturating_mul(waiting.saturating_sub(behind)));
    }

    /// A batch was closed; `split` is how many requests it left behind because of a shape.
    pub const fn close(&mut self, split: u64) {
        self.behind_split = split;
    }
}
