//! Why a message is not parsed.

use galatea_infer::Status;

use super::wire::MalformedMessage;

/// Why a body could not be parsed.
pub(super) enum ParseError {
    /// It is not a message of this type.
    Malformed,
    /// It exceeds a limit.
    Refused(Status),
}

impl From<MalformedMessage> for ParseError {
    fn from(MalformedMessage: MalformedMessage) -> Self {
        Self::Malformed
    }
}
