//! Ensembles: models composed of other models as a dataflow graph.
//!
//! A step starts as soon as all of its input tensors exist, regardless of the order of steps in the
//! configuration. [`EnsembleGraph`] is the validated configuration, [`EnsembleRun`] tracks one
//! request through it, and [`StepConcurrencyLimiter`] limits each step's concurrent calls across
//! all runs.
//!
//! Tensors are numbered. Their contents are cloned for each step that needs them and dropped after
//! the last of these steps. The driver passes handles, so no element is copied.
//!
//! # Waves
//!
//! A decoupled step sends any number of responses. The tensors of each response form a separate
//! wave. A downstream step runs once per wave, with the tensors of that wave and with those that
//! don't come from a decoupled step. A step that needs tensors from two different decoupled steps
//! is refused, because their waves can't be paired.

mod gates;
mod graph;
mod run;

pub use gates::StepConcurrencyLimiter;
pub use graph::{
    EnsembleGraph, EnsembleGraphError, EnsembleSpec, EnsembleStepSpec, EnsembleTensorIndex,
    StepIndex,
};
pub use run::{EnsembleAction, EnsembleRun, EnsembleRunFailure, StepCallKey};

#[cfg(test)]
mod tests;
