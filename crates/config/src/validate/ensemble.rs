//! Checks ensembles without their composing models.

use std::collections::{BTreeMap, BTreeSet};

use galatea_protocol::inference::model_ensembling::Step;
use galatea_protocol::inference::{ModelConfig, ModelEnsembling};

use super::cycles::DependencyGraph;
use crate::BATCH_STRATEGY;
use crate::identity::is_ensemble;
use galatea_config_message::{BoundedText, Diagnostic, Diagnostics, bounded};

/// The maximum number of reported cycles: further cycles usually come from the same mistake.
const CYCLES_MAX: usize = 32;

/// The maximum number of steps to name between the first step of a cycle and the return to it.
const CYCLE_STEPS_MAX: usize = 20;

pub(super) fn check(
    config: &ModelConfig,
    ensembling: &ModelEnsembling,
    diagnostics: &mut Diagnostics,
) {
    check_other_settings(config, diagnostics);
    if ensembling.step.is_empty() {
        let text = bounded!("must specify 'step' for ensemble '{}'", config.name);
        return diagnostics.push(|| Diagnostic::at_poll("ensemble_scheduling.step", text));
    }
    let before = diagnostics.len();
    for (index, step) in ensembling.step.iter().enumerate() {
        check_step(config, step, index, diagnostics);
    }
    // Later checks would report tensors that are missing because of these errors.
    if diagnostics.len() == before {
        let graph = TensorGraph::new(config, ensembling, diagnostics);
        graph.check_inputs(diagnostics);
        graph.check_outputs(diagnostics);
        graph.check_cycles(diagnostics);
        graph.check_unused(diagnostics);
    }
}

/// Refuses settings that an ensemble must not have.
fn check_other_settings(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    let name = &config.name;
    let mut report = |path: &'static str, text: BoundedText| {
        diagnostics.push(|| Diagnostic::at_poll(path, text));
    };
    if !is_ensemble(&config.platform) {
        let text = bounded!(
            "ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble"
        );
        report("ensemble_scheduling", text);
    }
    if !config.instance_group.is_empty() {
        let text = bounded!("instance group should not be specified for ensemble '{name}'");
        report("instance_group", text);
    }
    if config.optimization.is_some() {
        let text = bounded!("optimization should not be specified for ensemble '{name}'");
        report("optimization", text);
    }
    if !config.model_warmup.is_empty() {
        let text = bounded!("model_warmup can not be specified for ensemble '{name}'");
        report("model_warmup", text);
    }
    if config.parameters.contains_key(BATCH_STRATEGY) {
        let text = bounded!("{BATCH_STRATEGY} should not be specified for ensemble '{name}'");
        let path = bounded!("parameters[\"{BATCH_STRATEGY}\"]");
        diagnostics.push(|| Diagnostic::new_tolerated(path, text));
    }
}

fn step_path(index: usize) -> BoundedText {
    bounded!("ensemble_scheduling.step[{index}]")
}

fn check_step(config: &ModelConfig, step: &Step, index: usize, diagnostics: &mut Diagnostics) {
    let missing = [
        ("model_name", step.model_name.is_empty()),
        ("input_map", step.input_map.is_empty()),
        ("output_map", step.output_map.is_empty()),
    ];
    for (field, _) in missing.iter().filter(|(_, is_missing)| *is_missing) {
        let text = bounded!("must specify '{field}' in step {index} of ensemble '{}'", config.name);
        diagnostics.push(|| Diagnostic::at_poll(bounded!("{}.{field}", step_path(index)), text));
    }
    if step.model_name == config.name && !config.name.is_empty() {
        let text = bounded!("step {index} of ensemble '{}' is the ensemble itself", config.name);
        diagnostics.push(|| Diagnostic::about(bounded!("{}.model_name", step_path(index)), text));
    }
}

/// The tensor that blocks another tensor.
#[derive(Copy, Clone)]
struct BlockingTensor<'a> {
    own: &'a str,
    /// The tensor that blocks its dependents: in a cycle, the previous tensor.
    for_dependents: &'a str,
}

/// The tensors of an ensemble, the steps that produce them, and which of them can run.
struct TensorGraph<'a> {
    config: &'a ModelConfig,
    steps: &'a [Step],
    /// The step that produces each tensor.
    producers: BTreeMap<&'a str, usize>,
    /// The ensemble's inputs.
    inputs: BTreeSet<&'a str>,
    /// The ensemble's outputs.
    outputs: BTreeSet<&'a str>,
    /// The tensors that a step consumes.
    consumed: BTreeSet<&'a str>,
    /// The tensors from requests and from steps that can run.
    ready: BTreeSet<&'a str>,
}

impl<'a> TensorGraph<'a> {
    fn new(
        config: &'a ModelConfig,
        ensembling: &'a ModelEnsembling,
        diagnostics: &mut Diagnostics,
    ) -> Self {
        let steps = ensembling.step.as_slice();
        let consumed = steps.iter().flat_map(|step| step.input_map.values().map(String::as_str));
        let inputs: BTreeSet<&str> = config.input.iter().map(|input| input.name.as_str()).collect();
        let mut graph = TensorGraph {
            config,
            steps,
            producers: BTreeMap::new(),
            ready: inputs.clone(),
            inputs,
            outputs: config.output.iter().map(|output| output.name.as_str()).collect(),
            consumed: consumed.collect(),
        };
        for (index, step) in steps.iter().enumerate() {
            graph.add_outputs(step, index, diagnostics);
        }
        graph.run();
        graph
    }

    fn add_outputs(&mut self, step: &'a Step, index: usize, diagnostics: &mut Diagnostics) {
        let name = &self.config.name;
        for (output, tensor) in &step.output_map {
            let path = || bounded!("{}.output_map[\"{output}\"]", step_path(index));
            if self.producers.insert(tensor, index).is_some() {
                let text = bounded!(
                    "ensemble tensor '{tensor}' can appear in an output map only once for \
                     ensemble '{name}' step {index}"
                );
                diagnostics.push(|| Diagnostic::at_poll(path(), text));
            } else if self.inputs.contains(tensor.as_str()) {
                let text = bounded!(
                    "ensemble tensor '{tensor}' is an input of ensemble '{name}' and is made by \
                     step {index} as well, so that requests fail"
                );
                diagnostics.push(|| Diagnostic::new_tolerated(path(), text));
            }
        }
    }

    /// Marks the tensors of all steps that can run as ready.
    fn run(&mut self) {
        let mut consumers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        // The number of tensors for which each step waits; duplicates count twice.
        let mut missing = Vec::with_capacity(self.steps.len());
        for (index, step) in self.steps.iter().enumerate() {
            let tensors = step.input_map.values().map(String::as_str);
            let missed = tensors.filter(|tensor| !self.ready.contains(tensor));
            let missed = missed.map(|tensor| consumers.entry(tensor).or_default().push(index));
            missing.push(missed.count());
        }
        let mut can_run: Vec<usize> =
            (0..missing.len()).filter(|index| missing.get(*index) == Some(&0)).collect();
        while let Some(step) = can_run.pop().and_then(|index| self.steps.get(index)) {
            for tensor in step.output_map.values() {
                if !self.ready.insert(tensor) {
                    continue;
                }
                for &consumer in consumers.get(tensor.as_str()).into_iter().flatten() {
                    let Some(left) = missing.get_mut(consumer) else { continue };
                    *left -= 1;
                    if *left == 0 {
                        can_run.push(consumer);
                    }
                }
            }
        }
    }

    fn is_known(&self, tensor: &str) -> bool {
        self.consumed.contains(tensor) || self.producers.contains_key(tensor)
    }

    fn check_inputs(&self, diagnostics: &mut Diagnostics) {
        for (index, input) in self.config.input.iter().enumerate() {
            if !self.is_known(&input.name) {
                let text = bounded!(
                    "ensemble input '{}' for ensemble '{}' is not used",
                    input.name,
                    self.config.name
                );
                diagnostics.push(|| Diagnostic::at_poll(bounded!("input[{index}].name"), text));
            }
        }
    }

    fn check_outputs(&self, diagnostics: &mut Diagnostics) {
        let name = &self.config.name;
        let mut known = BTreeMap::new();
        for (index, output) in self.config.output.iter().enumerate() {
            let tensor = output.name.as_str();
            let text = if !self.is_known(tensor) {
                bounded!("ensemble output '{tensor}' for ensemble '{name}' is not used")
            } else if !self.ready.contains(tensor) {
                let text = bounded!("output '{tensor}' for ensemble '{name}' is not written");
                match self.cause(tensor, &mut known) {
                    cause if cause == tensor => text,
                    cause => bounded!(
                        "{text}: at least one of its depending tensors, '{cause}', is not \
                         connected"
                    ),
                }
            } else {
                continue;
            };
            diagnostics.push(|| Diagnostic::at_poll(bounded!("output[{index}].name"), text));
        }
    }

    /// Finds the tensor that blocks `tensor` by following missing inputs to one that no step
    /// produces, or into a cycle. `known` contains the results of earlier searches.
    fn cause(&self, tensor: &'a str, known: &mut BTreeMap<&'a str, BlockingTensor<'a>>) -> &'a str {
        let mut positions = BTreeMap::new();
        let mut path = Vec::new();
        let mut current = tensor;
        while !known.contains_key(current) && !positions.contains_key(current) {
            positions.insert(current, path.len());
            path.push(current);
            current = self.missing_input(current).unwrap_or(current);
        }
        let cycle = path.split_off(positions.get(current).copied().unwrap_or(path.len()));
        let mut before = cycle.last().copied();
        for own in cycle {
            known.insert(own, BlockingTensor { own, for_dependents: before.unwrap_or(own) });
            before = Some(own);
        }
        let cause = known.get(current).map_or(tensor, |cause| cause.for_dependents);
        known.extend(
            path.into_iter().map(|one| (one, BlockingTensor { own: cause, for_dependents: cause })),
        );
        known.get(tensor).map_or(tensor, |cause| cause.own)
    }

    /// An input of the tensor's step that is never ready.
    fn missing_input(&self, tensor: &str) -> Option<&'a str> {
        let step = self.steps.get(*self.producers.get(tensor)?)?;
        let inputs = step.input_map.values().map(String::as_str);
        inputs.into_iter().find(|input| !self.ready.contains(input))
    }

    /// Reports each cycle of steps that wait for each other, at the cycle's first step.
    fn check_cycles(&self, diagnostics: &mut Diagnostics) {
        for cycle in self.dependencies().cycles(CYCLES_MAX) {
            let Some(&index) = cycle.first() else { continue };
            let text = bounded!(
                "step {index} of ensemble '{}', model '{}', waits for itself: {}",
                self.config.name,
                self.model_of(index),
                self.describe_cycle(&cycle)
            );
            diagnostics
                .push(|| Diagnostic::at_poll(bounded!("{}.input_map", step_path(index)), text));
        }
    }

    /// The blocked steps for which each step waits.
    fn dependencies(&self) -> DependencyGraph {
        let of_step = |step: &Step| {
            let missing =
                step.input_map.values().filter(|tensor| !self.ready.contains(tensor.as_str()));
            missing.filter_map(|tensor| self.producers.get(tensor.as_str()).copied()).collect()
        };
        DependencyGraph(self.steps.iter().map(of_step).collect())
    }

    fn model_of(&self, step: usize) -> &'a str {
        self.steps.get(step).map_or("", |step| step.model_name.as_str())
    }

    /// The models of a cycle, in execution order; in a long cycle, the middle is only counted.
    fn describe_cycle(&self, cycle: &[usize]) -> BoundedText {
        let Some((start, rest)) = cycle.split_first() else { return BoundedText::default() };
        let mut models = vec![self.model_of(*start).to_owned()];
        let left_out = rest.len().saturating_sub(CYCLE_STEPS_MAX);
        let half = if left_out == 0 { rest.len() } else { CYCLE_STEPS_MAX / 2 };
        let (last, before) = rest.split_at(half);
        let (between, first) = before.split_at(left_out);
        models.extend(first.iter().rev().map(|&step| self.model_of(step).to_owned()));
        if !between.is_empty() {
            models.push(format!("({left_out} more steps)"));
        }
        models.extend(last.iter().rev().map(|&step| self.model_of(step).to_owned()));
        models.push(self.model_of(*start).to_owned());
        bounded!("{}", models.join(" -> "))
    }

    /// Reports tensors that no step produces and tensors that no step consumes.
    fn check_unused(&self, diagnostics: &mut Diagnostics) {
        for (index, step) in self.steps.iter().enumerate() {
            let mut report = |field: &str, key: &str, tensor: &str, reason: &str| {
                if !self.outputs.contains(tensor) {
                    let name = &self.config.name;
                    let text = bounded!(
                        "ensemble tensor '{tensor}' is unused in ensemble '{name}'{reason}"
                    );
                    let path = bounded!("{}.{field}[\"{key}\"]", step_path(index));
                    diagnostics.push(|| Diagnostic::at_poll(path, text));
                }
            };
            for (input, tensor) in &step.input_map {
                let is_produced = self.producers.contains_key(tensor.as_str());
                if !is_produced && !self.ready.contains(tensor.as_str()) {
                    let reason = ": no step makes it and it is no input of the ensemble";
                    report("input_map", input, tensor, reason);
                }
            }
            for (output, tensor) in &step.output_map {
                if !self.consumed.contains(tensor.as_str()) {
                    report("output_map", output, tensor, "");
                }
            }
        }
    }
}
