//! The externally visible behaviour of the default scheduler and the dynamic batcher.

pub(crate) mod checks;
pub(crate) mod ledger;
pub(crate) mod oracle;
pub(crate) mod status;
