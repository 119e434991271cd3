//! Ensembles: what can be said without looking at the composing models.

use std::collections::{BTreeMap, BTreeSet};

use galatea_protocol::inference::model_ensembling::Step;
use galatea_protocol::inference::{ModelConfig, ModelEnsembling};

use super::batching::BATCH_STRATEGY;
use super::circles::Needs;
use crate::diagnostic::Diagnostic;
use crate::identity::is_ensemble;

/// How many circles of steps are reported; whoever has more has one mistake many times.
const CIRCLES_MAX: usize = 32;

/// How many steps of a circle are named between its first step and the return to it.
const CIRCLE_STEPS_MAX: usize = 20;

pub(super) fn check(
    config: &ModelConfig,
    ensembling: &ModelEnsembling,
    found: &mut Vec<Diagnostic>,
) {
    check_company(config, found);
    if ensembling.step.is_empty() {
        let text = format!("must specify 'step' for ensemble '{}'", config.name);
        return found.push(Diagnostic::about("ensemble_scheduling.step", text));
    }
    let before = found.len();
    for (index, step) in ensembling.step.iter().enumerate() {
        check_step(config, step, index, found);
    }
    // What follows would speak of tensors that are only missing by mistake.
    if found.len() == before {
        let flow = Flow::of(config, ensembling, found);
        flow.check_inputs(found);
        flow.check_outputs(found);
        flow.check_waiting(found);
        flow.check_unused(found);
    }
}

/// What has no meaning beside steps.
fn check_company(config: &ModelConfig, found: &mut Vec<Diagnostic>) {
    let name = &config.name;
    let mut report = |path: &str, text: String| found.push(Diagnostic::about(path, text));
    if !is_ensemble(&config.platform) {
        let text = format!(
            "ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble"
        );
        report("ensemble_scheduling", text);
    }
    if !config.instance_group.is_empty() {
        let text = format!("instance group should not be specified for ensemble '{name}'");
        report("instance_group", text);
    }
    if config.optimization.is_some() {
        let text = format!("optimization should not be specified for ensemble '{name}'");
        report("optimization", text);
    }
    if !config.model_warmup.is_empty() {
        let text = format!("model_warmup can not be specified for ensemble '{name}'");
        report("model_warmup", text);
    }
    if config.parameters.contains_key(BATCH_STRATEGY) {
        let text = format!("{BATCH_STRATEGY} should not be specified for ensemble '{name}'");
        report(&format!("parameters[\"{BATCH_STRATEGY}\"]"), text);
    }
}

fn step_path(index: usize) -> String {
    format!("ensemble_scheduling.step[{index}]")
}

fn check_step(config: &ModelConfig, step: &Step, index: usize, found: &mut Vec<Diagnostic>) {
    let missing = [
        ("model_name", step.model_name.is_empty()),
        ("input_map", step.input_map.is_empty()),
        ("output_map", step.output_map.is_empty()),
    ];
    for (field, _) in missing.iter().filter(|(_, is_missing)| *is_missing) {
        let text = format!("must specify '{field}' in step {index} of ensemble '{}'", config.name);
        found.push(Diagnostic::about(format!("{}.{field}", step_path(index)), text));
    }
    if step.model_name == config.name && !config.name.is_empty() {
        let text = format!("step {index} of ensemble '{}' is the ensemble itself", config.name);
        found.push(Diagnostic::about(format!("{}.model_name", step_path(index)), text));
    }
}

/// Which tensor keeps another one from being made.
#[derive(Copy, Clone)]
struct Cause<'a> {
    of_itself: &'a str,
    /// That of tensors that wait for it: where they come to a circle, the last of it.
    of_others: &'a str,
}

/// Which step makes each tensor of an ensemble, and which steps run.
struct Flow<'a> {
    config: &'a ModelConfig,
    steps: &'a [Step],
    /// The step behind each tensor that a step makes.
    makers: BTreeMap<&'a str, usize>,
    /// The ensemble's inputs.
    inputs: BTreeSet<&'a str>,
    /// The ensemble's outputs.
    outputs: BTreeSet<&'a str>,
    /// Tensors that some step takes.
    taken: BTreeSet<&'a str>,
    /// Tensors that requests bring or that steps make which can run.
    ready: BTreeSet<&'a str>,
}

impl<'a> Flow<'a> {
    fn of(
        config: &'a ModelConfig,
        ensembling: &'a ModelEnsembling,
        found: &mut Vec<Diagnostic>,
    ) -> Self {
        let steps = ensembling.step.as_slice();
        let taken = steps.iter().flat_map(|step| step.input_map.values().map(String::as_str));
        let inputs: BTreeSet<&str> = config.input.iter().map(|input| input.name.as_str()).collect();
        let mut flow = Flow {
            config,
            steps,
            makers: BTreeMap::new(),
            ready: inputs.clone(),
            inputs,
            outputs: config.output.iter().map(|output| output.name.as_str()).collect(),
            taken: taken.collect(),
        };
        for (index, step) in steps.iter().enumerate() {
            flow.add_outputs(step, index, found);
        }
        flow.run();
        flow
    }

    fn add_outputs(&mut self, step: &'a Step, index: usize, found: &mut Vec<Diagnostic>) {
        let name = &self.config.name;
        for (output, tensor) in &step.output_map {
            let text = if self.inputs.contains(tensor.as_str()) {
                format!(
                    "ensemble tensor '{tensor}' is an input of ensemble '{name}' and can not \
                     appear in the output map of step {index}"
                )
            } else if self.makers.insert(tensor, index).is_some() {
                format!(
                    "ensemble tensor '{tensor}' can appear in an output map only once for \
                     ensemble '{name}' step {index}"
                )
            } else {
                continue;
            };
            let path = format!("{}.output_map[\"{output}\"]", step_path(index));
            found.push(Diagnostic::about(path, text));
        }
    }

    /// Lets every step run that can.
    fn run(&mut self) {
        let mut takers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        // How many tensors each step waits for; one that it takes twice counts twice.
        let mut missing = Vec::with_capacity(self.steps.len());
        for (index, step) in self.steps.iter().enumerate() {
            let tensors = step.input_map.values().map(String::as_str);
            let missed = tensors.filter(|tensor| !self.ready.contains(tensor));
            let missed = missed.map(|tensor| takers.entry(tensor).or_default().push(index));
            missing.push(missed.count());
        }
        let mut can_run: Vec<usize> =
            (0..missing.len()).filter(|index| missing.get(*index) == Some(&0)).collect();
        while let Some(step) = can_run.pop().and_then(|index| self.steps.get(index)) {
            for tensor in step.output_map.values() {
                if !self.ready.insert(tensor) {
                    continue;
                }
                for &taker in takers.get(tensor.as_str()).into_iter().flatten() {
                    let Some(left) = missing.get_mut(taker) else { continue };
                    *left -= 1;
                    if *left == 0 {
                        can_run.push(taker);
                    }
                }
            }
        }
    }

    fn is_known(&self, tensor: &str) -> bool {
        self.taken.contains(tensor) || self.makers.contains_key(tensor)
    }

    fn check_inputs(&self, found: &mut Vec<Diagnostic>) {
        for (index, input) in self.config.input.iter().enumerate() {
            if !self.is_known(&input.name) {
                let text = format!(
                    "ensemble input '{}' for ensemble '{}' is not used",
                    input.name, self.config.name
                );
                found.push(Diagnostic::about(format!("input[{index}].name"), text));
            }
        }
    }

    fn check_outputs(&self, found: &mut Vec<Diagnostic>) {
        let name = &self.config.name;
        let mut known = BTreeMap::new();
        for (index, output) in self.config.output.iter().enumerate() {
            let tensor = output.name.as_str();
            let text = if !self.is_known(tensor) {
                format!("ensemble output '{tensor}' for ensemble '{name}' is not used")
            } else if !self.ready.contains(tensor) {
                let text = format!("output '{tensor}' for ensemble '{name}' is not written");
                match self.cause(tensor, &mut known) {
                    cause if cause == tensor => text,
                    cause => format!(
                        "{text}: at least one of its depending tensors, '{cause}', is not \
                         connected"
                    ),
                }
            } else {
                continue;
            };
            found.push(Diagnostic::about(format!("output[{index}].name"), text));
        }
    }

    /// Follows tensors that don't come back to where they are not made, or to
    /// where they go round in a circle; `known` is what was found on the way to
    /// others.
    fn cause(&self, tensor: &'a str, known: &mut BTreeMap<&'a str, Cause<'a>>) -> &'a str {
        let mut places = BTreeMap::new();
        let mut way = Vec::new();
        let mut current = tensor;
        while !known.contains_key(current) && !places.contains_key(current) {
            places.insert(current, way.len());
            way.push(current);
            current = self.missing_input(current).unwrap_or(current);
        }
        let circle = way.split_off(places.get(current).copied().unwrap_or(way.len()));
        let mut before = circle.last().copied();
        for of_itself in circle {
            known.insert(of_itself, Cause { of_itself, of_others: before.unwrap_or(of_itself) });
            before = Some(of_itself);
        }
        let cause = known.get(current).map_or(tensor, |cause| cause.of_others);
        known
            .extend(way.into_iter().map(|one| (one, Cause { of_itself: cause, of_others: cause })));
        known.get(tensor).map_or(tensor, |cause| cause.of_itself)
    }

    /// An input that the tensor's step waits for in vain.
    fn missing_input(&self, tensor: &str) -> Option<&'a str> {
        let step = self.steps.get(*self.makers.get(tensor)?)?;
        let inputs = step.input_map.values().map(String::as_str);
        inputs.into_iter().find(|input| !self.ready.contains(input))
    }

    /// Names circles of steps that wait for each other, each once, by its first
    /// step.
    fn check_waiting(&self, found: &mut Vec<Diagnostic>) {
        for circle in self.needs().circles(CIRCLES_MAX) {
            let Some(&index) = circle.first() else { continue };
            let text = format!(
                "step {index} of ensemble '{}', model '{}', waits for itself: {}",
                self.config.name,
                self.model_of(index),
                self.told(&circle)
            );
            found.push(Diagnostic::about(format!("{}.input_map", step_path(index)), text));
        }
    }

    /// The steps that each step waits for and that can't run.
    fn needs(&self) -> Needs {
        let of_step = |step: &Step| {
            let missing =
                step.input_map.values().filter(|tensor| !self.ready.contains(tensor.as_str()));
            missing.filter_map(|tensor| self.makers.get(tensor.as_str()).copied()).collect()
        };
        Needs(self.steps.iter().map(of_step).collect())
    }

    fn model_of(&self, step: usize) -> &'a str {
        self.steps.get(step).map_or("", |step| step.model_name.as_str())
    }

    /// The models of a circle of steps, in the order in which they would run; in a
    /// long one those in the middle are only counted.
    fn told(&self, circle: &[usize]) -> String {
        let Some((start, rest)) = circle.split_first() else { return String::new() };
        let mut models = vec![self.model_of(*start).to_owned()];
        let left_out = rest.len().saturating_sub(CIRCLE_STEPS_MAX);
        let half = if left_out == 0 { rest.len() } else { CIRCLE_STEPS_MAX / 2 };
        let (last, before) = rest.split_at(half);
        let (between, first) = before.split_at(left_out);
        models.extend(first.iter().rev().map(|&step| self.model_of(step).to_owned()));
        if !between.is_empty() {
            models.push(format!("({left_out} more steps)"));
        }
        models.extend(last.iter().rev().map(|&step| self.model_of(step).to_owned()));
        models.push(self.model_of(*start).to_owned());
        models.join(" -> ")
    }

    /// Tensors that nobody makes, and tensors that nobody takes.
    fn check_unused(&self, found: &mut Vec<Diagnostic>) {
        for (index, step) in self.steps.iter().enumerate() {
            let mut report = |field: &str, key: &str, tensor: &str, reason: &str| {
                if !self.outputs.contains(tensor) {
                    let name = &self.config.name;
                    let text = format!(
                        "ensemble tensor '{tensor}' is unused in ensemble '{name}'{reason}"
                    );
                    let path = format!("{}.{field}[\"{key}\"]", step_path(index));
                    found.push(Diagnostic::about(path, text));
                }
            };
            for (input, tensor) in &step.input_map {
                let is_made = self.makers.contains_key(tensor.as_str());
                if !is_made && !self.ready.contains(tensor.as_str()) {
                    let reason = ": no step makes it and it is no input of the ensemble";
                    report("input_map", input, tensor, reason);
                }
            }
            for (output, tensor) in &step.output_map {
                if !self.taken.contains(tensor.as_str()) {
                    report("output_map", output, tensor, "");
                }
            }
        }
    }
}
