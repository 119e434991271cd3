//! The reasons why handshakes fail.

use std::fmt;
use std::io;

use rustls::{Error, InvalidMessage};

/// The reason why a handshake failed, which affects only its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeFailure {
    /// The kind, for counting failures or logging each kind once.
    pub kind: HandshakeFailureKind,
    /// The event, phrased as a clause.
    pub reason: String,
}

/// The kinds of handshake failures.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HandshakeFailureKind {
    /// The client didn't finish in time.
    Timeout,
    /// Too many handshakes were in progress, and this was the oldest.
    GivenUp,
    /// The client disconnected.
    Disconnected,
    /// The client doesn't speak TLS.
    NotTls,
    /// The client and the server have no acceptable version, algorithm or protocol in common.
    Incompatible,
    /// The client has no certificate, but needs one.
    NoCertificate,
    /// The client's certificate isn't trusted.
    BadCertificate,
    /// The client refused the server, for example because of its certificate.
    Refused,
    /// The client violated the TLS protocol.
    Other,
}

impl HandshakeFailure {
    pub(super) fn new(kind: HandshakeFailureKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }

    /// Converts an error that the handshake returned.
    pub(super) fn from_io(error: &io::Error) -> Self {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
        match cause {
            Some(cause) => Self::new(kind(cause), cause.to_string()),
            None => Self::new(HandshakeFailureKind::Disconnected, "the client left"),
        }
    }
}

fn kind(error: &Error) -> HandshakeFailureKind {
    match error {
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => HandshakeFailureKind::NotTls,
        Error::NoApplicationProtocol | Error::PeerIncompatible(_) => {
            HandshakeFailureKind::Incompatible
        }
        Error::NoCertificatesPresented => HandshakeFailureKind::NoCertificate,
        Error::InvalidCertificate(_) => HandshakeFailureKind::BadCertificate,
        Error::AlertReceived(_) => HandshakeFailureKind::Refused,
        _ => HandshakeFailureKind::Other,
    }
}

impl fmt::Display for HandshakeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}
