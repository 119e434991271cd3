//! An ensemble's configuration, validated and converted to the form that runs need.

/// A tensor of an ensemble. The driver numbers tensors from 0.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EnsembleTensorIndex(pub u32);

/// A step of an ensemble, numbered in configuration order.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StepIndex(pub u32);

/// An ensemble as described by its configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EnsembleSpec {
    /// The number of tensors.
    pub tensors: u32,
    /// Tensors that a request may provide or omit.
    pub inputs: Vec<EnsembleTensorIndex>,
    /// Tensors that a client can request.
    pub outputs: Vec<EnsembleTensorIndex>,
    /// The steps.
    pub steps: Vec<EnsembleStepSpec>,
}

/// One step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EnsembleStepSpec {
    /// The tensors of the step's inputs. One tensor may feed several inputs.
    pub inputs: Vec<EnsembleTensorIndex>,
    /// The tensors of the step's outputs.
    pub outputs: Vec<EnsembleTensorIndex>,
    /// True if the step's model is decoupled.
    pub decoupled: bool,
}

/// The reason why a specification isn't a valid ensemble.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum EnsembleGraphError {
    /// No step produces the tensor.
    NotProduced(EnsembleTensorIndex),
    /// Two steps produce the tensor, or a step produces an ensemble input.
    ProducedTwice(EnsembleTensorIndex),
    /// The step depends on itself, perhaps indirectly.
    Cycle(StepIndex),
    /// The step needs tensors from different decoupled steps.
    MixedWaves(StepIndex),
    /// The ensemble's outputs come from different decoupled steps.
    MixedOutputWaves,
    /// The step has no inputs, so it would never start.
    NoInputs(StepIndex),
}

/// A validated ensemble.
#[derive(Clone, Debug)]
pub struct EnsembleGraph {
    pub(super) steps: Vec<Step>,
    pub(super) tensors: Vec<Tensor>,
    decoupled: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) inputs: Vec<EnsembleTensorIndex>,
    pub(super) outputs: Vec<EnsembleTensorIndex>,
    pub(super) decoupled: bool,
    /// The decoupled step that numbers the step's waves.
    pub(super) source: Option<StepIndex>,
    /// Steps that need one of this step's outputs.
    pub(super) downstream: Vec<StepIndex>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tensor {
    pub(super) producer: Option<StepIndex>,
    /// Steps that need the tensor, without duplicates.
    pub(super) consumers: Vec<StepIndex>,
    /// The decoupled step that numbers the tensor's waves.
    pub(super) source: Option<StepIndex>,
}

pub(super) fn to_usize(number: u32) -> usize {
    number as usize
}

impl EnsembleGraph {
    /// Validates the specification.
    ///
    /// # Errors
    ///
    /// Returns the first fault found.
    ///
    /// # Panics
    ///
    /// Panics if a tensor's number isn't below `spec.tensors`.
    pub fn new(spec: &EnsembleSpec) -> Result<Self, EnsembleGraphError> {
        let mut graph = EnsembleGraph {
            steps: Vec::new(),
            tensors: vec![Tensor::default(); to_usize(spec.tensors)],
            decoupled: false,
        };
        graph.connect(spec)?;
        for index in graph.order()? {
            graph.find_source(index)?;
        }
        let sources: Vec<StepIndex> =
            spec.outputs.iter().filter_map(|output| graph.tensor(*output).source).collect();
        if sources.iter().any(|source| *source != sources[0]) {
            return Err(EnsembleGraphError::MixedOutputWaves);
        }
        graph.decoupled = !sources.is_empty();
        Ok(graph)
    }

    /// Returns true if a request may have any number of responses.
    pub fn is_decoupled(&self) -> bool {
        self.decoupled
    }

    /// For each step, true if the requested outputs depend on it.
    pub fn needed_steps(&self, requested: &[EnsembleTensorIndex]) -> Vec<bool> {
        let mut needed = vec![false; self.steps.len()];
        let mut unvisited: Vec<EnsembleTensorIndex> = requested.to_vec();
        while let Some(index) = unvisited.pop() {
            if let Some(producer) = self.tensor(index).producer
                && !std::mem::replace(&mut needed[to_usize(producer.0)], true)
            {
                unvisited.extend(&self.step(producer).inputs);
            }
        }
        needed
    }

    pub(super) fn tensor(&self, index: EnsembleTensorIndex) -> &Tensor {
        &self.tensors[to_usize(index.0)]
    }

    pub(super) fn step(&self, index: StepIndex) -> &Step {
        &self.steps[to_usize(index.0)]
    }

    fn connect(&mut self, spec: &EnsembleSpec) -> Result<(), EnsembleGraphError> {
        for (index, step) in (0..).map(StepIndex).zip(&spec.steps) {
            if step.inputs.is_empty() {
                return Err(EnsembleGraphError::NoInputs(index));
            }
            for output in &step.outputs {
                let tensor = &mut self.tensors[to_usize(output.0)];
                if tensor.producer.is_some() || spec.inputs.contains(output) {
                    return Err(EnsembleGraphError::ProducedTwice(*output));
                }
                tensor.producer = Some(index);
            }
            for input in &step.inputs {
                let consumers = &mut self.tensors[to_usize(input.0)].consumers;
                if consumers.last() != Some(&index) {
                    consumers.push(index);
                }
            }
            self.steps.push(Step {
                inputs: step.inputs.clone(),
                outputs: step.outputs.clone(),
                decoupled: step.decoupled,
                source: None,
                downstream: Vec::new(),
            });
        }
        let needed = spec.steps.iter().flat_map(|step| &step.inputs).chain(&spec.outputs);
        for tensor in needed {
            if self.tensor(*tensor).producer.is_none() && !spec.inputs.contains(tensor) {
                return Err(EnsembleGraphError::NotProduced(*tensor));
            }
        }
        for index in 0..self.steps.len() {
            let outputs = self.steps[index].outputs.iter();
            let mut downstream: Vec<StepIndex> =
                outputs.flat_map(|output| self.tensor(*output).consumers.clone()).collect();
            downstream.sort_unstable();
            downstream.dedup();
            self.steps[index].downstream = downstream;
        }
        Ok(())
    }

    /// Returns the steps in topological order.
    pub(super) fn order(&self) -> Result<Vec<StepIndex>, EnsembleGraphError> {
        let producers = |step: &Step| {
            let inputs = step.inputs.iter();
            let mut found: Vec<StepIndex> =
                inputs.filter_map(|input| self.tensor(*input).producer).collect();
            found.sort_unstable();
            found.dedup();
            found
        };
        let mut missing: Vec<usize> = self.steps.iter().map(|step| producers(step).len()).collect();
        let numbered = (0..).map(StepIndex);
        let mut order: Vec<StepIndex> = numbered
            .take(self.steps.len())
            .filter(|index| missing[to_usize(index.0)] == 0)
            .collect();
        let mut next = 0;
        while let Some(index) = order.get(next).copied() {
            next += 1;
            for consumer in &self.step(index).downstream {
                missing[to_usize(consumer.0)] -= 1;
                if missing[to_usize(consumer.0)] == 0 {
                    order.push(*consumer);
                }
            }
        }
        match (0..).map(StepIndex).zip(&missing).find(|(_, missing)| **missing > 0) {
            Some((index, _)) => Err(EnsembleGraphError::Cycle(index)),
            None => Ok(order),
        }
    }

    /// Sets the source of the step and its outputs.
    fn find_source(&mut self, index: StepIndex) -> Result<(), EnsembleGraphError> {
        let step = self.step(index);
        let mut sources = step.inputs.iter().filter_map(|input| self.tensor(*input).source);
        let source = sources.next();
        if sources.any(|other| Some(other) != source) {
            return Err(EnsembleGraphError::MixedWaves(index));
        }
        let of_outputs = if step.decoupled { Some(index) } else { source };
        for output in step.outputs.clone() {
            self.tensors[to_usize(output.0)].source = of_outputs;
        }
        self.steps[to_usize(index.0)].source = source;
        Ok(())
    }
}
