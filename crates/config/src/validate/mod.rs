//! Checks a normalized configuration. Checks that Triton also makes use Triton's messages.

mod batching;
mod controls;
mod cycles;
mod ensemble;
mod identity;
mod instances;
mod metrics;
mod names;
mod ragged;
mod states;
mod tensors;
mod warmup;

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::{ModelConfig, ModelSequenceBatching};

use crate::{SupportedFeatures, own};
use galatea_config_message::Diagnostics;

/// Appends a diagnostic for every error.
pub(crate) fn check(
    config: &ModelConfig,
    support: &SupportedFeatures,
    diagnostics: &mut Diagnostics,
) {
    identity::check(config, diagnostics);
    tensors::check(config, diagnostics);
    names::check(config, diagnostics);
    ragged::check(config, diagnostics);
    batching::check(config, diagnostics);
    instances::check(config, support, diagnostics);
    metrics::check(config, diagnostics);
    warmup::check(config, diagnostics);
    own::check(config, diagnostics);
}

/// The sequence batcher's settings, if it is selected.
const fn sequence_batching(config: &ModelConfig) -> Option<&ModelSequenceBatching> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(batching)) => Some(batching),
        Some(SchedulingChoice::DynamicBatching(_) | SchedulingChoice::EnsembleScheduling(_))
        | None => None,
    }
}
