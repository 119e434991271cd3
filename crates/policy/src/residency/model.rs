//! A model and its state.

use super::event::{LoadMeasurement, ModelEstimate, ResidencyState};
use super::order::DemandOrder;
use super::pools::MemoryByPool;
use super::worth::Worth;
use crate::lifecycle::ModelId;
use crate::time::Time;

/// The pause after a first failed load. It doubles with each further failure.
const RETRY_MIN_NS: u64 = 1_000_000_000;
/// The maximum pause after a failed load.
const RETRY_MAX_NS: u64 = 60_000_000_000;

/// The index of a known model.
pub(crate) type ModelIndex = usize;

/// The reason why a model drains.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum DrainReason {
    /// The budget is exceeded.
    Budget,
    /// The demand for this model needs memory.
    Demand(ModelIndex),
}

/// A model.
#[derive(Clone, Debug)]
pub(crate) struct ManagedModel {
    pub(crate) name: ModelId,
    pub(crate) state: ResidencyState,
    /// The memory: measured, or else estimated.
    pub(crate) bytes: MemoryByPool,
    pub(crate) is_measured: bool,
    /// The memory that is counted against the budget.
    pub(crate) counted: MemoryByPool,
    pub(crate) load: LoadTime,
    /// The time at which the present load or unload began, or at which the model began to drain.
    pub(crate) changed_at: Time,
    pub(crate) dependencies: Vec<ModelId>,
    /// Earlier dependencies, which requests in execution may still use.
    pub(crate) former_dependencies: Vec<ModelId>,
    pub(crate) demand: Option<DemandOrder>,
    pub(crate) drain_reason: DrainReason,
    pub(crate) uses: u64,
    pub(crate) idle_since: Time,
    /// True if a client has loaded the model explicitly.
    pub(crate) is_pinned: bool,
    /// True if a client has unloaded the model explicitly.
    pub(crate) is_blocked: bool,
    /// True if the model is no longer in the repository.
    pub(crate) is_forgotten: bool,
    /// The time until which the model stays because its load was recent.
    pub(crate) stay_until: Time,
    /// The time until which the model stays because a client was told to come back.
    pub(crate) promised_until: Time,
    pub(crate) worth: Worth,
    failures: u32,
    /// The time until which the model isn't loaded, because the last load failed.
    pub(crate) retry_at: Time,
}

impl ManagedModel {
    pub(crate) fn new(name: ModelId) -> Self {
        Self {
            name,
            state: ResidencyState::Absent,
            bytes: MemoryByPool::default(),
            is_measured: false,
            counted: MemoryByPool::default(),
            load: LoadTime::default(),
            changed_at: Time::default(),
            dependencies: Vec::new(),
            former_dependencies: Vec::new(),
            demand: None,
            drain_reason: DrainReason::Budget,
            uses: 0,
            idle_since: Time::default(),
            is_pinned: false,
            is_blocked: false,
            is_forgotten: false,
            stay_until: Time::default(),
            promised_until: Time::default(),
            worth: Worth::default(),
            failures: 0,
            retry_at: Time::default(),
        }
    }

    pub(crate) fn set_estimate(&mut self, estimate: ModelEstimate) {
        self.dependencies = estimate.dependencies;
        self.is_forgotten = false;
        // A changed model may load where the earlier one didn't.
        self.failures = 0;
        self.retry_at = Time::default();
        if !self.is_measured {
            self.bytes = estimate.bytes;
        }
        self.load.estimate_ns = estimate.load_ns;
    }

    /// Applies a successful load.
    pub(crate) fn loaded(&mut self, now: Time, measured: &LoadMeasurement, stay_factor: f64) {
        self.state = ResidencyState::Resident;
        self.bytes = measured.bytes.clone();
        self.is_measured = true;
        self.load.add(measured.load_ns);
        #[expect(clippy::cast_precision_loss, reason = "a stay needs no exact time")]
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        #[expect(clippy::cast_sign_loss, reason = "both factors are positive")]
        let stay_ns = (measured.load_ns as f64 * stay_factor) as u64;
        self.stay_until = now.saturating_add(stay_ns);
        self.idle_since = now;
        self.failures = 0;
    }

    /// Applies a failed load.
    pub(crate) fn load_failed(&mut self, now: Time) {
        let factor = 1_u64.checked_shl(self.failures).unwrap_or(u64::MAX);
        let pause_ns = RETRY_MIN_NS.saturating_mul(factor).min(RETRY_MAX_NS);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now.saturating_add(pause_ns);
        self.state = ResidencyState::Absent;
        self.is_pinned = false;
    }

    /// Returns the earliest time at which the model may be evicted, if it isn't used again.
    ///
    /// A model that has just come stays for a multiple of its load time. An idle one has paid for
    /// its load when it has been idle for half of that time, unless a client was promised it.
    pub(crate) fn leaves_at(&self) -> Time {
        if self.uses > 0 {
            return self.stay_until.max(self.promised_until);
        }
        let has_waited = self.idle_since.saturating_add(self.load.expected_ns() / 2);
        self.stay_until.min(has_waited).max(self.promised_until)
    }

    pub(crate) fn is_resident(&self) -> bool {
        matches!(self.state, ResidencyState::Resident | ResidencyState::Draining)
    }
}

/// The learned duration of a model's load.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct LoadTime {
    /// The duration expected before the first load.
    pub(crate) estimate_ns: u64,
    mean_ns: u64,
    deviation_ns: u64,
    loads: u64,
}

impl LoadTime {
    /// Adds a measured duration. The mean and the deviation follow the latest loads.
    fn add(&mut self, load_ns: u64) {
        if self.loads == 0 {
            (self.mean_ns, self.deviation_ns) = (load_ns, load_ns / 4);
        } else {
            let error_ns = load_ns.abs_diff(self.mean_ns);
            self.deviation_ns = self.deviation_ns - self.deviation_ns / 4 + error_ns / 4;
            self.mean_ns = self.mean_ns - self.mean_ns / 4 + load_ns / 4;
        }
        self.loads = self.loads.saturating_add(1);
    }

    pub(crate) fn is_measured(&self) -> bool {
        self.loads > 0
    }

    /// Returns the expected duration.
    pub(crate) fn expected_ns(&self) -> u64 {
        if self.loads == 0 { self.estimate_ns } else { self.mean_ns }
    }

    /// Returns a duration that few loads exceed.
    pub(crate) fn promised_ns(&self) -> u64 {
        if self.loads == 0 {
            return self.estimate_ns.saturating_mul(2);
        }
        self.mean_ns.saturating_add(self.deviation_ns.saturating_mul(3))
    }
}
