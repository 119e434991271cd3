//! gRPC messages of the inference protocol to and from requests and responses.
//!
//! Inference takes the short way in both directions: [`InferMessage`] reads a
//! `ModelInferRequest` from its wire form without building the generated
//! message first, and [`encode_infer_response`] writes a `ModelInferResponse`
//! whose large tensors stay where they lie; [`stream`] does the same for the
//! responses of a stream. Everything else goes through the generated messages;
//! [`control`] fills them.

pub mod control;
pub mod stream;

mod contents;
mod infer_message;
mod message;
mod parameters;
mod request;
mod response;
mod status;
mod wire;

#[cfg(test)]
mod differential_tests;
#[cfg(test)]
mod request_tests;

pub use infer_message::InferMessage;
pub use message::{MESSAGE_BYTES_MAX, MESSAGE_PREFIX_BYTES, MessageChunks, frame_message};
pub use request::parse_version;
pub use response::encode_infer_response;
pub use status::{GrpcCode, grpc_code};
