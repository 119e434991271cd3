//! Ensembles drawn at random, and which of them can't be.

use std::collections::BTreeSet;

use galatea_policy::{EnsembleGraph, EnsembleSpec, StepSpec, TensorIndex};

use super::naive::{Flow, index};
use crate::check::{Check, ensure};
use crate::random::Random;

/// An ensemble that makes sense.
pub(super) fn draw(random: &mut Random) -> EnsembleSpec {
    loop {
        let spec = sensible(random);
        if meets_itself(&spec).is_none() {
            return spec;
        }
    }
}

/// Steps that take what is there before them, and everything that nobody takes is
/// an output. Only waves may meet that must not.
fn sensible(random: &mut Random) -> EnsembleSpec {
    let inputs: Vec<TensorIndex> = (0..random.between_u32(1, 3)).map(TensorIndex).collect();
    let mut spec = EnsembleSpec { tensors: count(&inputs), inputs, ..EnsembleSpec::default() };
    for _ in 0..random.between(1, 6) {
        let taken = (0..random.between(1, 3)).map(|_| TensorIndex(below(random, spec.tensors)));
        let inputs: Vec<TensorIndex> = taken.collect();
        let made = random.between_u32(1, 2);
        let outputs = (spec.tensors..spec.tensors + made).map(TensorIndex).collect();
        spec.tensors += made;
        spec.steps.push(StepSpec { inputs, outputs, decoupled: random.percent(25) });
    }
    let taken: BTreeSet<TensorIndex> =
        spec.steps.iter().flat_map(|step| step.inputs.clone()).collect();
    for number in 0..spec.tensors {
        let tensor = TensorIndex(number);
        let is_input = spec.inputs.contains(&tensor);
        if (!is_input && !taken.contains(&tensor)) || random.percent(15) {
            spec.outputs.push(tensor);
        }
    }
    // Their order means nothing.
    for last in (1..spec.steps.len()).rev() {
        let other = usize::try_from(random.between(0, last as u64)).expect("few steps");
        spec.steps.swap(last, other);
    }
    spec
}

fn count(tensors: &[TensorIndex]) -> u32 {
    u32::try_from(tensors.len()).expect("few tensors")
}

fn below(random: &mut Random, bound: u32) -> u32 {
    random.between_u32(0, bound - 1)
}

/// Compares who refuses ensembles that may not make sense.
pub(super) fn check_refusals(random: &mut Random) -> Check {
    for spec in [anyhow(random), sensible(random)] {
        let refused = EnsembleGraph::new(&spec).err();
        let expected = wrong(&spec);
        let agree = refused.is_some() == expected.is_some();
        ensure!(agree, "ensembles: {spec:?} is refused with {refused:?}, but {expected:?}");
    }
    Ok(())
}

/// Tensors wired anyhow.
fn anyhow(random: &mut Random) -> EnsembleSpec {
    let tensors = random.between_u32(2, 7);
    let mut some = |least| -> Vec<TensorIndex> {
        let many = random.between(least, 2);
        (0..many).map(|_| TensorIndex(below(random, tensors))).collect()
    };
    let inputs = some(1);
    let outputs = some(1);
    let mut steps = Vec::new();
    for number in 0..4 {
        let (inputs, outputs) = (some(u64::from(number != 3)), some(1));
        steps.push(StepSpec { inputs, outputs, decoupled: number == 1 });
    }
    steps.truncate(usize::try_from(random.between(1, 4)).expect("few steps"));
    EnsembleSpec { tensors, inputs, outputs, steps }
}

/// What is wrong with it, found without cleverness.
fn wrong(spec: &EnsembleSpec) -> Option<&'static str> {
    let made: Vec<TensorIndex> =
        spec.steps.iter().flat_map(|step| step.outputs.iter().copied()).collect();
    let is_twice = |tensor: &TensorIndex| {
        made.iter().filter(|one| *one == tensor).count() > 1 || spec.inputs.contains(tensor)
    };
    if spec.steps.iter().any(|step| step.inputs.is_empty()) {
        return Some("a step takes nothing");
    }
    if made.iter().any(is_twice) {
        return Some("a tensor is made twice");
    }
    let mut wanted = spec.steps.iter().flat_map(|step| &step.inputs).chain(&spec.outputs);
    if wanted.any(|tensor| !made.contains(tensor) && !spec.inputs.contains(tensor)) {
        return Some("a tensor is made by nobody");
    }
    let mut there: BTreeSet<TensorIndex> = spec.inputs.iter().copied().collect();
    for _ in &spec.steps {
        for step in &spec.steps {
            if step.inputs.iter().all(|input| there.contains(input)) {
                there.extend(&step.outputs);
            }
        }
    }
    if made.iter().any(|tensor| !there.contains(tensor)) {
        return Some("a step waits for itself");
    }
    meets_itself(spec)
}

/// Whether waves of different steps meet.
fn meets_itself(spec: &EnsembleSpec) -> Option<&'static str> {
    let flow = Flow::of(spec);
    let meets = |tensors: &[TensorIndex]| {
        let sources: BTreeSet<usize> =
            tensors.iter().filter_map(|tensor| flow.sources[index(tensor.0)]).collect();
        sources.len() > 1
    };
    let at_steps = spec.steps.iter().any(|step| meets(&step.inputs));
    (at_steps || meets(&spec.outputs)).then_some("waves of two steps meet")
}
