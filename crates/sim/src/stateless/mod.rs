//! The default scheduler and the dynamic batcher, as visible from outside.

pub(crate) mod checks;
pub(crate) mod ledger;
pub(crate) mod oracle;
pub(crate) mod status;
