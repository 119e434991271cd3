//! Random ensembles, both valid and invalid.

use std::collections::BTreeSet;

use galatea_policy::{EnsembleGraph, EnsembleSpec, EnsembleStepSpec, EnsembleTensorIndex};

use super::naive::{Dataflow, index};
use crate::check::{Check, ensure};
use crate::random::Random;

/// Draws a valid ensemble.
pub(super) fn draw(random: &mut Random) -> EnsembleSpec {
    loop {
        let spec = acyclic(random);
        if mixed_waves(&spec).is_none() {
            return spec;
        }
    }
}

/// Draws steps that use preceding tensors. All unused tensors are outputs. The only possible fault
/// is that waves of different steps meet.
fn acyclic(random: &mut Random) -> EnsembleSpec {
    let inputs: Vec<EnsembleTensorIndex> =
        (0..random.between_u32(1, 3)).map(EnsembleTensorIndex).collect();
    let mut spec = EnsembleSpec { tensors: count(&inputs), inputs, ..EnsembleSpec::default() };
    for _ in 0..random.between(1, 6) {
        let drawn =
            (0..random.between(1, 3)).map(|_| EnsembleTensorIndex(below(random, spec.tensors)));
        let inputs: Vec<EnsembleTensorIndex> = drawn.collect();
        let produced = random.between_u32(1, 2);
        let outputs = (spec.tensors..spec.tensors + produced).map(EnsembleTensorIndex).collect();
        spec.tensors += produced;
        spec.steps.push(EnsembleStepSpec { inputs, outputs, decoupled: random.percent(25) });
    }
    let used: BTreeSet<EnsembleTensorIndex> =
        spec.steps.iter().flat_map(|step| step.inputs.clone()).collect();
    for number in 0..spec.tensors {
        let tensor = EnsembleTensorIndex(number);
        let is_input = spec.inputs.contains(&tensor);
        if (!is_input && !used.contains(&tensor)) || random.percent(15) {
            spec.outputs.push(tensor);
        }
    }
    // The order of the steps has no effect.
    for last in (1..spec.steps.len()).rev() {
        let other = usize::try_from(random.between(0, last as u64)).expect("few steps");
        spec.steps.swap(last, other);
    }
    spec
}

fn count(tensors: &[EnsembleTensorIndex]) -> u32 {
    u32::try_from(tensors.len()).expect("few tensors")
}

fn below(random: &mut Random, bound: u32) -> u32 {
    random.between_u32(0, bound - 1)
}

/// Checks that possibly invalid ensembles are refused exactly when they should be.
pub(super) fn check_refusals(random: &mut Random) -> Check {
    for spec in [arbitrary(random), acyclic(random)] {
        let refused = EnsembleGraph::new(&spec).err();
        let expected = fault_of(&spec);
        let agree = refused.is_some() == expected.is_some();
        ensure!(agree, "ensembles: {spec:?} is refused with {refused:?}, but {expected:?}");
    }
    Ok(())
}

/// Draws steps with arbitrary tensors.
fn arbitrary(random: &mut Random) -> EnsembleSpec {
    let tensors = random.between_u32(2, 7);
    let mut some = |least| -> Vec<EnsembleTensorIndex> {
        let many = random.between(least, 2);
        (0..many).map(|_| EnsembleTensorIndex(below(random, tensors))).collect()
    };
    let inputs = some(1);
    let outputs = some(1);
    let mut steps = Vec::new();
    for number in 0..4 {
        let (inputs, outputs) = (some(u64::from(number != 3)), some(1));
        steps.push(EnsembleStepSpec { inputs, outputs, decoupled: number == 1 });
    }
    steps.truncate(usize::try_from(random.between(1, 4)).expect("few steps"));
    EnsembleSpec { tensors, inputs, outputs, steps }
}

/// Returns the ensemble's fault, found by simple rules.
fn fault_of(spec: &EnsembleSpec) -> Option<&'static str> {
    let produced: Vec<EnsembleTensorIndex> =
        spec.steps.iter().flat_map(|step| step.outputs.iter().copied()).collect();
    let is_twice = |tensor: &EnsembleTensorIndex| {
        produced.iter().filter(|one| *one == tensor).count() > 1 || spec.inputs.contains(tensor)
    };
    if spec.steps.iter().any(|step| step.inputs.is_empty()) {
        return Some("a step has no inputs");
    }
    if produced.iter().any(is_twice) {
        return Some("a tensor is produced twice");
    }
    let mut needed = spec.steps.iter().flat_map(|step| &step.inputs).chain(&spec.outputs);
    if needed.any(|tensor| !produced.contains(tensor) && !spec.inputs.contains(tensor)) {
        return Some("a tensor has no producer");
    }
    let mut available: BTreeSet<EnsembleTensorIndex> = spec.inputs.iter().copied().collect();
    for _ in &spec.steps {
        for step in &spec.steps {
            if step.inputs.iter().all(|input| available.contains(input)) {
                available.extend(&step.outputs);
            }
        }
    }
    if produced.iter().any(|tensor| !available.contains(tensor)) {
        return Some("a step depends on itself");
    }
    mixed_waves(spec)
}

/// Returns the reason for refusal if waves of different steps meet.
fn mixed_waves(spec: &EnsembleSpec) -> Option<&'static str> {
    let flow = Dataflow::of(spec);
    let meets = |tensors: &[EnsembleTensorIndex]| {
        let sources: BTreeSet<usize> =
            tensors.iter().filter_map(|tensor| flow.sources[index(tensor.0)]).collect();
        sources.len() > 1
    };
    let at_steps = spec.steps.iter().any(|step| meets(&step.inputs));
    (at_steps || meets(&spec.outputs)).then_some("waves of two steps meet")
}
