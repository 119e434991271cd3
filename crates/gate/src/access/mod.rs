//! API access control, which implements Triton's restricted APIs.
//!
//! The APIs are divided into nine [categories](ApiCategory). A [`AccessRule`] restricts a category
//! to callers that send a header with a secret value. Each door has a [`AccessGate`] with the rules
//! of its protocol and asks it before it reads the body of a request. If a server has tenants, a
//! [`TenantDirectory`] identifies callers by their keys.
//!
//! An admitted caller gets an [`AccessPass`]. The server's methods require a pass for their
//! category, and only the gate issues one: a door that forgets the gate doesn't compile, and a pass
//! for the health API can't load a model.
//!
//! ```
//! use galatea_gate::access::{ApiCategory, AccessGate, AccessPass, AccessRefusal, AccessRules, api};
//!
//! /// A method of the server.
//! fn load_model(_: AccessPass<api::ModelRepository>) {}
//!
//! let mut rules = AccessRules::default();
//! rules.add("model-repository:admin-key=secret", "").unwrap();
//! let gate = AccessGate::new(rules);
//!
//! let refusal = gate.admit(ApiCategory::ModelRepository, |_| None).unwrap_err();
//! assert_eq!(refusal, AccessRefusal::Header { required: "admin-key" });
//!
//! let admission = gate.admit(ApiCategory::ModelRepository, |_| Some(b"secret")).unwrap();
//! load_model(admission.pass().unwrap());
//!
//! let health = gate.admit(ApiCategory::Health, |_| None).unwrap();
//! assert!(health.pass::<api::ModelRepository>().is_err());
//! ```
//!
//! A pass can't be made any other way:
//!
//! ```compile_fail
//! use galatea_gate::access::{AccessPass, api};
//! let pass = AccessPass::<api::ModelRepository> { category: Default::default() };
//! ```
//!
//! A pass for another category has a different type:
//!
//! ```compile_fail
//! use galatea_gate::access::{AccessPass, api};
//! fn load_model(_: AccessPass<api::ModelRepository>) {}
//! load_model(AccessPass::<api::Health>::in_process());
//! ```

mod category;
mod gate;
mod pass;
mod rules;
mod tenant;

pub use category::{ApiCategory, ApiMarker, api};
pub use gate::{AccessGate, AccessRefusal};
pub use pass::{AccessGrant, AccessPass, GrantMismatch};
pub use rules::{AccessRule, AccessRuleError, AccessRules};
pub use tenant::{TenantDirectory, TenantNumber, TenantRefusal};
