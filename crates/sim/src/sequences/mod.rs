//! The sequence batcher, seen from outside.

pub(crate) mod checks;
pub(crate) mod ledger;
pub(crate) mod lookups;
pub(crate) mod oracle;
mod roll;
pub(crate) mod rules;
