//! Text-to-text tests of the HTTP codec.

mod documents;
mod hostile;
mod mutation;
mod request;
mod request_errors;
mod response;
mod round_trip;

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use galatea_control::RequestShmRegions;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{Code, InferenceRequest, InferenceResponse, Status};

use super::{DecodeContext, EncodedResponse, OutputFormatMap, TargetModel};
use galatea_codec::limits::MessageLimits;

fn target() -> TargetModel {
    TargetModel { model_name: "m".into(), model_version: None }
}

/// An account that refuses nothing.
fn account() -> Arc<MemoryAccount> {
    Arc::new(MemoryAccount::unlimited())
}

/// Decodes a request within these limits.
fn decode_infer(
    body: &Bytes,
    header_length: usize,
    target: TargetModel,
    limits: &MessageLimits,
) -> Result<(InferenceRequest, OutputFormatMap), Status> {
    let bounds = DecodeContext { limits, account: &account(), regions: RequestShmRegions::none() };
    let (request, encoding) = super::decode_infer(body, header_length, target, &bounds)?;
    Ok((*request, encoding))
}

/// Encodes a response.
fn encode_infer_response(
    response: &InferenceResponse,
    encoding: &OutputFormatMap,
) -> Result<EncodedResponse, Status> {
    super::encode_infer_response(response, encoding, &account())
}

/// Decodes a body without binary tensors.
fn decode(json: &str) -> Result<(InferenceRequest, OutputFormatMap), Status> {
    decode_parts(json, b"")
}

/// Decodes JSON followed by binary tensors.
fn decode_parts(json: &str, binary: &[u8]) -> Result<(InferenceRequest, OutputFormatMap), Status> {
    let body = Bytes::from([json.as_bytes(), binary].concat());
    decode_infer(&body, json.len(), target(), &MessageLimits::default())
}

/// Checks the error for `json`.
fn refuse(json: &str, code: Code, message: &str) {
    match decode(json) {
        Ok((request, _)) => panic!("accepted {json}: {request:?}"),
        Err(status) => assert_eq!((status.code(), status.message()), (code, message), "{json}"),
    }
}

/// Returns a request with one input that has these members.
fn input(members: &str) -> String {
    format!(r#"{{"inputs":[{{"name":"x",{members}}}]}}"#)
}

/// Returns the bytes of the input `x`, in hexadecimal.
fn bytes_of(json: &str) -> String {
    match decode(json) {
        Ok((request, _)) => hex(request.inputs[0].data.host_bytes().unwrap()),
        Err(status) => format!("{:?}: {status}", status.code()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}
