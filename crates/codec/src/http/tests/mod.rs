//! Tests of the HTTP codec: text in, text out.

mod documents;
mod hostile;
mod mutation;
mod request;
mod request_errors;
mod response;
mod round_trip;

use std::fmt::Write;

use bytes::Bytes;
use galatea_infer::{Code, InferenceRequest, Status};

use super::{OutputEncoding, TargetModel, decode_infer};
use galatea_gate::limits::Limits;

fn target() -> TargetModel {
    TargetModel { model_name: "m".into(), model_version: None }
}

/// Decodes a body without binary tensors.
fn decode(json: &str) -> Result<(InferenceRequest, OutputEncoding), Status> {
    decode_parts(json, b"")
}

/// Decodes JSON followed by binary tensors.
fn decode_parts(json: &str, binary: &[u8]) -> Result<(InferenceRequest, OutputEncoding), Status> {
    let body = Bytes::from([json.as_bytes(), binary].concat());
    decode_infer(&body, json.len(), target(), &Limits::default())
}

/// Checks the error for `json`.
fn refuse(json: &str, code: Code, message: &str) {
    match decode(json) {
        Ok((request, _)) => panic!("accepted {json}: {request:?}"),
        Err(status) => assert_eq!((status.code(), status.message()), (code, message), "{json}"),
    }
}

/// A request with one input that has these members.
fn input(members: &str) -> String {
    format!(r#"{{"inputs":[{{"name":"x",{members}}}]}}"#)
}

/// The bytes of the input `x`, in hexadecimal.
fn bytes_of(json: &str) -> String {
    match decode(json) {
        Ok((request, _)) => hex(request.inputs[0].data.host().unwrap()),
        Err(status) => format!("{:?}: {status}", status.code()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}
