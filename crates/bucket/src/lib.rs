//! Model repositories in buckets at Amazon, Google and Microsoft, and on servers that speak their
//! protocols.
//!
//! Open `connector.rs` first. [`BucketConnector`] opens repositories by address (`address.rs`) with the
//! credentials that Triton would use (`credentials.rs`). `store.rs` lists the objects and
//! `download.rs` copies them. `client.rs` provides the server's HTTP client to the `object_store`
//! crate, which implements the protocols, and `explain.rs` says what to fix when something fails.
//! All requests run on one thread (`runtime.rs`), which starts with the first repository; callers
//! wait on their own threads.
//!
//! This crate doesn't know what a model is, chooses no file paths, and never writes to a bucket.
//!
//! # Example
//!
//! ```
//! use galatea_bucket::{BucketConnector, BucketEnvironment};
//! use galatea_repository::ModelRepositories;
//!
//! let buckets = std::sync::Arc::new(BucketConnector::new(BucketEnvironment::default()));
//! let error = ModelRepositories::open_with(["gs:///nothing"], Some(buckets)).unwrap_err();
//! assert_eq!(error.to_string(), "No bucket name found in path: gs:///nothing");
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod address;
mod client;
mod connector;
mod credentials;
mod download;
mod explain;
mod open;
mod runtime;
mod store;

pub use connector::BucketConnector;
pub use credentials::BucketEnvironment;
