//! Models that don't all fit into memory.
//!
//! | part | content |
//! |---|---|
//! | `world`, `ledger`, `checks` | random models, clients and failures, and the rules for each decision |
//! | `traces`, `caches`, `comparison` | made sequences of requests, and the load time that each way to choose victims causes |

mod caches;
mod checks;
mod comparison;
mod ledger;
mod traces;
mod world;

pub use comparison::{ResidencyComparison, compare_residency};
pub use traces::ModelTrace;
pub use world::fuzz_residency;
