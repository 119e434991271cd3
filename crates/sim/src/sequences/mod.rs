//! The externally visible behaviour of the sequence batcher.

pub(crate) mod checks;
pub(crate) mod ledger;
pub(crate) mod lookups;
pub(crate) mod oracle;
pub(crate) mod rules;
mod sorted_map;
