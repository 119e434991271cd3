//! Ensembles: what can be said without looking at the composing models.

use std::collections::{BTreeMap, BTreeSet};

use galatea_protocol::inference::model_ensembling::Step;
use galatea_protocol::inference::{ModelConfig, ModelEnsembling};

use super::batching::BATCH_STRATEGY;
use crate::diagnostic::Diagnostic;
use crate::identity::is_ensemble;

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

/// Which step makes each tensor of an ensemble, and which steps run.
struct Flow<'a> {
    config: &'a ModelConfig,
    steps: &'a [Step],
    /// The step behind each tensor that a step makes.
    makers: BTreeMap<&'a str, usize>,
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
        let mut flow = Flow {
            config,
            steps,
            makers: BTreeMap::new(),
            taken: taken.collect(),
            ready: config.input.iter().map(|input| input.name.as_str()).collect(),
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
            let text = if self.config.input.iter().any(|input| input.name == *tensor) {
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
        let mut waiting: Vec<&Step> = self.steps.iter().collect();
        loop {
            let before = waiting.len();
            waiting.retain(|step| {
                let can_run =
                    step.input_map.values().all(|tensor| self.ready.contains(tensor.as_str()));
                if can_run {
                    self.ready.extend(step.output_map.values().map(String::as_str));
                }
                !can_run
            });
            if waiting.len() == before {
                return;
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
        for (index, output) in self.config.output.iter().enumerate() {
            let tensor = output.name.as_str();
            let text = if !self.is_known(tensor) {
                format!("ensemble output '{tensor}' for ensemble '{name}' is not used")
            } else if !self.ready.contains(tensor) {
                let text = format!("output '{tensor}' for ensemble '{name}' is not written");
                match self.cause(tensor) {
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
    /// where they go round in a circle.
    fn cause(&self, tensor: &'a str) -> &'a str {
        let mut seen = BTreeSet::new();
        let mut current = tensor;
        while let Some(next) = self.missing_input(current)
            && seen.insert(next)
        {
            current = next;
        }
        current
    }

    /// An input that the tensor's step waits for in vain.
    fn missing_input(&self, tensor: &str) -> Option<&'a str> {
        let step = self.steps.get(*self.makers.get(tensor)?)?;
        let inputs = step.input_map.values().map(String::as_str);
        inputs.into_iter().find(|input| !self.ready.contains(input))
    }

    /// Names each circle of steps that wait for each other once, by its first
    /// step.
    fn check_waiting(&self, found: &mut Vec<Diagnostic>) {
        for (index, step) in self.steps.iter().enumerate() {
            let mut trail = vec![index];
            if !self.leads_back(&mut trail, &mut BTreeSet::new()) {
                continue;
            }
            let models: Vec<&str> = trail
                .iter()
                .rev()
                .filter_map(|&step| self.steps.get(step).map(|step| step.model_name.as_str()))
                .collect();
            let text = format!(
                "step {index} of ensemble '{}', model '{}', waits for itself: {}",
                self.config.name,
                step.model_name,
                models.join(" -> ")
            );
            found.push(Diagnostic::about(format!("{}.input_map", step_path(index)), text));
        }
    }

    /// Whether the last step of the trail needs the first one, perhaps through
    /// others that come later in the configuration; the trail is made complete.
    fn leads_back(&self, trail: &mut Vec<usize>, seen: &mut BTreeSet<usize>) -> bool {
        let (Some(&start), Some(&last)) = (trail.first(), trail.last()) else { return false };
        let Some(step) = self.steps.get(last) else { return false };
        for tensor in step.input_map.values() {
            let Some(&maker) = self.makers.get(tensor.as_str()) else { continue };
            if maker == start {
                trail.push(start);
                return true;
            }
            if maker > start && !self.ready.contains(tensor.as_str()) && seen.insert(maker) {
                trail.push(maker);
                if self.leads_back(trail, seen) {
                    return true;
                }
                trail.pop();
            }
        }
        false
    }

    /// Tensors that nobody makes, and tensors that nobody takes.
    fn check_unused(&self, found: &mut Vec<Diagnostic>) {
        for (index, step) in self.steps.iter().enumerate() {
            let mut report = |field: &str, key: &str, tensor: &str, reason: &str| {
                if self.config.output.iter().all(|output| output.name != tensor) {
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
