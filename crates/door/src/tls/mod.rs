//! TLS, which turns an accepted socket into an encrypted stream.
//!
//! - `config.rs`: a configuration from PEM files, with errors that name the file
//! - `certificate.rs`: the few certificate fields that are needed here
//! - `client_verifier.rs`: verification of client certificates
//! - `acceptor.rs`: [`SharedTlsAcceptor`], which performs handshakes and whose configuration can be replaced
//! - `failure.rs`: the reasons why handshakes fail
//! - `socket.rs`: the socket below TLS, which needs fewer reads
//! - `reload.rs`: the time at which changed files take effect
//!
//! A handshake runs concurrently with the accept loop, on the I/O thread that owns the connection.
//! It has a time limit, and the oldest handshake is given up when too many are in progress, so a
//! client that stops halfway does not delay others.

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

pub use acceptor::{SharedTlsAcceptor, TlsStream};
pub use config::{
    ApplicationProtocol, ClientAuthentication, TlsConfig, TlsConfigError, TlsFileContents,
    TlsFileRole,
};
pub use failure::{HandshakeFailure, HandshakeFailureKind};
pub use reload::{ReloadStep, TlsReloader};
