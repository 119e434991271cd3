//! Ensembles: models that are made of other models, as a dataflow.
//!
//! A step starts as soon as all of its tensors exist; the order of steps in the
//! configuration means nothing. [`EnsembleGraph`] is what the configuration
//! says, [`EnsembleRun`] is one request on its way through it, and [`StepGates`]
//! bound how many requests of all runs a step may have at a time.
//!
//! Tensors are numbered, and whatever stands for their contents is cloned to
//! each step that needs it and dropped with the last of them: the driver gives
//! handles, so nothing is copied.
//!
//! # Waves
//!
//! A decoupled step answers any number of times. Each answer flows down the
//! graph as a wave of its own: a step behind it runs once per wave, with the
//! wave's tensors and with those that don't come from a decoupled step. A step
//! that needs tensors of two different decoupled steps can't be paired up and is
//! refused.

mod gates;
mod graph;
mod run;

pub use gates::StepGates;
pub use graph::{EnsembleGraph, EnsembleSpec, GraphError, StepIndex, StepSpec, TensorIndex};
pub use run::{EnsembleAction, EnsembleRun, RunFailure, StepCallKey};

#[cfg(test)]
mod tests;
