//! Tests of the request and response bodies of the management endpoints.

use galatea_codec::documents::{
    encode_error_json, encode_model_metadata_json, encode_repository_index_json,
    encode_server_metadata_json, encode_statistics_json,
};
use galatea_control::{
    BatchStatistics, DurationStatistic, InferenceStatistics, ModelMetadata, ModelState,
    ModelStatistics, RepositoryEntry, ResponseStatistics, ServerMetadata, TensorMetadata,
};
use galatea_infer::{MemoryUsage, MemoryUsageKind};
use galatea_tensor::DataType;

use super::*;
use crate::{IndexRequest, UnloadRequest, decode_load_request};

fn check(json: Vec<u8>, expected: &str) {
    assert_eq!(String::from_utf8(json).unwrap(), expected);
}

#[test]
fn errors_are_encoded() {
    check(encode_error_json("say \"no\"\n"), r#"{"error":"say \"no\"\n"}"#);
}

#[test]
fn metadata_is_encoded() {
    let server = ServerMetadata {
        name: "triton".into(),
        version: "1.0".into(),
        extensions: vec!["classification", "sequence"],
    };
    check(
        encode_server_metadata_json(&server),
        r#"{"name":"triton","version":"1.0","extensions":["classification","sequence"]}"#,
    );
    let tensor =
        |name: &str, datatype| TensorMetadata { name: name.into(), datatype, shape: vec![-1, 16] };
    let model = ModelMetadata {
        name: "m".into(),
        versions: vec![1, 3],
        platform: "onnxruntime_onnx".into(),
        inputs: vec![tensor("x", DataType::Fp32)],
        outputs: vec![tensor("y", DataType::Bytes)],
    };
    check(
        encode_model_metadata_json(&model),
        r#"{"name":"m","versions":["1","3"],"platform":"onnxruntime_onnx","inputs":[{"name":"x","datatype":"FP32","shape":[-1,16]}],"outputs":[{"name":"y","datatype":"BYTES","shape":[-1,16]}]}"#,
    );
}

#[test]
fn a_repository_index_is_encoded() {
    let entry = |name: &str, version, state, reason: &str| RepositoryEntry {
        name: name.into(),
        version,
        state,
        reason: reason.into(),
    };
    let entries = [
        entry("a", Some(1), Some(ModelState::Ready), ""),
        entry("b", Some(2), Some(ModelState::Unavailable), "unloaded"),
        entry("c", None, None, ""),
    ];
    check(
        encode_repository_index_json(&entries),
        r#"[{"name":"a","version":"1","state":"READY"},{"name":"b","version":"2","state":"UNAVAILABLE","reason":"unloaded"},{"name":"c"}]"#,
    );
    check(encode_repository_index_json(&[]), "[]");
}

#[test]
fn statistics_are_encoded() {
    let duration = |count| DurationStatistic { count, ns: count * 10 };
    let model = ModelStatistics {
        name: "m".into(),
        version: 2,
        last_inference_ms: 5,
        inference_count: 6,
        execution_count: 7,
        inference: InferenceStatistics {
            success: duration(1),
            fail: duration(2),
            queue: duration(3),
            compute_input: duration(4),
            compute_infer: duration(5),
            compute_output: duration(6),
            cache_hit: duration(7),
            cache_miss: duration(8),
        },
        batches: vec![BatchStatistics {
            batch_size: 4,
            compute_input: duration(1),
            compute_infer: duration(2),
            compute_output: duration(3),
        }],
        responses: vec![
            ResponseStatistics {
                compute_infer: duration(1),
                compute_output: duration(2),
                success: duration(3),
                fail: duration(4),
                empty_response: duration(5),
                cancel: duration(6),
            },
            ResponseStatistics::default(),
        ],
        memory: vec![
            MemoryUsage { kind: MemoryUsageKind::Cpu, id: 0, byte_size: 9 },
            MemoryUsage { kind: MemoryUsageKind::Gpu, id: -1, byte_size: u64::MAX },
        ],
        ..ModelStatistics::default()
    };
    check(
        encode_statistics_json(&[model]),
        r#"{"model_stats":[{"name":"m","version":"2","last_inference":5,"inference_count":6,"execution_count":7,"inference_stats":{"success":{"count":1,"ns":10},"fail":{"count":2,"ns":20},"queue":{"count":3,"ns":30},"compute_input":{"count":4,"ns":40},"compute_infer":{"count":5,"ns":50},"compute_output":{"count":6,"ns":60},"cache_hit":{"count":7,"ns":70},"cache_miss":{"count":8,"ns":80}},"response_stats":{"0":{"compute_infer":{"count":1,"ns":10},"compute_output":{"count":2,"ns":20},"success":{"count":3,"ns":30},"fail":{"count":4,"ns":40},"empty_response":{"count":5,"ns":50},"cancel":{"count":6,"ns":60}},"1":{"compute_infer":{"count":0,"ns":0},"compute_output":{"count":0,"ns":0},"success":{"count":0,"ns":0},"fail":{"count":0,"ns":0},"empty_response":{"count":0,"ns":0},"cancel":{"count":0,"ns":0}}},"batch_stats":[{"batch_size":4,"compute_input":{"count":1,"ns":10},"compute_infer":{"count":2,"ns":20},"compute_output":{"count":3,"ns":30}}],"memory_usage":[{"type":"CPU","id":0,"byte_size":9},{"type":"GPU","id":-1,"byte_size":18446744073709551615}]}]}"#,
    );
    check(encode_statistics_json(&[]), r#"{"model_stats":[]}"#);
}

#[test]
fn repository_requests_are_decoded() {
    let limits = MessageLimits::default();
    let index = |body: &str| IndexRequest::decode(body.as_bytes(), &limits);
    assert_eq!(index("").map(|r| r.only_ready), Ok(false));
    assert_eq!(index("[]").map(|r| r.only_ready), Ok(false));
    assert_eq!(index(r#"{"other":[1],"ready":true}"#).map(|r| r.only_ready), Ok(true));
    let status = index(r#"{"ready":1}"#).unwrap_err();
    assert_eq!(status.message(), "Invalid value for 'ready': expected a boolean");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(index("x").unwrap_err().code(), Code::Internal);

    let unload = |body: &str| UnloadRequest::decode(body.as_bytes(), &limits);
    assert_eq!(unload("").map(|r| r.unload_dependents), Ok(false));
    let body = r#"{"parameters":{"unload_dependents":true,"x":1}}"#;
    assert_eq!(unload(body).map(|r| r.unload_dependents), Ok(true));
    for (members, expected) in [
        (r#""unload_dependents":1"#, false),
        (r#""unload_dependents":"true""#, false),
        (r#""unload_dependents":null,"unload_dependents":true"#, false),
        (r#""unload_dependents":true,"unload_dependents":7"#, true),
    ] {
        let body = format!(r#"{{"parameters":{{{members}}},"parameters":{{}}}}"#);
        assert_eq!(unload(&body).map(|r| r.unload_dependents), Ok(expected), "{body}");
    }
    let body = r#"{"parameters":5,"parameters":{"unload_dependents":true}}"#;
    assert_eq!(unload(body).map(|r| r.unload_dependents), Ok(false));
    assert_eq!(unload(r#"{"parameters":5"#).unwrap_err().code(), Code::Internal);

    let load = |body: &str| decode_load_request(body.as_bytes(), &limits);
    for body in ["", "{}", r#"{"parameters":{}}"#] {
        assert!(load(body).unwrap().is_empty(), "{body}");
    }
    let body = r#"{"parameters":{"config":"{\"a\":1}","file:1/x":"AP8=","file:../y":""}}"#;
    let loaded = load(body).unwrap();
    assert_eq!(loaded.config.as_deref(), Some(r#"{"a":1}"#));
    assert_eq!(loaded.files, [("1/x".into(), vec![0, 255]), ("../y".into(), vec![])]);
    for wrong in [r#"{"config":1}"#, r#"{"file:x":null}"#] {
        let status = load(&format!(r#"{{"parameters":{wrong}}}"#)).unwrap_err();
        let expected = "attempt to access JSON non-string as string";
        assert_eq!((status.code(), status.message()), (Code::Internal, expected), "{wrong}");
    }
    let status = load(r#"{"parameters":{"file:x":"?"}}"#).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(load(r#"{"parameters":{"x":"y"}}"#).unwrap_err().code(), Code::Internal);
    for wrong in ["null", "[]", r#"[{"config":"{}"}]"#, r#""x""#, "1", "true"] {
        let body = format!(r#"{{"parameters":{wrong}}}"#);
        let status = load(&body).unwrap_err();
        let expected = (Code::Internal, "attempt to get members for non-object");
        assert_eq!((status.code(), status.message()), expected);
        assert_eq!(unload(&body).map(|r| r.unload_dependents), Ok(false), "{body}");
    }
}
