//! TLS: what turns an accepted socket into an encrypted stream.
//!
//! - `config.rs`: from PEM files to a configuration, with errors that name the file
//! - `certificate.rs`: the few fields of a certificate that are needed here
//! - `client_verifier.rs`: which certificates of clients are trusted
//! - `acceptor.rs`: [`Tls`], which performs handshakes and whose configuration can be replaced
//! - `failure.rs`: why a handshake failed
//! - `socket.rs`: the socket below TLS, with few reads
//! - `reload.rs`: when changed files are taken
//!
//! A handshake is performed on the I/O thread that keeps the connection, beside the accept
//! loop. It has a time limit, and when too many are in progress the oldest is given up: a client
//! that stops in the middle does not hold others up.

mod acceptor;
mod certificate;
mod client_verifier;
mod config;
mod failure;
mod reload;
mod socket;
#[cfg(test)]
mod test_certificates;
#[cfg(test)]
mod tests;

pub use acceptor::{Tls, TlsStream};
pub use config::{ApplicationProtocol, Clients, TlsConfig, TlsError, TlsFile, TlsFiles};
pub use failure::{FailureKind, HandshakeFailure};
pub use reload::{Reload, ReloadStep};
