//! Text in, text out: what bodies become, and what becomes of bodies.

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

use super::{OutputEncoding, Target, decode_infer};
use crate::limits::Limits;

fn target() -> Target {
    Target { model_name: "m".into(), model_version: None }
}

/// Decodes a body that is all JSON.
fn decode(json: &str) -> Result<(InferenceRequest, OutputEncoding), Status> {
    decode_parts(json, b"")
}

/// Decodes JSON with binary tensors behind it.
fn decode_parts(json: &str, binary: &[u8]) -> Result<(InferenceRequest, OutputEncoding), Status> {
    let body = Bytes::from([json.as_bytes(), binary].concat());
    decode_infer(&body, json.len(), target(), &Limits::default())
}

/// Checks the error that `json` leads to.
fn refuse(json: &str, code: Code, message: &str) {
    match decode(json) {
        Ok((request, _)) => panic!("accepted {json}: {request:?}"),
        Err(status) => assert_eq!((status.code(), status.message()), (code, message), "{json}"),
    }
}

/// A request for one input with these members.
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
