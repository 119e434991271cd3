//! What a normalised configuration must be like. Messages say what the
//! original's say where it checks the same.

mod batching;
mod identity;
mod instances;
mod tensors;

use galatea_protocol::inference::ModelConfig;

use crate::Support;
use crate::diagnostic::Diagnostic;

/// Appends a diagnostic for everything that is wrong.
pub(crate) fn check(config: &ModelConfig, support: &Support, found: &mut Vec<Diagnostic>) {
    identity::check(config, found);
    tensors::check(config, found);
    batching::check(config, found);
    instances::check(config, support, found);
}
