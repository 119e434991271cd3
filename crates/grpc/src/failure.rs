//! Call failures in gRPC terms.

use std::borrow::Cow;

use galatea_codec_grpc::{GrpcCode, grpc_code};
use galatea_gate::access::TenantRefusal;
use galatea_gate::ledger::{MemoryLimitExceeded, RETRY_AFTER_SECS};
use galatea_infer::{Code, Status};
use http::StatusCode;

/// The reason why a call fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: GrpcCode,
    pub(crate) message: Cow<'static, str>,
    /// The number of seconds after which the client may retry.
    pub(crate) retry_after_secs: Option<u32>,
    /// The number of milliseconds after which the client may retry, if known.
    pub(crate) retry_after_ms: Option<u32>,
}

impl Failure {
    pub(crate) fn new(code: GrpcCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), retry_after_secs: None, retry_after_ms: None }
    }

    /// Creates the failure of a call whose response is dropped because too many earlier responses
    /// are unwritten.
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
        let retry_after_secs = (status.code() == Code::Exhausted).then_some(RETRY_AFTER_SECS);
        let failure = Self::new(grpc_code(status.code()), status.message().to_owned());
        Self { retry_after_secs, retry_after_ms: status.retry_after_ms(), ..failure }
    }
}

impl From<MemoryLimitExceeded> for Failure {
    fn from(exhausted: MemoryLimitExceeded) -> Self {
        Status::from(exhausted).into()
    }
}

impl From<TenantRefusal> for Failure {
    fn from(refusal: TenantRefusal) -> Self {
        let (code, retry_after_ms) = match refusal {
            TenantRefusal::MissingKey | TenantRefusal::UnknownKey => {
                (GrpcCode::Unauthenticated, None)
            }
            TenantRefusal::ForbiddenApi(_) => (GrpcCode::PermissionDenied, None),
            TenantRefusal::TooManyRequests { retry_after_ms } => {
                (GrpcCode::ResourceExhausted, Some(retry_after_ms))
            }
        };
        let retry_after_secs = retry_after_ms.map(|milliseconds| milliseconds.div_ceil(1_000));
        Self { retry_after_secs, retry_after_ms, ..Self::new(code, refusal.to_string()) }
    }
}

/// The refusal of a call based on its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The call is not a gRPC call.
    Http(StatusCode),
    /// The call is a gRPC call and fails.
    Grpc(Failure),
    /// The call is a stream, which is opened and then failed.
    Stream(Failure),
    /// The call's messages are compressed.
    Compressed(Failure),
}
