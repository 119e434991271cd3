//! Tenants: the callers of a server that are identified by keys.
//!
//! | module | content |
//! |---|---|
//! | `key` | keys, and their hashes |
//! | `document` | the file of tenants, as values and as JSON |
//! | `directory` | the tenants of a running server, for the gate |
//! | `keys` | the commands that make, list and revoke keys |
//!
//! # What it is not
//!
//! This crate knows no protocol and no model. The endpoints ask the gate, which asks the
//! [`ServerTenants`]. The limits are decisions of `galatea-policy`. The program watches the file.

#![forbid(unsafe_code)]

mod directory;
mod document;
mod key;
mod keys;

pub use directory::{ServerTenants, TenantReading};
pub use document::{FILE_BYTES_MAX, TenantsDocument};
pub use keys::{NewKey, list, revoke};
