//! The sequence batcher, as visible from outside.

pub(crate) mod checks;
pub(crate) mod ledger;
pub(crate) mod lookups;
pub(crate) mod oracle;
pub(crate) mod rules;
mod sorted_map;
