//! The uses of resident models, derived from counts that exist anyway.
//!
//! A model is in use while a version has queued or executing requests or live sequences, or while
//! code other than the registry and loaded ensembles holds its handle. The counts are read before
//! each decision that may evict a model, and once a second for the models' frequencies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_policy::{ModelId, ResidencyEvent, ResidencyState};
use galatea_stdx::len64;

use super::Demand;
use super::sizes::{UseReading, Uses};
use super::state::DemandState;
use crate::registry::Snapshot;

/// The maximum number of requests of a model that one reading adds to its frequency. Frequencies
/// age with the uses of all models, so the requests of one busy model would otherwise age all others
/// within a second, and only the order of their latest uses would count.
const FREQUENCY_MAX: u64 = 32;

/// The pause between two readings of the memory.
const READING_INTERVAL: Duration = Duration::from_secs(2);
/// The pause between two readings as a multiple of the duration of a reading.
const READING_FACTOR: u32 = 100;

impl Demand {
    /// Tells the decision which models are in use, and how often they were used.
    pub(super) fn update_uses(self: &Arc<Self>) {
        let uses = read(&self.registry.snapshot());
        let mut state = self.state.lock("tell the uses of models");
        let mut effects = Vec::new();
        for (model, ModelUse { of_requests: reading, .. }) in uses {
            let residency = state.residency.state(&model);
            let is_here =
                matches!(residency, Some(ResidencyState::Resident | ResidencyState::Draining));
            if !is_here || state.leaving.contains_key(&model) {
                continue;
            }
            let finished = state.count_finished(&model, reading.finished);
            if finished > 0 && residency == Some(ResidencyState::Resident) {
                let used = ResidencyEvent::Used(model.clone(), finished.min(FREQUENCY_MAX));
                effects.append(&mut self.step_locked(&mut state, used));
            }
            if reading.is_busy && state.begin_use(&model) {
                effects.append(&mut self.step_locked(&mut state, ResidencyEvent::Held(model)));
            } else {
                while state.ends_use(&model, u64::from(reading.is_busy)) {
                    let released = ResidencyEvent::Released(model.clone());
                    effects.append(&mut self.step_locked(&mut state, released));
                }
            }
        }
        drop(state);
        self.perform(effects);
    }

    /// Measures the memory, and tells the decision the sizes that have changed. Returns the time of
    /// the next reading.
    pub(super) fn measure_sizes(self: &Arc<Self>) -> Instant {
        let start = Instant::now();
        let uses = self.request_uses();
        let state = self.state.lock("look for models in use");
        let changes = state.changes;
        let is_due = state.is_quiet() && state.sizes.is_due(&uses);
        drop(state);
        if !is_due {
            return start + READING_INTERVAL;
        }
        let total = (self.options.memory.measure)();
        let pause = READING_INTERVAL.max(start.elapsed().saturating_mul(READING_FACTOR));
        let Some(total) = total else { return start + pause };
        let mut state = self.state.lock("tell the sizes of models");
        let mut effects = Vec::new();
        // The memory of a load or an unload isn't that of requests.
        if state.changes == changes {
            for (model, bytes) in state.sizes.read(total, uses) {
                let measured = ResidencyEvent::Measured(model, bytes);
                effects.append(&mut self.step_locked(&mut state, measured));
            }
        }
        drop(state);
        self.perform(effects);
        start + pause
    }

    /// The uses of the models in service that execute requests themselves.
    pub(super) fn request_uses(&self) -> Uses {
        let mut uses = read(&self.registry.snapshot());
        uses.retain(|_, reading| !reading.is_ensemble);
        uses.into_iter().map(|(model, reading)| (model, reading.of_requests)).collect()
    }

    /// The models with live sequences.
    pub(super) fn with_sequences(&self) -> BTreeSet<ModelId> {
        let snapshot = self.registry.snapshot();
        let live = snapshot.ready().filter(|version| version.current_use().sequences > 0);
        live.map(|version| version.id().clone()).collect()
    }
}

/// The use of a model in service.
#[derive(Copy, Clone, Debug, Default)]
struct ModelUse {
    /// True if the model's requests are executed by other models, whose memory they use.
    is_ensemble: bool,
    of_requests: UseReading,
}

/// Reads the uses of all models in service.
fn read(snapshot: &Snapshot) -> BTreeMap<ModelId, ModelUse> {
    let mut pins: BTreeMap<&str, usize> = BTreeMap::new();
    for version in snapshot.ready() {
        for name in version.composing_model_names() {
            *pins.entry(name).or_default() += 1;
        }
    }
    let mut uses: BTreeMap<ModelId, ModelUse> = BTreeMap::new();
    for version in snapshot.ready() {
        let reading = version.current_use();
        // The registry holds one handle, and each ensemble that contains the version another.
        let expected = pins.get(&**version.id()).copied().unwrap_or(0).saturating_add(1);
        let one = uses.entry(version.id().clone()).or_default();
        one.is_ensemble |= version.composing_model_names().next().is_some();
        let of_requests = &mut one.of_requests;
        of_requests.is_busy |= reading.queued > 0
            || reading.executing > 0
            || reading.sequences > 0
            || Arc::strong_count(version) > expected;
        of_requests.finished = of_requests.finished.saturating_add(reading.finished);
    }
    uses
}

impl DemandState {
    /// The requests of a model that have ended since the last reading.
    fn count_finished(&mut self, model: &ModelId, finished: u64) -> u64 {
        let before = self.finished.insert(model.clone(), finished).unwrap_or(0);
        // A model that was loaded again begins at 0.
        finished.checked_sub(before).unwrap_or(finished)
    }

    /// Begins a use that the decision doesn't know of. Returns false if it knows of one.
    fn begin_use(&mut self, model: &ModelId) -> bool {
        let uses = self.uses.entry(model.clone()).or_default();
        let is_new = *uses == 0;
        *uses = (*uses).max(1);
        is_new
    }

    /// Ends a use, if the decision knows of more than `left`.
    fn ends_use(&mut self, model: &ModelId, left: u64) -> bool {
        match self.uses.get_mut(model) {
            Some(uses) if *uses > left => {
                *uses -= 1;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Ends one of the uses that the decision knows of, if there is one.
    pub(super) fn end_use(&mut self, model: &ModelId) -> bool {
        self.ends_use(model, 0)
    }

    /// The number of requests that wait for any model.
    pub(super) fn waiting64(&self) -> u64 {
        len64(self.waiting())
    }
}
