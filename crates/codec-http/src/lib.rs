//! Converts HTTP bodies of the inference protocol to and from requests and responses.
//!
//! A body consists of JSON followed by tensors in binary form. The header
//! `Inference-Header-Content-Length` contains the length of the JSON. Error messages match Triton's
//! where clients may rely on them. Triton reports malformed JSON as an internal error. This codec
//! reports `InvalidArgument`, because it is the client's mistake. Only elements of `data` that
//! don't fit their tensor remain `Internal`, as Triton documents.
//!
//! ```
//! use bytes::Bytes;
//! use galatea_codec_http::{DecodeContext, TargetModel, decode_infer};
//! use galatea_gate::ledger::MemoryAccount;
//! use galatea_codec::limits::MessageLimits;
//! use galatea_control::RequestShmRegions;
//!
//! let body = Bytes::from_static(
//!     br#"{"inputs":[{"name":"x","datatype":"INT32","shape":[2],"data":[1,2]}]}"#,
//! );
//! let target = TargetModel { model_name: "m".into(), model_version: None };
//! let account = std::sync::Arc::new(MemoryAccount::unlimited());
//! let regions = RequestShmRegions::none();
//! let bounds = DecodeContext { limits: &MessageLimits::default(), account: &account, regions };
//! let (request, _) = decode_infer(&body, body.len(), target, &bounds)?;
//! assert_eq!(request.inputs[0].data.host_bytes().unwrap()[..], [1, 0, 0, 0, 2, 0, 0, 0]);
//! # Ok::<(), galatea_infer::Status>(())
//! ```

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation))]

mod archive;
mod base64;
mod bounds;
mod decode;
mod elements;
mod encode;
mod errors;
mod fields;
mod generate;
mod header;
mod input;
mod json;
mod load_report;
mod log;
mod output;
mod parameters;
mod raw;
mod region;
mod regions;
mod repository;
mod response_charge;
mod trace;

#[cfg(test)]
mod tests;

pub use archive::{
    SageMakerLoadRequest, SageMakerModelEntry, SageMakerModelPath, SageMakerUrlError,
    encode_sagemaker_model, encode_sagemaker_models,
};
pub use bounds::DecodeContext;
pub use decode::{TargetModel, decode_infer};
pub use encode::{EncodedResponse, encode_infer_response, json_bytes_estimate};
pub use errors::{
    body_too_large_error, check_compressed_body_end, empty_compressed_body_error,
    inflated_body_too_large_error,
};
pub use generate::{
    GenerateBodyFormat, decode_generate, encode_generate_error, encode_generate_response,
};
pub use header::{header_length_from_content_type, parse_header_length};
pub use load_report::{OrcaLoadReport, OrcaLoadReportFormat};
pub use log::{decode_log_request, encode_log_settings};
pub use output::{OutputFormat, OutputFormatMap};
pub use raw::decode_raw_infer;
pub use regions::{
    CudaShmRegisterRequest, SystemShmRegisterRequest, encode_cuda_shm_status,
    encode_system_shm_status,
};
pub use repository::{IndexRequest, UnloadRequest, decode_load_request};
pub use trace::{decode_trace_change, encode_trace_settings};
