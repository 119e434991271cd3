//! The residency beside other ways to choose victims.

use galatea_policy::{
    LoadMeasurement, MemoryBudget, MemoryByPool, ModelEstimate, ModelId, RequestKey, RequestOrigin,
    Residency, ResidencyAction, ResidencyEvent, ResidencyRequest, ResidencySettings, Time,
};

use super::caches::{Rule, Saved, bound, replay};
use super::traces::ModelTrace;

/// The share of the load time that is saved, and the share of requests that find their model, with
/// each way to choose victims. Loads take no time, so nothing but the choice differs.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ResidencyComparison {
    /// The residency.
    pub residency: [f64; 2],
    /// The model leaves whose latest request is the earliest.
    pub least_recent: [f64; 2],
    /// The model leaves with the fewest requests since its load.
    pub least_frequent: [f64; 2],
    /// GreedyDual-Size-Frequency.
    pub greedy_dual: [f64; 2],
    /// A choice that knows the future. It is the best one for equal models.
    pub known_future: [f64; 2],
    /// A bound on the saved load time, which no choice exceeds.
    pub bound: f64,
}

/// Compares the ways to choose victims on a trace.
#[must_use]
pub fn compare_residency(trace: &ModelTrace) -> ResidencyComparison {
    ResidencyComparison {
        residency: replay_residency(trace),
        least_recent: replay(trace, Rule::LeastRecent),
        least_frequent: replay(trace, Rule::LeastFrequent),
        greedy_dual: replay(trace, Rule::GreedyDual),
        known_future: replay(trace, Rule::KnownFuture),
        bound: bound(trace),
    }
}

/// Sends the requests of a trace, one at a time, to a residency whose loads take no time.
fn replay_residency(trace: &ModelTrace) -> [f64; 2] {
    let settings = ResidencySettings {
        budget: MemoryBudget::host(trace.budget),
        stay_factor: 0.0,
        ..ResidencySettings::default()
    };
    let mut residency = Residency::new(settings);
    let mut actions = Vec::new();
    let names: Vec<ModelId> =
        (0..trace.bytes.len()).map(|model| model.to_string().into()).collect();
    let measured = |model: usize| LoadMeasurement {
        bytes: MemoryByPool::host(trace.bytes[model]),
        load_ns: trace.load_ms[model] * 1_000_000,
    };
    for (model, name) in names.iter().enumerate() {
        let LoadMeasurement { bytes, load_ns } = measured(model);
        let estimate = ModelEstimate { bytes, load_ns, dependencies: Vec::new() };
        residency.step(Time(0), ResidencyEvent::Known(name.clone(), estimate), &mut actions);
    }
    let mut saved = Saved::default();
    for (key, model) in (0..).map(RequestKey).zip(trace.requests.iter().copied()) {
        let request = ResidencyRequest {
            key,
            model: names[model].clone(),
            deadline: Time::MAX,
            origin: RequestOrigin::Client,
        };
        residency.step(Time(key.0), ResidencyEvent::Request(request), &mut actions);
        let is_resident = actions.first() == Some(&ResidencyAction::Admit(key));
        saved.count(trace.load_ms[model], is_resident);
        let mut pending = std::mem::take(&mut actions);
        while let Some(action) = pending.pop() {
            let event = match action {
                ResidencyAction::Unload(name) => ResidencyEvent::Unloaded(name),
                ResidencyAction::Load(name) => ResidencyEvent::Loaded(name, measured(model)),
                ResidencyAction::Admit(_) => ResidencyEvent::Released(names[model].clone()),
                ResidencyAction::Wait { .. } => continue,
                ResidencyAction::Refuse(..) => unreachable!("each model fits"),
            };
            residency.step(Time(key.0), event, &mut pending);
        }
    }
    saved.shares()
}
