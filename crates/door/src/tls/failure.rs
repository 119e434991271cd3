//! Why a handshake failed.

use std::fmt;
use std::io;

use rustls::{Error, InvalidMessage};

/// Why a handshake failed. It concerns its client only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeFailure {
    /// The kind, for counting or for logging each kind once.
    pub kind: FailureKind,
    /// The event, as a clause.
    pub reason: String,
}

/// The kinds of failed handshakes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FailureKind {
    /// The client didn't finish in time.
    Timeout,
    /// Too many others were in progress, and this one was the oldest.
    GivenUp,
    /// The client left.
    Disconnected,
    /// The client doesn't speak TLS.
    NotTls,
    /// No version, algorithm or protocol suits both.
    Incompatible,
    /// The client has no certificate, and needs one.
    NoCertificate,
    /// The client's certificate isn't trusted.
    BadCertificate,
    /// The client refused the server, for example its certificate.
    Refused,
    /// The client broke the rules of TLS.
    Other,
}

impl HandshakeFailure {
    pub(super) fn new(kind: FailureKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }

    /// From what the handshake returned.
    pub(super) fn from_io(error: &io::Error) -> Self {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
        match cause {
            Some(cause) => Self::new(kind(cause), cause.to_string()),
            None => Self::new(FailureKind::Disconnected, "the client left"),
        }
    }
}

fn kind(error: &Error) -> FailureKind {
    match error {
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => FailureKind::NotTls,
        Error::NoApplicationProtocol | Error::PeerIncompatible(_) => FailureKind::Incompatible,
        Error::NoCertificatesPresented => FailureKind::NoCertificate,
        Error::InvalidCertificate(_) => FailureKind::BadCertificate,
        Error::AlertReceived(_) => FailureKind::Refused,
        _ => FailureKind::Other,
    }
}

impl fmt::Display for HandshakeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}
