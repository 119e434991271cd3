//! Tenants that share the compute of a model.
//!
//! | part | content |
//! |---|---|
//! | `world` | random tenants, batches and costs, and long runs with tenants that always wait |
//! | `ledger` | the compute that each tenant has got, and the rules for it |
//! | `naive` | the order of tenants, found by looking at all of them |
//! | `limits` | random requests beside limits per second |

mod ledger;
mod limits;
mod naive;
mod tenant;
mod world;

pub use limits::fuzz_tenant_limits;
pub use world::{check_shares, fuzz_shares};
