//! Ensembles: models that are composed of other models, as a dataflow.
//!
//! A step starts as soon as all of its input tensors exist; the order of steps in the
//! configuration has no effect. [`EnsembleGraph`] is the checked configuration,
//! [`EnsembleRun`] is one request's way through it, and [`StepGates`] limit the
//! concurrent calls that a step has in all runs.
//!
//! Tensors are numbered. Their contents are cloned for each step that needs them and
//! dropped after the last of these steps. The driver passes handles, so no element is
//! copied.
//!
//! # Waves
//!
//! A decoupled step sends any number of responses. The tensors of each response are a
//! wave of their own: a step behind it runs once per wave, with the wave's tensors and
//! with those that don't come from a decoupled step. A step that needs tensors of two
//! different decoupled steps is refused, because their waves can't be paired.

mod gates;
mod graph;
mod run;

pub use gates::StepGates;
pub use graph::{EnsembleGraph, EnsembleSpec, GraphError, StepIndex, StepSpec, TensorIndex};
pub use run::{EnsembleAction, EnsembleRun, RunFailure, StepCallKey};

#[cfg(test)]
mod tests;
