//! Connections that send one request after the other.

pub(crate) mod grpc;
pub(crate) mod http;

/// The reason of an error of I/O, without what differs from one to the next.
pub(crate) fn reason(error: &std::io::Error) -> String {
    error.kind().to_string()
}
