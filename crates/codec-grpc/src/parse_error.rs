//! The reasons why a message can't be parsed.

use galatea_infer::Status;

use super::wire::MalformedMessage;

/// The reason why a body could not be parsed.
pub(super) enum ParseError {
    /// The body is not a message of this type.
    Malformed,
    /// The body exceeds a limit.
    Refused(Status),
}

impl From<MalformedMessage> for ParseError {
    fn from(MalformedMessage: MalformedMessage) -> Self {
        Self::Malformed
    }
}
