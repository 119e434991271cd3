//! The uses of resident models, derived from counts that exist anyway.
//!
//! A model is in use while a version has queued or executing requests or live sequences, or while
//! code other than the registry and loaded ensembles holds its handle. The counts are read before
//! each decision that may evict a model, and once a second for the models' frequencies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use galatea_policy::{
    ModelId, RequestOrigin, ResidencyAction, ResidencyEvent, ResidencyRequest, ResidencyState, Time,
};
use galatea_stdx::len64;

use super::Demand;
use super::state::{DemandState, Effect};
use crate::registry::Snapshot;

/// The maximum number of requests of a model that one reading adds to its frequency.
const FREQUENCY_MAX: u64 = 32;

/// The use of a model at one moment.
#[derive(Copy, Clone, Debug, Default)]
struct ModelUse {
    is_busy: bool,
    /// The number of requests that have ended since the model was loaded.
    finished: u64,
}

impl Demand {
    /// Tells the decision which models are in use, and how often they were used.
    pub(super) fn update_uses(self: &Arc<Self>) {
        let uses = read(&self.registry.snapshot());
        let mut state = self.state.lock("tell the uses of models");
        let mut effects = Vec::new();
        for (model, reading) in uses {
            let residency = state.residency.state(&model);
            let is_here =
                matches!(residency, Some(ResidencyState::Resident | ResidencyState::Draining));
            if !is_here || state.leaving.contains_key(&model) {
                continue;
            }
            let finished = state.count_finished(&model, reading.finished);
            if residency == Some(ResidencyState::Resident) {
                for _ in 0..finished.min(FREQUENCY_MAX) {
                    effects.append(&mut self.count_use(&mut state, &model));
                }
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

    /// Tells the decision of a request that has ended.
    fn count_use(&self, state: &mut DemandState, model: &ModelId) -> Vec<Effect> {
        let (key, origin) = (state.new_key(), RequestOrigin::Client);
        let (model, deadline) = (model.clone(), Time::MAX);
        let request = ResidencyRequest { key, model: model.clone(), deadline, origin };
        let mut actions = Vec::new();
        state.residency.step(self.now(), ResidencyEvent::Request(request), &mut actions);
        let end = match actions.first() {
            Some(ResidencyAction::Admit(_)) => Some(ResidencyEvent::Released(model)),
            Some(ResidencyAction::Refuse(..)) => None,
            Some(_) | None => Some(ResidencyEvent::Cancelled(key)),
        };
        let mut effects = self.effects(state, actions);
        if let Some(end) = end {
            effects.append(&mut self.step_locked(state, end));
        }
        effects
    }

    /// The models with live sequences.
    pub(super) fn with_sequences(&self) -> BTreeSet<ModelId> {
        let snapshot = self.registry.snapshot();
        let live = snapshot.ready().filter(|version| version.current_use().sequences > 0);
        live.map(|version| version.id().clone()).collect()
    }
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
        one.is_busy |= reading.queued > 0
            || reading.executing > 0
            || reading.sequences > 0
            || Arc::strong_count(version) > expected;
        one.finished = one.finished.saturating_add(reading.finished);
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
