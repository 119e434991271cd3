//! Tests of the JSON form: printing as in Triton, and parsing.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which the lint does not know as such")]

use std::fs;
use std::path::Path;

use galatea_config::{ConfigDraft, SupportedFeatures, model_config_to_json};
use galatea_pbtxt::parse_config_draft;

fn print(text: &str) -> String {
    model_config_to_json(parse_config_draft("f", text).unwrap().message())
}

/// Checks that the printed form of `text` contains `part`.
fn check(text: &str, part: &str) {
    let printed = print(text);
    assert!(printed.contains(part), "{part} is not in\n{printed}");
}

fn errors(json: &str) -> String {
    ConfigDraft::from_json("override", json).unwrap_err().to_string()
}

#[test]
fn integers_of_64_bits_are_numbers_with_three_exceptions() {
    check("input { dims: 9223372036854775807 }", "\"dims\":[9223372036854775807]");
    check("version_policy { specific { versions: 3 } }", "{\"specific\":{\"versions\":[3]}}");
    check(
        "dynamic_batching { priority_levels: 18446744073709551615 \
         priority_queue_policy { key: 7 value { default_timeout_microseconds: 8 } } }",
        "\"priority_levels\":18446744073709551615,\"default_priority_level\":0,\
         \"priority_queue_policy\":{\"7\":{\"timeout_action\":\"REJECT\",\
         \"default_timeout_microseconds\":8,\"allow_timeout_override\":false,\
         \"max_queue_size\":0}}",
    );
    check("ensemble_scheduling { step { model_version: -1 } }", "\"model_version\":-1");
    check("instance_group { secondary_devices { device_id: 5 } }", "\"device_id\":\"5\"");
    check(
        "sequence_batching { state { dims: 1 initial_state { dims: 2 } } }",
        "\"dims\":[1],\"initial_state\":[{\"data_type\":\"TYPE_INVALID\",\"dims\":[\"2\"],",
    );
    check(
        "optimization { cuda { graph_spec { input { key: 'A' value { dim: 3 } } } } }",
        "\"input\":{\"A\":{\"dim\":[\"3\"]}}",
    );
}

#[test]
fn absent_messages_and_oneofs_are_omitted() {
    let printed = print("name: 'm'");
    for absent in ["version_policy", "optimization", "batching", "response_cache", "runtime\":{"] {
        assert!(!printed.contains(absent), "{absent} is in {printed}");
    }
    check("dynamic_batching { }", "\"dynamic_batching\":{\"preferred_batch_size\":[],");
    check("version_policy { all { } }", "\"version_policy\":{\"all\":{}}");
    check(
        "model_warmup { inputs { key: 'A' value { zero_data: false } } }",
        "\"zero_data\":false}",
    );
}

#[test]
fn strings_are_escaped() {
    check(
        r#"name: "\"\\/\b\f\n\r\t\001\037\177ä<>""#,
        "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001F\u{7f}ä<>\"",
    );
}

#[test]
fn maps_are_sorted() {
    let entry = |key: char| format!("metric_tags {{ key: '{key}' value: '' }}");
    let text: String = ('a'..='j').rev().map(entry).collect();
    let keys: Vec<String> = ('a'..='j').map(|key| format!("\"{key}\":\"\"")).collect();
    check(&text, &format!("\"metric_tags\":{{{}}}", keys.join(",")));
}

#[test]
fn numbers_with_fractions_are_printed_as_in_triton() {
    check(
        "model_metrics { metric_control { histogram_options { \
         buckets: [ 0, 1, 0.1, -2.5, 1e20, 1e-9, 123456.75, inf, -inf, nan ] } } }",
        "\"buckets\":[0,1,0.1,-2.5,100000000000000000000.0,1e-9,123456.75,\"Infinity\",\"-Infinity\",\"NaN\"]",
    );
    check("sequence_batching { direct { minimum_slot_utilization: 0.1 } }", "_utilization\":0.1}");
}

/// The responses of Triton 2.51 to `GET /v2/models/NAME/config`, byte for byte. It served each
/// `printed/NAME.pbtxt` with a backend that ignores tensors; the model `iterative` had an 8-byte
/// file, `initial_state/counter`.
#[test]
fn configurations_are_printed_as_in_triton() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/printed");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "pbtxt") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let mut draft = parse_config_draft("config.pbtxt", &text).unwrap();
        draft.resolve_name_and_backend(&path.file_stem().unwrap().to_string_lossy(), &[]).unwrap();
        let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
        let expected = fs::read_to_string(path.with_extension("json")).unwrap();
        assert_eq!(spec.to_json(), expected.trim_end(), "{}", path.display());
        count += 1;
    }
    assert!(count >= 10, "only {count} files");
}

#[test]
fn printed_configurations_can_be_parsed() {
    let valid = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/valid");
    let mut count = 0;
    for entry in fs::read_dir(valid).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let draft = parse_config_draft("f", &text).unwrap();
        let again = ConfigDraft::from_json("f", &model_config_to_json(draft.message())).unwrap();
        assert_eq!(again.message(), draft.message(), "{text}");
        count += 1;
    }
    assert!(count > 10);
}

#[test]
// row: CFG-01
fn enumerations_match_in_any_case_and_fields_by_both_names() {
    let draft = ConfigDraft::from_json(
        "override",
        r#"{"maxBatchSize": 8, "input": [{"name": "A", "dataType": "type_fp32", "dims": ["1", 2]}],
            "instance_group": [{"kind": "Kind_Cpu"}, {"kind": 3}], "parameters": {}}"#,
    )
    .unwrap();
    assert_eq!(draft.max_batch_size(), 8);
    assert_eq!(draft.inputs()[0].dims, [1, 2]);
    assert_eq!(draft.inputs()[0].datatype, Some(galatea_tensor::DataType::Fp32));
    let kinds: Vec<i32> = draft.message().instance_group.iter().map(|group| group.kind).collect();
    assert_eq!(kinds, [2, 3]);
}

#[test]
fn numbers_are_parsed_in_all_forms() {
    let draft = ConfigDraft::from_json(
        "override",
        r#"{"maxBatchSize": "-7", "input": [{"dims": ["-1", 2.0, 9223372036854775807]}],
            "output": null, "dynamic_batching": {"priority_levels": 18446744073709551615,
            "preferred_batch_size": [1e1], "priority_queue_policy": {"18446744073709551615": {}}},
            "model_metrics": {"metric_control": [{"histogram_options":
            {"buckets": [1, 0.5, "Infinity", "-Infinity", "2.5"]}}]},
            "instance_group": [{"count": -0.0, "kind": 77}]}"#,
    )
    .unwrap();
    let printed = model_config_to_json(draft.message());
    for part in [
        "\"max_batch_size\":-7,",
        "\"dims\":[-1,2,9223372036854775807]",
        "\"preferred_batch_size\":[10]",
        "\"priority_levels\":18446744073709551615",
        "\"priority_queue_policy\":{\"18446744073709551615\":{",
        "\"buckets\":[1,0.5,\"Infinity\",\"-Infinity\",2.5]",
        "\"output\":[]",
        "\"kind\":77",
    ] {
        assert!(printed.contains(part), "{part} is not in\n{printed}");
    }
}

#[test]
fn invalid_json_is_reported() {
    assert_eq!(
        errors(r#"{"max_batchsize": 8, "input": [{"data_type": "FP32", "dim": 1}]}"#),
        "override: max_batchsize: unknown field 'max_batchsize' in ModelConfig (did you mean \
         'max_batch_size'?)\n\
         override: input[0].data_type: 'FP32' is not a value of DataType, expected one of \
         TYPE_INVALID, TYPE_BOOL, TYPE_UINT8, TYPE_UINT16, TYPE_UINT32, TYPE_UINT64, TYPE_INT8, \
         TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_FP16, TYPE_FP32, TYPE_FP64, TYPE_STRING, \
         TYPE_BF16 (did you mean 'TYPE_FP32'?)\n\
         override: input[0].dim: unknown field 'dim' in ModelInput (did you mean 'dims'?)"
    );
    assert!(errors("{\n \"name\": }").starts_with("override:2:10: this is no value"));
    let check = |json: &str, expected: &str| {
        assert_eq!(errors(json), format!("override: {expected}"), "{json}");
    };
    check(
        r#"{"max_batch_size": "many"}"#,
        "max_batch_size: this string is not possible here, expected an integer of 32 bits",
    );
    check(
        r#"{"input": [{"dims": [1.5]}]}"#,
        "input[0].dims[0]: this number is not possible here, expected an integer of 64 bits",
    );
    check("[]", "a list is not possible here, expected an object with the fields of ModelConfig");
    check(
        r#"{"dynamic_batching": {}, "sequence_batching": {}}"#,
        "sequence_batching: another possibility of the oneof 'scheduling_choice' is given too",
    );
    check(
        r#"{"parameters": {"k": 5}, "input": {}}"#,
        "parameters[\"k\"]: this number is not possible here, expected an object with the fields \
         of ModelParameter",
    );
    check(
        r#"{"dynamic_batching": {"priority_queue_policy": {"x": {}}}}"#,
        "dynamic_batching.priority_queue_policy[\"x\"]: the key is not a number",
    );
    for out_of_range in ["2147483648", "\"-2147483649\"", "1e10", "true", "{}", "[1]"] {
        let text = errors(&format!(r#"{{"max_batch_size": {out_of_range}}}"#));
        assert!(text.contains("expected an integer of 32 bits"), "{out_of_range}: {text}");
    }
    let single = r#"{"sequence_batching": {"direct": {"minimum_slot_utilization": 1e39}}}"#;
    assert!(errors(single).contains("expected a number"));
    let deep = "[".repeat(100_000);
    assert!(errors(&format!("{{\"input\": {deep}")).contains("the nesting is too deep"));
}
