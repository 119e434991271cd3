//! A naive ensemble run: it keeps every tensor and searches all of them in each step.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use galatea_policy::{EnsembleSpec, EnsembleTensorIndex, StepIndex};

/// A tensor's contents. The reference count reveals how many holders remain.
pub(super) type Value = Rc<u64>;

pub(super) fn index(number: u32) -> usize {
    usize::try_from(number).expect("numbers of an ensemble are small")
}

/// The facts derived from an ensemble's specification.
#[derive(Clone, Debug)]
pub(super) struct Dataflow {
    spec: EnsembleSpec,
    /// For each tensor, the decoupled step that numbers its waves.
    pub(super) sources: Vec<Option<usize>>,
}

impl Dataflow {
    pub(super) fn of(spec: &EnsembleSpec) -> Self {
        let mut sources = vec![None; index(spec.tensors)];
        // There are enough iterations for the longest path in any order of the steps.
        for _ in &spec.steps {
            for (number, step) in spec.steps.iter().enumerate() {
                let source = step.inputs.iter().find_map(|input| sources[index(input.0)]);
                let of_outputs = if step.decoupled { Some(number) } else { source };
                step.outputs.iter().for_each(|output| sources[index(output.0)] = of_outputs);
            }
        }
        Dataflow { spec: spec.clone(), sources }
    }

    fn source_of(&self, tensors: &[EnsembleTensorIndex]) -> Option<usize> {
        tensors.iter().find_map(|tensor| self.sources[index(tensor.0)])
    }
}

/// A request with its expected starts and responses.
#[derive(Clone, Debug)]
pub(super) struct ExpectedRequest {
    flow: Rc<Dataflow>,
    requested: Vec<EnsembleTensorIndex>,
    needed: BTreeSet<usize>,
    /// All tensors so far, by wave. A tensor without waves is in wave 0.
    arrived: BTreeMap<(EnsembleTensorIndex, u64), Option<Value>>,
    /// The number of waves of each decoupled step.
    pub(super) waves: BTreeMap<usize, u64>,
    started: BTreeSet<(usize, u64)>,
    responded: BTreeSet<u64>,
}

/// The inputs of a step, or the outputs of a response.
pub(super) type Values = Vec<Option<u64>>;

impl ExpectedRequest {
    pub(super) fn new(flow: Rc<Dataflow>, requested: &[EnsembleTensorIndex]) -> Self {
        let mut needed = BTreeSet::new();
        let mut tensors: BTreeSet<EnsembleTensorIndex> = requested.iter().copied().collect();
        for _ in &flow.spec.steps {
            for (number, step) in flow.spec.steps.iter().enumerate() {
                if step.outputs.iter().any(|output| tensors.contains(output)) {
                    needed.insert(number);
                    tensors.extend(&step.inputs);
                }
            }
        }
        ExpectedRequest {
            flow,
            requested: requested.to_vec(),
            needed,
            arrived: BTreeMap::new(),
            waves: BTreeMap::new(),
            started: BTreeSet::new(),
            responded: BTreeSet::new(),
        }
    }

    /// Adds a tensor. `wave` is ignored for a tensor without waves.
    pub(super) fn arrived(&mut self, tensor: EnsembleTensorIndex, wave: u64, value: Option<Value>) {
        let wave = if self.flow.sources[index(tensor.0)].is_some() { wave } else { 0 };
        self.arrived.insert((tensor, wave), value);
    }

    /// Returns the steps that should start now, each with its wave and inputs.
    pub(super) fn starts(&mut self) -> BTreeMap<(StepIndex, u64), Values> {
        let mut starts = BTreeMap::new();
        for number in self.needed.clone() {
            let inputs = self.flow.spec.steps[number].inputs.clone();
            for wave in self.waves_of(&inputs) {
                let Some(values) = self.all(&inputs, wave) else { continue };
                if self.started.insert((number, wave)) {
                    let step = StepIndex(u32::try_from(number).expect("few steps"));
                    starts.insert((step, wave), values);
                }
            }
        }
        starts
    }

    /// Returns the responses that should be sent now, by wave.
    pub(super) fn responses(&mut self) -> BTreeMap<u64, Values> {
        let requested = self.requested.clone();
        let mut responses = BTreeMap::new();
        for wave in self.waves_of(&requested) {
            if let Some(values) = self.all(&requested, wave)
                && self.responded.insert(wave)
            {
                responses.insert(wave, values);
            }
        }
        responses
    }

    /// Returns true if the request may end without a response.
    pub(super) fn may_have_no_response(&self) -> bool {
        self.flow.source_of(&self.requested).is_some()
    }

    pub(super) fn has_responded(&self) -> bool {
        !self.responded.is_empty()
    }

    fn waves_of(&self, tensors: &[EnsembleTensorIndex]) -> Vec<u64> {
        match self.flow.source_of(tensors) {
            None => vec![0],
            Some(source) => (0..self.waves.get(&source).copied().unwrap_or(0)).collect(),
        }
    }

    fn key(&self, tensor: EnsembleTensorIndex, wave: u64) -> (EnsembleTensorIndex, u64) {
        (tensor, if self.flow.sources[index(tensor.0)].is_some() { wave } else { 0 })
    }

    fn all(&self, tensors: &[EnsembleTensorIndex], wave: u64) -> Option<Values> {
        let value = |tensor: &EnsembleTensorIndex| {
            let contents = self.arrived.get(&self.key(*tensor, wave))?;
            Some(contents.as_ref().map(|value| **value))
        };
        tensors.iter().map(value).collect()
    }

    /// Returns each value so far, with true if a step or the response still needs it.
    pub(super) fn values(&self) -> impl Iterator<Item = (&Value, bool)> {
        let values = self.arrived.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        values.map(|((tensor, wave), value)| (value, self.is_needed(*tensor, *wave)))
    }

    fn is_needed(&self, tensor: EnsembleTensorIndex, wave: u64) -> bool {
        let in_waves = self.flow.sources[index(tensor.0)].is_some();
        // A tensor without waves that is combined with waves may be needed again.
        let is_done = |group: &[EnsembleTensorIndex], done: bool| {
            if in_waves || self.flow.source_of(group).is_none() { done } else { false }
        };
        let by_step = self.needed.iter().any(|number| {
            let inputs = &self.flow.spec.steps[*number].inputs;
            inputs.contains(&tensor) && !is_done(inputs, self.started.contains(&(*number, wave)))
        });
        let by_client = self.requested.contains(&tensor)
            && !is_done(&self.requested, self.responded.contains(&wave));
        by_step || by_client
    }

    /// Returns the number of waves with tensors that wait for others.
    pub(super) fn pending_waves(&self) -> usize {
        let held: BTreeSet<(usize, u64)> = self
            .arrived
            .keys()
            .filter(|(tensor, wave)| self.is_needed(*tensor, *wave))
            .filter_map(|(tensor, wave)| Some((self.flow.sources[index(tensor.0)]?, *wave)))
            .collect();
        held.len()
    }
}
