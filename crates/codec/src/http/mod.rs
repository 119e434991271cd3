//! HTTP bodies of the inference protocol to and from requests and responses.
//!
//! A body is JSON, and behind it the tensors in binary form; the header
//! `Inference-Header-Content-Length` says where the JSON ends. Messages are
//! those of the original wherever a client may have come to rely on them.
//! Where the original answers malformed JSON with an internal error, this
//! codec says `InvalidArgument`: it is the client's mistake. Only elements of
//! `data` that don't fit their tensor stay `Internal`, as documented there.
//!
//! ```
//! use bytes::Bytes;
//! use galatea_codec::http::{Target, decode_infer};
//! use galatea_codec::limits::Limits;
//!
//! let body = Bytes::from_static(
//!     br#"{"inputs":[{"name":"x","datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
//! );
//! let target = Target { model_name: "m".into(), model_version: None };
//! let (request, _) = decode_infer(&body, body.len(), target, &Limits::default())?;
//! assert_eq!(request.inputs[0].data.host().unwrap()[..], [1, 0, 0, 0, 2, 0, 0, 0]);
//! # Ok::<(), galatea_infer::Status>(())
//! ```

mod base64;
mod decode;
mod documents;
mod elements;
mod encode;
mod errors;
mod fields;
mod header;
mod input;
mod json;
mod output;
mod parameters;
mod raw;
mod repository;
mod statistics;

#[cfg(test)]
mod tests;

pub use decode::{Target, decode_infer};
pub use documents::{
    encode_error, encode_model_metadata, encode_repository_index, encode_server_metadata,
};
pub use encode::{EncodedResponse, encode_infer_response};
pub use errors::body_too_large;
pub use header::{parse_header_length, parse_version};
pub use output::{OutputEncoding, OutputForm};
pub use raw::{decode_raw_infer, raw_input};
pub use repository::{IndexRequest, UnloadRequest, decode_load_request};
pub use statistics::encode_statistics;
