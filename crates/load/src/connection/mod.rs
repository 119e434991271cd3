//! Connections that send requests one after another.

pub(crate) mod grpc;
pub(crate) mod http;

/// The kind of an I/O error, without details that vary between errors.
pub(crate) fn reason(error: &std::io::Error) -> String {
    error.kind().to_string()
}
