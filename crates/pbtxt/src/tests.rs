//! Tests of text format variants.

use galatea_protocol::inference::ModelConfig;

use galatea_config_message::dynamic::DynamicMessage;
use galatea_config_message::{parse_json, to_pbtxt};
use galatea_protocol::schema::model_config_descriptor;

use super::parse_config;
use galatea_config_message::SourceText;

fn parse(text: &str) -> ModelConfig {
    match parse_config(&SourceText::new("config.pbtxt", text)) {
        Ok(parsed) => parsed.message,
        Err(errors) => panic!("{errors:#}"),
    }
}

/// Checks that all texts have the same meaning.
fn check_same(texts: &[&str]) {
    let first = parse(texts[0]);
    assert_ne!(first, ModelConfig::default());
    for text in texts {
        assert_eq!(parse(text), first, "{text}");
    }
}

#[test]
fn an_empty_file_is_an_empty_message() {
    for text in ["", " \n\t", "# only a comment", "# one\n# two\n"] {
        assert_eq!(parse(text), ModelConfig::default());
    }
}

#[test]
fn lists_of_messages_have_several_forms() {
    check_same(&[
        "input [ { name: 'A' }, { name: 'B' } ]",
        "input: [ { name: 'A' }, { name: 'B' } ]",
        "input { name: 'A' } input { name: 'B' }",
        "input: { name: 'A' } input: < name: 'B' >",
        "input < name: 'A' > input [ < name: 'B' > ]",
        "input { name: 'A' }, input { name: 'B' };",
        "input[]input[{name:'A'},{name:'B'}]input:[]",
    ]);
}

#[test]
fn lists_of_scalars_have_several_forms() {
    check_same(&[
        "input { dims: [ 1, -1, 3 ] }",
        "input { dims: 1 dims: -1 dims: 3 }",
        "input { dims: 1, dims: - 1; dims: [ 0x3 ] }",
        "input { dims: [1] dims: [] dims: [-1, 03] }",
    ]);
}

#[test]
fn strings_are_parsed() {
    check_same(&[
        "name: 'simple'",
        r#"name: "simple""#,
        "name: 'sim' \"ple\"",
        "name: 'sim' # comment\n 'ple'",
        r"name: '\163\x69m\u0070le'",
    ]);
}

#[test]
fn enumerations_and_booleans_are_parsed() {
    check_same(&["input { data_type: TYPE_FP32 }", "input { data_type: 11 }"]);
    check_same(&[
        "input { optional: true }",
        "input { optional: True }",
        "input { optional: t }",
        "input { optional: 1 }",
        "input { optional: 0x1 }",
    ]);
    for text in ["false", "False", "f", "0"] {
        let config = parse(&format!("input {{ optional: {text} }}"));
        assert!(!config.input[0].optional);
    }
}

#[test]
fn floats_are_parsed() {
    let buckets = |text: &str| {
        let text = format!(
            "model_metrics {{ metric_control {{ histogram_options {{ buckets: {text} }} }} }}"
        );
        let options = parse(&text).model_metrics.unwrap().metric_control[0].metric_options.clone();
        let galatea_protocol::inference::model_metrics::metric_control::MetricOptions::HistogramOptions(
            histogram,
        ) = options.unwrap();
        histogram.buckets
    };
    assert_eq!(
        buckets("[1, 1.5, 2f, 2.5F, 1e3, -.5, inf]"),
        [1.0, 1.5, 2.0, 2.5, 1000.0, -0.5, f64::INFINITY]
    );
    assert_eq!(buckets("-Infinity"), [f64::NEG_INFINITY]);
    assert!(buckets("nan")[0].is_nan());
}

#[test]
fn maps_are_parsed() {
    check_same(&[
        "parameters { key: 'a' value { string_value: 'x' } } parameters { key: 'b' value { } }",
        "parameters [ { key: 'b' }, { value: { string_value: 'x' } key: 'a' } ]",
        "parameters: { key: 'a' } parameters: <key: 'b'> parameters: { key: 'a' value <string_value: 'x'>}",
    ]);
    check_same(&[
        "dynamic_batching { priority_queue_policy { key: 2 value { max_queue_size: 3 } } }",
        "dynamic_batching: < priority_queue_policy: [ < key: 0x2, value: < max_queue_size: 3, > > ] >",
    ]);
}

#[test]
fn an_empty_message_selects_its_oneof() {
    assert!(parse("dynamic_batching { }").scheduling_choice.is_some());
    assert!(parse("version_policy { all { } }").version_policy.unwrap().policy_choice.is_some());
}

#[test]
fn deep_nesting_does_not_exhaust_the_stack() {
    let text = format!("nested {}", "{ a ".repeat(200_000));
    let errors = parse_config(&SourceText::new("f", &text)).unwrap_err();
    assert_eq!(errors.diagnostics.len(), 2);
    let text = format!("input {}", "{ x [".repeat(100_000));
    assert!(parse_config(&SourceText::new("f", &text)).is_err());
}

#[test]
fn the_number_of_errors_is_limited() {
    let text = "no_such_field: 1\n".repeat(1000);
    let errors = parse_config(&SourceText::new("f", &text)).unwrap_err();
    assert_eq!(errors.diagnostics.len(), 100);
    assert!(errors.to_string().ends_with("and more errors, which are not shown"));
}

#[test]
fn truncated_and_damaged_files_cause_no_panic() {
    let text = "name: \"m\\x41\" input [ { name: 'A' dims: [ 1, -1 ] reshape { shape: [ ] } } ]\n\
                parameters { key: \"k\" value: { string_value: \"v\" } } # end\n";
    for end in 0..=text.len() {
        let _ = parse_config(&SourceText::new("f", &text[..end]));
    }
    for at in 0..text.len() {
        for garbage in ["{", "}", "[", "]", "<", "'", "\\", ":", "-", "\u{0}", "ä", "\n"] {
            let garbled = format!("{}{garbage}{}", &text[..at], &text[at + 1..]);
            let _ = parse_config(&SourceText::new("f", &garbled));
        }
    }
}

#[test]
fn what_is_printed_is_read_back() {
    let json = include_str!("../../config-message/src/testdata/override.json");
    let config = parse_json("f", json).unwrap();
    let again = parse_config(&SourceText::new("f", &to_pbtxt(&config))).unwrap();
    assert_eq!(config, again.message);
}

#[test]
fn every_kind_survives_a_round_trip() {
    let check = |text: &str| {
        let config = parse_config(&SourceText::new("f", text)).unwrap().message;
        let tree = DynamicMessage::from_message(model_config_descriptor(), &config).unwrap();
        assert_eq!(&tree.to_message::<ModelConfig>().unwrap(), &config, "{text}");
    };
    check("name: 'm' max_batch_size: -3 input { data_type: TYPE_FP32 optional: true }");
    check("input { dims: [ -1, 9223372036854775807, -9223372036854775808, 300 ] }");
    check("instance_group { kind: KIND_CPU gpus: [ 0, 300, -1 ] count: 2147483647 }");
    check("dynamic_batching { priority_levels: 18446744073709551615 }");
    check("dynamic_batching { priority_queue_policy { key: 7 value { max_queue_size: 1 } } }");
    check("dynamic_batching { priority_queue_policy { key: 0 value { } } }");
    check("metric_tags { key: '' value: '' } metric_tags { key: 'ä' value: 'b' }");
    check("model_warmup { inputs { key: 'x' value { zero_data: false } } }");
    check("sequence_batching { direct { minimum_slot_utilization: 0.25 } }");
    check(
        "sequence_batching { control_input { control { fp32_false_true: [ 0, 1.5 ] \
         bool_false_true: [ false, true ] int32_false_true: [ -1, 1 ] } } }",
    );
    check(
        "model_metrics { metric_control { histogram_options { \
         buckets: [ 0.1, -2.5, 1e300, inf ] } } }",
    );
    check("version_policy { latest { num_versions: 4294967295 } }");
}
