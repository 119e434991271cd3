//! Inputs modelled on published vulnerabilities of similar servers. The test names have
//! the CVE identifiers.

use super::*;
use crate::{IndexRequest, parse_header_length};

#[track_caller]
fn refused(json: &str) -> Status {
    let status = decode(json).expect_err("must be refused");
    // As in Triton, members of the wrong type are internal errors.
    let is_json = status.message().contains("attempt to access JSON")
        || status.message().starts_with("failed to parse the request JSON buffer");
    let expected = if is_json { Code::Internal } else { Code::InvalidArgument };
    assert_eq!(status.code(), expected, "{status}");
    status
}

fn with_shape(shape: &str) -> String {
    input(&format!(r#""datatype":"FP32","shape":{shape},"data":[1]"#))
}

#[test]
fn cve_2025_23317_header_length_beyond_the_body() {
    for value in ["99999999999", "-99999999999", "18446744073709551616", "2147483648", "e9"] {
        let status = parse_header_length(value.as_bytes(), 10).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{value}");
    }
    let message = "Unable to parse Inference-Header-Content-Length, value is out of range \
        [ -2147483648, 2147483647 ], got: 99999999999";
    assert_eq!(parse_header_length(b"99999999999", 10).unwrap_err().message(), message);
    assert!(parse_header_length(b"\xff", 10).is_err());
}

#[test]
fn cve_2025_23323_23324_23326_23327_shape_products_overflow() {
    for shape in [
        "[2147483648,2147483648,4]",
        "[4611686018427387904,4]",
        "[1,8589934592,8589934592]",
        "[9223372036854775807,2]",
        "[4611686018427387904,4,0]",
    ] {
        let status = refused(&with_shape(shape));
        assert!(status.message().contains("causes total element count to exceed"), "{status}");
        assert!(status.message().contains(shape), "{status}");
    }
    let status = refused(&with_shape("[9223372036854775807]"));
    assert!(status.message().starts_with("byte size overflow for input 'x'"), "{status}");
}

#[test]
fn cve_2026_24173_24174_invalid_dimensions() {
    for shape in ["[-1]", "[1.0]", "[1e3]", "[null]", "[true]", "[\"1\"]", "[[1]]", "[NaN]"] {
        let status = refused(&with_shape(shape));
        assert!(status.message().starts_with("Unable to parse 'shape'"), "{status}");
    }
    for shape in ["[9223372036854775808]", "[18446744073709551615]"] {
        let status = refused(&with_shape(shape));
        assert!(status.message().contains("invalid dimensions"), "{status}");
    }
    let size = |size: &str| {
        input(&format!(
            r#""datatype":"UINT8","shape":[1],"parameters":{{"binary_data_size":{size}}}"#
        ))
    };
    for value in ["-1", "1.5", "1e30", "\"1\"", "18446744073709551616"] {
        refused(&size(value));
    }
    let status = refused(&size("18446744073709551615"));
    assert!(status.message().contains("expecting 18446744073709551615 additional"), "{status}");
}

#[test]
fn cve_2025_23325_deeply_nested_data() {
    let nested =
        |depth: usize, leaf: &str| format!("{}{leaf}{}", "[".repeat(depth), "]".repeat(depth));
    for datatype in ["FP32", "BYTES"] {
        for (early, late) in [("", "X"), ("X", "")] {
            for depth in [101, 100_000] {
                let tensor = format!(r#""datatype":"{datatype}","shape":[1]"#);
                let parts = [
                    early.replace('X', &format!("{tensor},")),
                    format!(r#""data":{}"#, nested(depth, "1")),
                    late.replace('X', &format!(",{tensor}")),
                ];
                let status = refused(&input(&parts.concat()));
                assert!(status.message().contains("nesting depth exceeds"), "{status}");
            }
        }
    }
    let at =
        |depth| input(&format!(r#""datatype":"INT8","shape":[1],"data":{}"#, nested(depth, "1")));
    assert!(decode(&at(99)).is_ok());
    assert!(refused(&at(100)).message().ends_with("maximum allowed limit (100)"));
    // Empty arrays count too.
    let empty =
        |depth| input(&format!(r#""datatype":"INT8","shape":[1],"data":{}"#, nested(depth, "")));
    assert_eq!(decode(&empty(100)).unwrap_err().code(), Code::Internal);
    assert!(refused(&empty(101)).message().ends_with("maximum allowed limit (100)"));
}

#[test]
fn cve_2026_47477_nested_brackets_anywhere() {
    let deep = "[".repeat(250_000);
    let objects = r#"{"a":"#.repeat(250_000);
    let too_deep = "JSON nesting depth exceeds maximum allowed limit (100)";
    for text in [&deep, &objects] {
        let unknown = format!(r#"{{"unknown":{text}"#);
        let status =
            IndexRequest::decode(unknown.as_bytes(), &MessageLimits::default()).unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, too_deep));
        assert_eq!(refused(&unknown).message(), too_deep);
        let within = format!(r#"{{"inputs":[{{"parameters":{{"p":{text}"#);
        assert_eq!(refused(&within).message(), too_deep);
        refused(text);
        refused(&format!(r#"{{"parameters":{{"p":{text}"#));
    }
    assert_eq!(refused(&deep).message(), too_deep);
}

#[test]
fn cve_2025_23331_a_small_body_with_a_huge_shape() {
    let status = refused(&with_shape("[1000000000000]"));
    assert!(status.message().contains("4000000000000 bytes) that exceeds"), "{status}");
    // Within the limit, the number of elements is checked before memory is allocated.
    let status = decode(&with_shape("[16000000]")).unwrap_err();
    assert_eq!(status.message(), "Failed to parse 'data' field: shape does not match true shape");
}

#[test]
fn cve_2026_24146_a_huge_number_of_outputs() {
    let outputs = vec![r#"{"name":"y"}"#; 100_000].join(",");
    let status = refused(&format!(r#"{{"inputs":[],"outputs":[{outputs}]}}"#));
    assert_eq!(status.message(), "'outputs' has more than the allowed 4096 entries");
    let tensor = r#"{"name":"x","datatype":"UINT8","shape":[0],"data":[]}"#;
    let inputs = vec![tensor; 5000].join(",");
    let status = refused(&format!(r#"{{"inputs":[{inputs}]}}"#));
    assert_eq!(status.message(), "'inputs' has more than the allowed 4096 entries");
}

#[test]
fn cve_2026_47479_millions_of_empty_strings() {
    let strings = vec![r#""""#; 1_000_000].join(",");
    let json = input(&format!(r#""datatype":"BYTES","shape":[1000000],"data":[{strings}]"#));
    let limits = MessageLimits { input_bytes_max: u64::try_from(json.len()).unwrap() };
    let body = Bytes::from(json);
    let status = decode_infer(&body, body.len(), target(), &limits).unwrap_err();
    assert!(status.message().contains("--http-max-input-size"), "{status}");
}

#[test]
fn cve_2026_47481_reserved_keys() {
    refused(r#"{"parameters":{"triton_x":1},"inputs":[]}"#);
    refused(r#"{"parameters":{"triton_":1},"inputs":[]}"#);
}

#[test]
fn cve_2024_0095_error_messages_are_escaped() {
    let body = galatea_codec::documents::encode_error_json("a\r\n[E] forged \u{1b}[2J");
    let text = String::from_utf8(body).unwrap();
    assert_eq!(text, r#"{"error":"a\r\n[E] forged \u001B[2J"}"#);
}

#[test]
fn dimensions_parameters_names_and_strings_are_limited() {
    let limited = |json: &str, text: &str| {
        let status = refused(json);
        assert!(status.message().contains(text), "{status}");
        assert!(status.message().len() < 500);
    };
    let shape = |dims: usize| format!("[{}]", vec!["1"; dims].join(","));
    assert!(decode(&with_shape(&shape(MessageLimits::DIMS_MAX))).is_ok());
    limited(&with_shape(&shape(MessageLimits::DIMS_MAX + 1)), "more than 256 dimensions");

    let parameters = |count: usize| {
        let list: Vec<String> = (0..count).map(|number| format!("\"{number}\":0")).collect();
        format!(r#"{{"parameters":{{{}}},"inputs":[]}}"#, list.join(","))
    };
    assert!(decode(&parameters(MessageLimits::PARAMETERS_MAX)).is_ok());
    limited(&parameters(MessageLimits::PARAMETERS_MAX + 1), "more than 65536 parameters");

    let long = "n".repeat(MessageLimits::NAME_BYTES_MAX + 1);
    let named = format!(r#"{{"inputs":[{{"name":"{long}","data":[],"datatype":"","shape":[]}}]}}"#);
    limited(&named, "input name of 4097 bytes");
    limited(
        &format!(r#"{{"inputs":[],"outputs":[{{"name":"{long}"}}]}}"#),
        "output name of 4097 bytes",
    );
    limited(&format!(r#"{{"parameters":{{"{long}":1}}}}"#), "parameter name of 4097 bytes");

    // As in Triton, the number of strings is not limited, except by memory.
    let count = (1 << 22) + 1;
    let strings = |count: usize| {
        let data = vec!["\"\""; count].join(",");
        input(&format!(r#""datatype":"BYTES","shape":[{count}],"data":[{data}]"#))
    };
    assert!(decode(&strings(count)).is_ok());
}
