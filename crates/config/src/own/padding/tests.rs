use super::*;
use crate::testing::read_config;
use crate::{ModelSpec, SupportedFeatures};

const MODEL: &str = r#"
    backend: "b" max_batch_size: 8 dynamic_batching { }
    input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
    input { name: "mask" data_type: TYPE_INT32 dims: [ -1 ] }
    input { name: "sound" data_type: TYPE_FP32 dims: [ 80, -1 ] }
    input { name: "text" data_type: TYPE_STRING dims: [ -1 ] }
    input { name: "two" data_type: TYPE_FP32 dims: [ -1, -1 ] }
    input { name: "fixed" data_type: TYPE_FP32 dims: [ 4 ] }
"#;

const POOLED: &str = r#"output { name: "pooled" data_type: TYPE_FP32 dims: [ 3 ] }"#;

fn parameters(list: &[(&str, &str)]) -> String {
    let one = |(key, value): &(&str, &str)| {
        format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n")
    };
    list.iter().map(one).collect()
}

fn load(text: &str) -> Result<ModelSpec, String> {
    let mut draft = read_config("config.pbtxt", text).unwrap();
    draft.resolve_name_and_backend("m", &[]).unwrap();
    draft.into_validated_spec(&SupportedFeatures::default()).map_err(|errors| errors.to_string())
}

fn padding(outputs: &str, list: &[(&str, &str)]) -> Option<BatchPaddingSettings> {
    load(&format!("{MODEL}{outputs}{}", parameters(list))).unwrap().own.padding
}

#[track_caller]
fn refused(config: &str, list: &[(&str, &str)], expected: &str) {
    let error = load(&format!("{config}{}", parameters(list))).unwrap_err();
    assert!(error.contains(expected), "{error}");
    let names_value = list.iter().any(|(key, value)| {
        error.contains(&format!("parameter '{key}' of m is '{}'", value.escape_debug()))
    });
    assert!(names_value, "{error}");
}

#[test]
fn settings_are_read() {
    let read = padding(
        r#"output { name: "states" data_type: TYPE_FP32 dims: [ -1, 3 ] }
           output { name: "pairs" data_type: TYPE_FP32 dims: [ 2, -1, -1 ] }
           output { name: "found" data_type: TYPE_FP32 dims: [ -1 ] }"#,
        &[
            ("batch_padding", "ids=7, sound = -1.5"),
            ("batch_padding_mask", "mask"),
            ("batch_padding_outputs", "states=1, pairs=2, pairs=3, found=whole"),
            ("batch_padding_budget", "1024"),
        ],
    );
    let read = read.unwrap();
    let inputs: Vec<(&str, usize, &[u8])> = read
        .inputs
        .iter()
        .map(|input| (input.name.as_str(), input.axis, &*input.element))
        .collect();
    let minus = (-1.5_f32).to_le_bytes();
    let seven = 7_i64.to_le_bytes();
    assert_eq!(inputs, [("ids", 1, &seven[..]), ("sound", 2, &minus), ("mask", 1, &[0; 4])]);
    assert_eq!(
        read.mask.map(|mask| (mask.name, mask.one)),
        Some(("mask".into(), vec![1, 0, 0, 0]))
    );
    let cut =
        |name: &str, axes: &[usize]| UnpaddedOutput { name: name.into(), axes: axes.to_vec() };
    assert_eq!(read.outputs, [cut("states", &[1]), cut("pairs", &[2, 3])]);
    assert_eq!(read.budget, Some(1024));
    assert_eq!(padding(POOLED, &[("padding", "true"), ("other", "x")]), None);
}

#[test]
fn wrong_inputs_are_refused() {
    let config = format!("{MODEL}{POOLED}");
    let check = |value: &str, expected: &str| {
        refused(&config, &[("batch_padding", value)], expected);
    };
    check("ids", "'ids' is not of the form NAME=VALUE");
    check("", "'' is not of the form NAME=VALUE");
    check("idx=0", "the model has no input 'idx' (did you mean 'ids'?)");
    check("ids=0, ids=1", "input 'ids' is named twice");
    check("ids=1.5", "'1.5' is not a value of input 'ids', whose data_type is TYPE_INT64");
    check("mask=3000000000", "'3000000000' is not a value of input 'mask'");
    check("two=0", "input 'two' has 2 variable dimensions beside the batch, and exactly one");
    check("fixed=0", "input 'fixed' has 0 variable dimensions");
    check("text=0", "input 'text' is of TYPE_STRING, and only numbers and booleans can be padded");
}

#[test]
fn wrong_masks_budgets_and_names_are_refused() {
    let config = format!("{MODEL}{POOLED}");
    let ids = ("batch_padding", "ids=0");
    let check = |key: &str, value: &str, expected: &str| {
        refused(&config, &[ids, (key, value)], expected);
    };
    check("batch_padding_mask", "sound", "input 'sound' has dims [80, -1], and a mask");
    check("batch_padding_mask", "msk", "the model has no input 'msk' (did you mean 'mask'?)");
    for value in ["0", "-5", "many", ""] {
        check("batch_padding_budget", value, "it must be a positive integer");
    }
    check("batch_padding_buget", "9", "no such parameter; those of padding are");
    check("batch_padding_buget", "9", "did you mean 'batch_padding_budget'?");
    refused(&config, &[("batch_padding_budget", "9")], "has no effect without 'batch_padding'");
}

#[test]
fn every_output_with_a_variable_dimension_must_be_explained() {
    let output = r#"output { name: "out" data_type: TYPE_FP32 dims: [ -1, 3 ] }
        output { name: "words" data_type: TYPE_STRING dims: [ -1 ] }"#;
    let config = format!("{MODEL}{output}");
    let check = |value: Option<&str>, expected: &str| {
        let mut list = vec![("batch_padding", "ids=0")];
        list.extend(value.map(|value| ("batch_padding_outputs", value)));
        refused(&config, &list, expected);
    };
    check(None, "output 'out' has a variable dimension; 'batch_padding_outputs' must say which");
    check(Some("out=1"), "output 'words' has a variable dimension");
    check(Some("out=2, words=whole"), "dimension 2 of output 'out' has the fixed size 3");
    for value in ["0", "3", "x", "-1"] {
        let expected = format!("'{value}' is not a dimension of output 'out': it has 1 to 2");
        check(Some(&format!("out={value}, words=whole")), &expected);
    }
    check(Some("out=1, words=1"), "output 'words' holds strings, which can't be cut");
    check(Some("out=1, out=1, words=whole"), "output 'out' is named twice");
    check(Some("out=whole, out=1, words=whole"), "output 'out' is named twice");
    check(Some("ou=1"), "the model has no output 'ou' (did you mean 'out'?)");
}

#[test]
fn models_that_cannot_be_padded_are_refused() {
    let io = r#"input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] } backend: "b"
        output { name: "o" data_type: TYPE_FP32 dims: [ 1 ] }"#;
    let check = |rest: &str, expected: &str| {
        refused(&format!("{io}{rest}\n"), &[("batch_padding", "ids=0")], expected);
    };
    check("max_batch_size: 4", "padding needs dynamic_batching");
    check("max_batch_size: 4 sequence_batching { }", "not possible with sequence_batching");
    check("dynamic_batching { }", "padding needs a max_batch_size of at least 1");
    check(
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 2 ] }",
        "leave dynamic_batching.preferred_batch_size out",
    );
    check(
        "max_batch_size: 4 dynamic_batching { } model_transaction_policy { decoupled: true }",
        "a decoupled model can't be padded",
    );
    check(
        "max_batch_size: 4 dynamic_batching { } batch_input { kind: BATCH_ELEMENT_COUNT \
         target_name: 'c' data_type: TYPE_INT32 source_input: 'ids' }",
        "not possible with batch_input",
    );
}

#[test]
fn the_errors_of_a_long_list_are_bounded_while_they_are_made() {
    // Each error would repeat the value: gigabytes in total, quadratic in the number of names.
    let names: Vec<String> = (0..20_000).map(|number| format!("name_{number}=0")).collect();
    let names = names.join(",");
    for key in [INPUTS, OUTPUTS] {
        let list = [(INPUTS, "ids=0"), (key, names.as_str())];
        let list = if key == INPUTS { &list[1..] } else { &list[..] };
        let error = load(&format!("{MODEL}{POOLED}{}", parameters(list))).unwrap_err();
        let kind = if key == INPUTS { "input" } else { "output" };
        assert!(error.contains(&format!(": the model has no {kind} 'name_0'")), "{error}");
        assert!(error.contains("19900 more errors are not shown"), "{error}");
        assert!(error.len() < 200 << 10, "{}", error.len());
    }
}
