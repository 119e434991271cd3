//! Maps failures to gRPC status codes.

use galatea_infer::Code;

/// The gRPC status codes that this server sends.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum GrpcCode {
    /// Success.
    Ok,
    /// The client cancelled the call.
    Cancelled,
    /// A failure that fits no other code.
    Unknown,
    /// The request is invalid.
    InvalidArgument,
    /// The call's deadline passed.
    DeadlineExceeded,
    /// The requested item does not exist.
    NotFound,
    /// The item to be created already exists.
    AlreadyExists,
    /// The key of the caller doesn't allow the call.
    PermissionDenied,
    /// A message is longer than the receiver accepts, the memory limit leaves no room for it, or a
    /// tenant has reached a limit.
    ResourceExhausted,
    /// The server does not implement the method or operation.
    Unimplemented,
    /// The server broke one of its own rules, or the bytes are not a message.
    Internal,
    /// The server can't process the request now.
    Unavailable,
    /// The key of the caller is missing or unknown.
    Unauthenticated,
}

impl GrpcCode {
    /// Returns the number for `grpc-status`.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Cancelled => 1,
            Self::Unknown => 2,
            Self::InvalidArgument => 3,
            Self::DeadlineExceeded => 4,
            Self::NotFound => 5,
            Self::AlreadyExists => 6,
            Self::PermissionDenied => 7,
            Self::ResourceExhausted => 8,
            Self::Unimplemented => 12,
            Self::Internal => 13,
            Self::Unavailable => 14,
            Self::Unauthenticated => 16,
        }
    }
}

/// Returns the gRPC code for a failure, as in Triton.
#[must_use]
pub const fn grpc_code(code: Code) -> GrpcCode {
    match code {
        Code::Unknown => GrpcCode::Unknown,
        Code::Internal => GrpcCode::Internal,
        Code::NotFound => GrpcCode::NotFound,
        Code::InvalidArgument => GrpcCode::InvalidArgument,
        Code::Unavailable => GrpcCode::Unavailable,
        Code::Unsupported => GrpcCode::Unimplemented,
        Code::AlreadyExists => GrpcCode::AlreadyExists,
        Code::Cancelled => GrpcCode::Cancelled,
        Code::Exhausted => GrpcCode::ResourceExhausted,
        Code::DeadlineExceeded => GrpcCode::DeadlineExceeded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_number() {
        let expected = [
            (Code::Unknown, 2),
            (Code::Internal, 13),
            (Code::NotFound, 5),
            (Code::InvalidArgument, 3),
            (Code::Unavailable, 14),
            (Code::Unsupported, 12),
            (Code::AlreadyExists, 6),
            (Code::Cancelled, 1),
            (Code::Exhausted, 8),
            (Code::DeadlineExceeded, 4),
        ];
        for (code, number) in expected {
            assert_eq!(grpc_code(code).number(), number, "{code:?}");
        }
    }
}
