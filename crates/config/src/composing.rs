//! Checks whether the composing models of an ensemble fit together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use galatea_protocol::inference::{ModelTransactionPolicy, model_config};
use galatea_tensor::DataType;

use crate::EnsembleStep;
use crate::spec::{InputSpec, ModelSpec, OutputSpec};
use galatea_config_message::{BoundedText, ConfigErrors, Diagnostic, Diagnostics, bounded};

/// The model of a step.
#[derive(Clone, Debug)]
pub struct ComposingModel {
    /// The model's name, including its namespace if it has one.
    pub id: String,
    /// The model's specification.
    pub spec: Arc<ModelSpec>,
}

/// Checks the ensemble `id` against the models of its steps and sets whether it is decoupled.
/// As in Triton, the `decoupled` setting of the ensemble itself is ignored.
///
/// `composing` looks up a model by the name that a step uses. Composing models that are ensembles
/// must already have been validated.
///
/// # Errors
///
/// Returns every mismatch with its step and tensor, in the order in which Triton looks for them.
pub fn validate_ensemble(
    id: &str,
    ensemble: &mut ModelSpec,
    composing: impl Fn(&str) -> Option<ComposingModel>,
) -> Result<(), ConfigErrors> {
    let Some(scheduling) = ensemble.ensemble().cloned() else { return Ok(()) };
    let models: Vec<_> = scheduling.steps.iter().map(|step| composing(&step.model_name)).collect();
    let mut check = EnsembleCheck::new(id, ensemble);
    check.missing_models(&scheduling.steps, &models);
    let steps: Vec<StepModel<'_>> = (0..)
        .zip(scheduling.steps.iter().zip(&models))
        .filter_map(|(index, (step, model))| {
            let ComposingModel { id, spec } = model.as_ref()?;
            Some(StepModel { index, step, id, model: spec })
        })
        .collect();
    for member in &steps {
        check.batch_size(member);
        check.inputs(member);
        check.outputs(member);
    }
    let decoupled = check.check_decoupling(&steps);
    if decoupled && ensemble.own.coalesce {
        let text = bounded!(
            "parameter 'coalesce' contradicts ensemble {id}, which is decoupled because of its \
             models"
        );
        check.report("parameters[\"coalesce\"]".into(), text);
    }
    ConfigErrors { diagnostics: check.diagnostics.into_vec() }.into_result()?;
    set_decoupled(ensemble, decoupled);
    Ok(())
}

impl ModelSpec {
    /// Sets the model namespace of each step of an ensemble; `None` clears it.
    pub fn set_composing_namespaces(&mut self, namespace: impl Fn(&str) -> Option<String>) {
        let choice = &mut self.message.scheduling_choice;
        let Some(model_config::SchedulingChoice::EnsembleScheduling(ensemble)) = choice else {
            return;
        };
        for step in &mut ensemble.step {
            step.model_namespace = namespace(&step.model_name).unwrap_or_default();
        }
    }
}

fn set_decoupled(ensemble: &mut ModelSpec, decoupled: bool) {
    ensemble.decoupled = decoupled;
    // A cache stores one response per request and would lose the others.
    ensemble.response_cache &= !decoupled;
    ensemble.message.model_transaction_policy = Some(ModelTransactionPolicy { decoupled });
}

/// A step and its model.
struct StepModel<'a> {
    index: usize,
    step: &'a EnsembleStep,
    id: &'a str,
    model: &'a ModelSpec,
}

impl StepModel<'_> {
    fn path(&self, field: &str) -> BoundedText {
        bounded!("ensemble_scheduling.step[{}].{field}", self.index)
    }

    fn tensor(&self, datatype: DataType, dims: &[i64]) -> InferredTensor {
        InferredTensor::new(self.id, self.model, datatype, dims)
    }
}

/// A tensor's type and shape, and the model from which they are inferred.
struct InferredTensor {
    model: String,
    datatype: DataType,
    /// The shape without the batch dimension.
    dims: Vec<i64>,
    full_dims: Vec<i64>,
}

impl InferredTensor {
    fn new(id: &str, model: &ModelSpec, datatype: DataType, dims: &[i64]) -> Self {
        let batch = (model.max_batch_size > 0).then_some(-1);
        Self {
            model: id.to_owned(),
            datatype,
            dims: dims.to_vec(),
            full_dims: batch.into_iter().chain(dims.iter().copied()).collect(),
        }
    }

    /// Compares two shapes with or without the batch dimension: a model with batching may feed one
    /// without.
    fn fits(&self, other: &Self) -> bool {
        are_compatible(&self.dims, &other.dims) || are_compatible(&self.full_dims, &other.full_dims)
    }
}

/// Returns true if some shape matches both lists of dimensions, where -1 matches any size.
fn are_compatible(one: &[i64], other: &[i64]) -> bool {
    let pairs = || one.iter().zip(other);
    one.len() == other.len() && pairs().all(|(a, b)| a == b || *a == -1 || *b == -1)
}

fn format_dims(dims: &[i64]) -> BoundedText {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    bounded!("[{}]", dims.join(","))
}

/// The decoupled step from which a tensor's responses originate, if any.
type DecoupledSource = Option<usize>;

struct EnsembleCheck {
    id: String,
    max_batch_size: u32,
    /// The ensemble's own tensors, then the steps' tensors: the first step with a tensor defines
    /// it.
    tensors: BTreeMap<String, InferredTensor>,
    outputs: Vec<String>,
    diagnostics: Diagnostics,
}

impl EnsembleCheck {
    fn new(id: &str, ensemble: &ModelSpec) -> Self {
        let mut tensors = BTreeMap::new();
        let mut add = |name: &str, datatype, dims: &[i64]| {
            let own = InferredTensor::new(id, ensemble, datatype, dims);
            tensors.entry(name.to_owned()).or_insert(own);
        };
        for InputSpec { name, datatype, dims, reshape, .. } in &ensemble.inputs {
            add(name, *datatype, reshape.as_ref().unwrap_or(dims));
        }
        for OutputSpec { name, datatype, dims, reshape, .. } in &ensemble.outputs {
            add(name, *datatype, reshape.as_ref().unwrap_or(dims));
        }
        Self {
            id: id.to_owned(),
            max_batch_size: ensemble.max_batch_size,
            tensors,
            outputs: ensemble.outputs.iter().map(|output| output.name.clone()).collect(),
            diagnostics: Diagnostics::default(),
        }
    }

    fn report(&mut self, path: BoundedText, text: BoundedText) {
        self.diagnostics.push(|| Diagnostic::about(path, text));
    }

    fn missing_models(&mut self, steps: &[EnsembleStep], models: &[Option<ComposingModel>]) {
        for (index, step) in steps.iter().enumerate() {
            if models.get(index).is_none_or(Option::is_none) {
                let path = bounded!("ensemble_scheduling.step[{index}].model_name");
                let text = bounded!(
                    "ensemble {} contains models that are not available or ambiguous: {}",
                    self.id,
                    step.model_name
                );
                self.report(path, text);
            }
        }
    }

    /// Checks the batch size. A model without batching may be part of an ensemble with batching if
    /// the full shapes fit.
    fn batch_size(&mut self, member: &StepModel<'_>) {
        let allowed = member.model.max_batch_size;
        if allowed != 0 && allowed < self.max_batch_size {
            let text = bounded!(
                "ensemble {} allows maximum batch size {}, but it contains model {} which only \
                 allows maximum batch size to be {allowed}",
                self.id,
                self.max_batch_size,
                member.step.model_name
            );
            self.report(member.path("model_name"), text);
        }
    }

    fn inputs(&mut self, member: &StepModel<'_>) {
        let StepModel { step, model, id, .. } = member;
        for (input, tensor) in &step.input_map {
            if model.input(input).is_none() {
                let text = bounded!(
                    "in ensemble {}, ensemble tensor {tensor} is mapping to non-existing input \
                     {input} in model {id}",
                    self.id
                );
                self.report(member.path(&bounded!("input_map[\"{input}\"]")), text);
            }
        }
        for InputSpec { name, datatype, dims, optional, .. } in &model.inputs {
            if let Some(tensor) = step.input_map.get(name) {
                let path = member.path(&bounded!("input_map[\"{name}\"]"));
                self.fits(path, tensor, member.tensor(*datatype, dims));
            } else if !optional {
                let text = bounded!(
                    "in ensemble {}, input {name} in model {id} is not mapped to any ensemble \
                     tensors",
                    self.id
                );
                self.report(member.path("input_map"), text);
            }
        }
    }

    fn outputs(&mut self, member: &StepModel<'_>) {
        let StepModel { step, model, .. } = member;
        let path = |output: &str| member.path(&bounded!("output_map[\"{output}\"]"));
        for (output, tensor) in &step.output_map {
            if model.output(output).is_none() {
                let text = bounded!(
                    "in ensemble {}, ensemble tensor {tensor} is mapped from non-existing output \
                     {output} in model {}",
                    self.id,
                    step.model_name
                );
                self.report(path(output), text);
            }
        }
        for (output, tensor) in &step.output_map {
            if let Some(spec) = model.output(output) {
                self.fits(path(output), tensor, member.tensor(spec.datatype, &spec.dims));
            }
        }
    }

    /// Compares a model's tensor with the first definition of the tensor.
    fn fits(&mut self, path: BoundedText, tensor: &str, tensor_spec: InferredTensor) {
        let Some(first) = self.tensors.get(tensor) else {
            self.tensors.insert(tensor.to_owned(), tensor_spec);
            return;
        };
        let problem = if first.datatype != tensor_spec.datatype {
            bounded!(
                "inconsistent data type: {} is inferred from model {} while {} is inferred from \
                 model {}",
                first.datatype.config_name(),
                first.model,
                tensor_spec.datatype.config_name(),
                tensor_spec.model
            )
        } else if !first.fits(&tensor_spec) {
            bounded!(
                "inconsistent shape: {} is inferred from model {} while {} is inferred from model \
                 {}",
                format_dims(&first.full_dims),
                first.model,
                format_dims(&tensor_spec.full_dims),
                tensor_spec.model
            )
        } else {
            return;
        };
        let text = bounded!("in ensemble {}, ensemble tensor {tensor}: {problem}", self.id);
        self.report(path, text);
    }

    /// Traces the responses of decoupled steps through the ensemble. Returns true if there are any.
    fn check_decoupling(&mut self, steps: &[StepModel<'_>]) -> bool {
        let produced: BTreeSet<&str> = steps.iter().flat_map(produced_by).collect();
        let mut sources: BTreeMap<&str, DecoupledSource> = BTreeMap::new();
        let mut waiting: Vec<&StepModel<'_>> = steps.iter().collect();
        loop {
            let before = waiting.len();
            waiting.retain(|member| {
                let mut inputs = member.step.input_map.values().map(String::as_str);
                if !inputs.all(|tensor| sources.contains_key(tensor) || !produced.contains(tensor))
                {
                    return true;
                }
                let source = self.source(member, &sources);
                sources.extend(produced_by(member).map(|tensor| (tensor, source)));
                false
            });
            // Cycles have already been reported.
            if waiting.len() == before {
                break;
            }
        }
        let outputs: BTreeSet<usize> =
            self.outputs.iter().filter_map(|name| *sources.get(name.as_str())?).collect();
        if outputs.len() > 1 {
            self.report("output".into(), self.different_sources(&self.id));
        }
        sources.values().any(Option::is_some)
    }

    fn different_sources(&self, model: &str) -> BoundedText {
        bounded!(
            "in ensemble {}, step of model '{model}' receives inputs originated from different \
             decoupled models",
            self.id
        )
    }

    /// The decoupled step from which a step's outputs originate.
    fn source(
        &mut self,
        member: &StepModel<'_>,
        sources: &BTreeMap<&str, DecoupledSource>,
    ) -> DecoupledSource {
        let inputs = member.step.input_map.values();
        let inputs: BTreeSet<usize> =
            inputs.filter_map(|tensor| *sources.get(tensor.as_str())?).collect();
        if inputs.len() > 1 {
            // Triton names the model that defines the step's output: the ensemble itself for an
            // ensemble output, otherwise the first step that has the tensor.
            let made = produced_by(member).find_map(|tensor| self.tensors.get(tensor));
            let model = made.map_or(member.id, |tensor| &tensor.model);
            self.report(member.path("input_map"), self.different_sources(model));
        }
        if member.model.decoupled { Some(member.index) } else { inputs.first().copied() }
    }
}

fn produced_by<'a>(member: &StepModel<'a>) -> impl Iterator<Item = &'a str> {
    member.step.output_map.values().map(String::as_str)
}
