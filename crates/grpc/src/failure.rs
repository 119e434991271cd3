//! Failures of calls, in terms of gRPC.

use std::borrow::Cow;

use galatea_codec::grpc::{GrpcCode, grpc_code};
use galatea_infer::Status;
use http::StatusCode;

/// The reason why a call fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: GrpcCode,
    pub(crate) message: Cow<'static, str>,
}

impl Failure {
    pub(crate) fn new(code: GrpcCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// The failure of a call whose response is dropped, because too many responses before
    /// it are unwritten.
    pub(crate) fn overrun() -> Self {
        let message = "the answer was dropped: the client does not read those before it";
        Self::new(GrpcCode::ResourceExhausted, message)
    }

    #[cfg(test)]
    pub(crate) fn into_parts(self) -> (GrpcCode, String) {
        (self.code, self.message.into_owned())
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::new(grpc_code(status.code()), status.message().to_owned())
    }
}

/// The reason why a call is refused by its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It isn't a gRPC call.
    Http(StatusCode),
    /// It is one, and fails.
    Grpc(Failure),
    /// Its messages are compressed.
    Compressed(Failure),
}
