//! One request through an ensemble, as anybody would write it down: everything
//! that ever was is kept, and everything is looked at each time.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use galatea_policy::{EnsembleSpec, StepIndex, TensorIndex};

/// A tensor's contents: whoever holds a count of it has not let it go.
pub(super) type Value = Rc<u64>;

pub(super) fn index(number: u32) -> usize {
    usize::try_from(number).expect("numbers of an ensemble are small")
}

/// What follows from an ensemble alone.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    spec: EnsembleSpec,
    /// The step whose waves each tensor comes in, if it comes in waves.
    pub(super) sources: Vec<Option<usize>>,
}

impl Flow {
    pub(super) fn of(spec: &EnsembleSpec) -> Self {
        let mut sources = vec![None; index(spec.tensors)];
        // Often enough for the longest way, in whatever order the steps are.
        for _ in &spec.steps {
            for (number, step) in spec.steps.iter().enumerate() {
                let source = step.inputs.iter().find_map(|input| sources[index(input.0)]);
                let of_outputs = if step.decoupled { Some(number) } else { source };
                step.outputs.iter().for_each(|output| sources[index(output.0)] = of_outputs);
            }
        }
        Flow { spec: spec.clone(), sources }
    }

    fn source_of(&self, tensors: &[TensorIndex]) -> Option<usize> {
        tensors.iter().find_map(|tensor| self.sources[index(tensor.0)])
    }
}

/// A request, and what should have happened to it.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    flow: Rc<Flow>,
    wanted: Vec<TensorIndex>,
    needed: BTreeSet<usize>,
    /// Everything that ever came, by wave; what comes once is in wave 0.
    came: BTreeMap<(TensorIndex, u64), Option<Value>>,
    /// How many waves each decoupled step has sent.
    pub(super) waves: BTreeMap<usize, u64>,
    started: BTreeSet<(usize, u64)>,
    responded: BTreeSet<u64>,
}

/// The inputs of a step, or the outputs of a response.
pub(super) type Values = Vec<Option<u64>>;

impl Expected {
    pub(super) fn new(flow: Rc<Flow>, wanted: &[TensorIndex]) -> Self {
        let mut needed = BTreeSet::new();
        let mut tensors: BTreeSet<TensorIndex> = wanted.iter().copied().collect();
        for _ in &flow.spec.steps {
            for (number, step) in flow.spec.steps.iter().enumerate() {
                if step.outputs.iter().any(|output| tensors.contains(output)) {
                    needed.insert(number);
                    tensors.extend(&step.inputs);
                }
            }
        }
        Expected {
            flow,
            wanted: wanted.to_vec(),
            needed,
            came: BTreeMap::new(),
            waves: BTreeMap::new(),
            started: BTreeSet::new(),
            responded: BTreeSet::new(),
        }
    }

    /// A tensor came; `wave` counts only if it comes in waves.
    pub(super) fn came(&mut self, tensor: TensorIndex, wave: u64, value: Option<Value>) {
        let wave = if self.flow.sources[index(tensor.0)].is_some() { wave } else { 0 };
        self.came.insert((tensor, wave), value);
    }

    /// The steps that should start now, each with its wave and inputs.
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

    /// The responses that should be sent now, by wave.
    pub(super) fn responses(&mut self) -> BTreeMap<u64, Values> {
        let wanted = self.wanted.clone();
        let mut responses = BTreeMap::new();
        for wave in self.waves_of(&wanted) {
            if let Some(values) = self.all(&wanted, wave)
                && self.responded.insert(wave)
            {
                responses.insert(wave, values);
            }
        }
        responses
    }

    /// Whether it may end without a response.
    pub(super) fn may_stay_silent(&self) -> bool {
        self.flow.source_of(&self.wanted).is_some()
    }

    pub(super) fn has_responded(&self) -> bool {
        !self.responded.is_empty()
    }

    fn waves_of(&self, tensors: &[TensorIndex]) -> Vec<u64> {
        match self.flow.source_of(tensors) {
            None => vec![0],
            Some(source) => (0..self.waves.get(&source).copied().unwrap_or(0)).collect(),
        }
    }

    fn key(&self, tensor: TensorIndex, wave: u64) -> (TensorIndex, u64) {
        (tensor, if self.flow.sources[index(tensor.0)].is_some() { wave } else { 0 })
    }

    fn all(&self, tensors: &[TensorIndex], wave: u64) -> Option<Values> {
        let value = |tensor: &TensorIndex| {
            let contents = self.came.get(&self.key(*tensor, wave))?;
            Some(contents.as_ref().map(|value| **value))
        };
        tensors.iter().map(value).collect()
    }

    /// Each value that came, and whether anybody still needs it.
    pub(super) fn values(&self) -> impl Iterator<Item = (&Value, bool)> {
        let values = self.came.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        values.map(|((tensor, wave), value)| (value, self.is_needed(*tensor, *wave)))
    }

    fn is_needed(&self, tensor: TensorIndex, wave: u64) -> bool {
        let in_waves = self.flow.sources[index(tensor.0)].is_some();
        // What comes once and meets waves may always be asked for again.
        let is_done = |group: &[TensorIndex], done: bool| {
            if in_waves || self.flow.source_of(group).is_none() { done } else { false }
        };
        let by_step = self.needed.iter().any(|number| {
            let inputs = &self.flow.spec.steps[*number].inputs;
            inputs.contains(&tensor) && !is_done(inputs, self.started.contains(&(*number, wave)))
        });
        let by_client =
            self.wanted.contains(&tensor) && !is_done(&self.wanted, self.responded.contains(&wave));
        by_step || by_client
    }

    /// Waves of which something waits for what has not come.
    pub(super) fn pending_waves(&self) -> usize {
        let held: BTreeSet<(usize, u64)> = self
            .came
            .keys()
            .filter(|(tensor, wave)| self.is_needed(*tensor, *wave))
            .filter_map(|(tensor, wave)| Some((self.flow.sources[index(tensor.0)]?, *wave)))
            .collect();
        held.len()
    }
}
