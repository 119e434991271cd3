//! Requests to other servers, over HTTP/1.1 with or without TLS.
//!
//! Open `client.rs` first. [`Client`] sends requests to object stores and to trace collectors
//! alike, and its [`OutboundError`] identifies what failed: the name, the connection, TLS or the
//! response. `tls.rs` reads the certificates that a connection trusts and presents.
//!
//! This crate doesn't know what a request is for, follows no redirects, and starts no threads:
//! futures run on the caller's runtime.
//!
//! # Example
//!
//! ```
//! use galatea_outbound::{CertificateFiles, Client, ConnectionReuse};
//!
//! let client: Client<String> = Client::new(CertificateFiles::default(), ConnectionReuse::Never);
//! let request = http::Request::get("http://127.0.0.1:1/").body(String::new()).unwrap();
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! let failure = runtime.block_on(client.send(request)).unwrap_err();
//! assert!(failure.to_string().starts_with("endpoint: can't connect to 127.0.0.1:1"));
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod client;
mod tls;

pub use client::{Client, ConnectionReuse, OutboundError};
pub use tls::{CertificateFileError, CertificateFiles};
