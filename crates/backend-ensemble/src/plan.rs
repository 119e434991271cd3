//! An ensemble's configuration, with all names resolved to numbers. Processing a request only
//! requires comparing the names of the request's own tensors.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_backend::ComposingModels;
use galatea_config::{EnsembleStep, ModelSpec};
use galatea_infer::Status;
use galatea_policy::{
    EnsembleGraph, EnsembleSpec, EnsembleStepSpec, EnsembleTensorIndex, StepIndex,
};

/// The [`EnsemblePlan::load_max`] for an ensemble without a limit.
pub(crate) const LOAD_MAX_WITHOUT_LIMIT: usize = 256;

/// An ensemble's steps and their dataflow.
pub(crate) struct EnsemblePlan {
    pub(crate) name: Arc<str>,
    pub(crate) version: i64,
    /// True if the ensemble's tensors have a batch dimension.
    pub(crate) batches: bool,
    pub(crate) inputs: Vec<PlannedInput>,
    pub(crate) outputs: Vec<PlannedOutput>,
    pub(crate) steps: Vec<PlannedStep>,
    pub(crate) graph: EnsembleGraph,
    pub(crate) max_inflight_requests: u32,
}

/// An input of the ensemble.
pub(crate) struct PlannedInput {
    pub(crate) name: String,
    pub(crate) tensor: EnsembleTensorIndex,
}

/// An output of the ensemble.
pub(crate) struct PlannedOutput {
    pub(crate) name: Arc<str>,
    pub(crate) tensor: EnsembleTensorIndex,
    /// The output's shape without the batch dimension.
    pub(crate) dims: Vec<i64>,
}

/// A composing model and its tensors.
pub(crate) struct PlannedStep {
    pub(crate) model: String,
    pub(crate) version: Option<i64>,
    /// True if the model's tensors have a batch dimension.
    pub(crate) batches: bool,
    pub(crate) decoupled: bool,
    pub(crate) inputs: Vec<StepInput>,
    pub(crate) outputs: Vec<StepOutput>,
    /// The names of the outputs that only other steps use.
    pub(crate) inner_outputs: Arc<[String]>,
}

/// An input of a composing model. The graph contains the corresponding tensor.
pub(crate) struct StepInput {
    pub(crate) name: String,
    /// The input's shape without the batch dimension.
    pub(crate) dims: Vec<i64>,
}

/// An output of a composing model, and the tensor that it becomes.
pub(crate) struct StepOutput {
    pub(crate) name: String,
    pub(crate) tensor: EnsembleTensorIndex,
}

/// Numbers the tensors in the order of their first use.
#[derive(Default)]
struct TensorNumbering<'a>(BTreeMap<&'a str, EnsembleTensorIndex>);

impl<'a> TensorNumbering<'a> {
    fn index(&mut self, name: &'a str) -> EnsembleTensorIndex {
        let next = EnsembleTensorIndex(self.count());
        *self.0.entry(name).or_insert(next)
    }

    fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }
}

impl EnsemblePlan {
    pub(crate) fn new(
        spec: &ModelSpec,
        models: &dyn ComposingModels,
        version: i64,
    ) -> Result<Self, Status> {
        let scheduling = spec.ensemble().ok_or_else(|| {
            let name = &spec.name;
            Status::invalid_argument(format!("model '{name}' has no ensemble_scheduling"))
        })?;
        let mut numbering = TensorNumbering::default();
        let inputs = spec.inputs.iter().map(|input| PlannedInput {
            name: input.name.clone(),
            tensor: numbering.index(&input.name),
        });
        let inputs: Vec<PlannedInput> = inputs.collect();
        let outputs = spec.outputs.iter().map(|output| PlannedOutput {
            name: Arc::from(output.name.as_str()),
            tensor: numbering.index(&output.name),
            dims: output.reshape.as_ref().unwrap_or(&output.dims).clone(),
        });
        let outputs: Vec<PlannedOutput> = outputs.collect();
        let steps = scheduling.steps.iter();
        let steps: Vec<(PlannedStep, EnsembleStepSpec)> = steps
            .map(|step| plan_step(spec, step, models, &mut numbering))
            .collect::<Result<_, _>>()?;
        let graph = EnsembleGraph::new(&EnsembleSpec {
            tensors: numbering.count(),
            inputs: inputs.iter().map(|input| input.tensor).collect(),
            outputs: outputs.iter().map(|output| output.tensor).collect(),
            steps: steps.iter().map(|(_, step)| step.clone()).collect(),
        });
        // This is unexpected: the configuration check finds the same errors and has better
        // messages.
        let graph = graph.map_err(|error| {
            Status::invalid_argument(format!("ensemble '{}' can't run: {error:?}", spec.name))
        })?;
        Ok(Self {
            name: Arc::from(spec.name.as_str()),
            version,
            batches: spec.max_batch_size > 0,
            inputs,
            outputs,
            steps: steps.into_iter().map(|(step, _)| step).collect(),
            graph,
            max_inflight_requests: scheduling.max_inflight_requests,
        })
    }

    #[expect(clippy::indexing_slicing, reason = "the graph numbers these steps, and a u32 fits")]
    pub(crate) fn step(&self, index: StepIndex) -> &PlannedStep {
        &self.steps[index.0 as usize]
    }

    /// The amount of pending work at which one request's decoupled steps pause. With a limit, it
    /// equals the number of calls that may be in a step or waiting at its gate. Otherwise, it is
    /// large enough to keep all steps busy. `None` if no step is decoupled.
    pub(crate) fn load_max(&self) -> Option<usize> {
        let load_max = match usize::try_from(self.max_inflight_requests) {
            Ok(0) => LOAD_MAX_WITHOUT_LIMIT,
            Ok(limit) => limit.saturating_mul(2),
            Err(_) => usize::MAX,
        };
        self.graph.is_decoupled().then_some(load_max)
    }
}

fn plan_step<'a>(
    spec: &ModelSpec,
    step: &'a EnsembleStep,
    models: &dyn ComposingModels,
    numbering: &mut TensorNumbering<'a>,
) -> Result<(PlannedStep, EnsembleStepSpec), Status> {
    let missing = |what: &str| {
        let text = format!("ensemble '{}' needs {what} of model '{}'", spec.name, step.model_name);
        Status::invalid_argument(text)
    };
    let model = models
        .spec(&step.model_name, step.model_version)
        .ok_or_else(|| missing("the configuration"))?;
    let mut inputs = Vec::with_capacity(step.input_map.len());
    for name in step.input_map.keys() {
        let input = model.input(name).ok_or_else(|| missing(&format!("the input '{name}'")))?;
        inputs.push(StepInput { name: name.clone(), dims: input.dims.clone() });
    }
    let outputs: Vec<StepOutput> = step
        .output_map
        .iter()
        .map(|(name, tensor)| StepOutput { name: name.clone(), tensor: numbering.index(tensor) })
        .collect();
    let is_inner = |tensor: &String| spec.outputs.iter().all(|output| output.name != *tensor);
    let inner = step.output_map.iter().filter(|(_, tensor)| is_inner(tensor));
    let inner_outputs = inner.map(|(name, _)| name.clone()).collect();
    let in_graph = EnsembleStepSpec {
        inputs: step.input_map.values().map(|tensor| numbering.index(tensor)).collect(),
        outputs: outputs.iter().map(|output| output.tensor).collect(),
        decoupled: model.decoupled,
    };
    let step = PlannedStep {
        model: step.model_name.clone(),
        version: step.model_version,
        batches: model.max_batch_size > 0,
        decoupled: model.decoupled,
        inputs,
        outputs,
        inner_outputs,
    };
    Ok((step, in_graph))
}
