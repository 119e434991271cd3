//! Handmade documents, each of which tests one feature.

use crate::{Forest, ModelFormat, ReadError, read_forest};

/// A document with one tree. Tests replace parts of it.
const DOCUMENT: &str = r#"{"version": [3, 2, 0], "unknown": {"a": [1, "b", null]}, "learner": {
    "learner_model_param":
        {"base_score": "5E-1", "num_class": "0", "num_feature": "3", "num_target": "1"},
    "objective": {"name": "reg:squarederror"},
    "gradient_booster": {"name": "gbtree", "model": {"tree_info": [0], "trees": [{
        "left_children": [1, -1, 3, -1, -1], "right_children": [2, -1, 4, -1, -1],
        "split_indices": [1, 0, 2, 0, 0], "split_conditions": [0.25, -1.0, 4, 1, 2.0],
        "default_left": [1, 0, 0, 0, 0], "tree_param": {"num_nodes": "5"}
    }]}}
}}"#;

const ROWS: [[f32; 3]; 5] = [
    [0.0, 0.0, 0.0],
    [0.0, 0.25, 3.9],
    [0.0, 1.0, 4.0],
    [0.0, f32::NAN, 0.0],
    [0.0, 1.0, f32::NAN],
];

fn edited(edits: &[(&str, &str)]) -> Result<Forest, ReadError> {
    let mut text = DOCUMENT.to_owned();
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    read_forest(ModelFormat::XgboostJson, text.as_bytes())
}

fn predict(forest: &Forest) -> Vec<f32> {
    let mut output = vec![0.0; ROWS.len() * forest.outputs_per_row()];
    forest.predict(ROWS.as_flattened(), ROWS.len(), &mut output, 1).unwrap();
    output
}

fn check(edits: &[(&str, &str)], expected: &[f32]) {
    let actual = predict(&edited(edits).unwrap());
    assert_eq!(actual.len(), expected.len());
    for (actual, expected) in actual.iter().zip(expected) {
        assert!((actual - expected).abs() < 1e-6, "{edits:?}: {actual} is not {expected}");
    }
}

fn check_error(edits: &[(&str, &str)], expected: &str) {
    assert_eq!(edited(edits).unwrap_err().to_string(), expected);
}

#[test]
fn rows_walk_and_missing_values_follow_the_default() {
    check(&[], &[-0.5, 1.5, 2.5, -0.5, 2.5]);
    check(&[("[1, 0, 0, 0, 0]", "[false, 0, true, 0, 0]")], &[-0.5, 1.5, 2.5, 1.5, 1.5]);
}

#[test]
fn thresholds_have_32_bits() {
    // The nearest 32-bit float is below 0.7 and above 0.1.
    for threshold in ["0.1", "0.7"] {
        let forest = edited(&[("[0.25,", &format!("[{threshold},"))]).unwrap();
        let value: f32 = threshold.parse().unwrap();
        for (value, expected) in [(value, 1.5), (value.next_down(), -0.5)] {
            let mut output = [0.0];
            forest.predict(&[0.0, value, 0.0], 1, &mut output, 1).unwrap();
            assert_eq!(output, [expected], "{value}");
        }
    }
}

#[test]
fn base_scores_have_three_forms_and_become_margins() {
    for score in ["0.5", "\"0.5\"", "\"[5E-1]\"", "[0.5]", "\" [ 5E-1 ] \""] {
        check(&[("\"5E-1\"", score)], &[-0.5, 1.5, 2.5, -0.5, 2.5]);
    }
    let logistic = ("reg:squarederror", "binary:logistic");
    // The logit of 0.75 is ln 3.
    check(
        &[("5E-1", "7.5E-1"), logistic],
        &[0.524_633, 0.890_768, 0.956_835, 0.524_633, 0.956_835],
    );
    // A raw sum uses the base score unchanged.
    let raw = ("reg:squarederror", "binary:logitraw");
    check(&[raw], &[-0.5, 1.5, 2.5, -0.5, 2.5]);
    let poisson = ("reg:squarederror", "count:poisson");
    check(&[poisson], &[0.183_939_7, 1.359_140_9, 3.694_528, 0.183_939_7, 3.694_528]);
    // Files from before version 1 contain the margin itself.
    let old = ("[3, 2, 0]", "[0, 9]");
    check(&[old, logistic], &[0.377_541, 0.817_574, 0.924_142, 0.377_541, 0.924_142]);
    check_error(&[("\"5E-1\"", "\"[1,2]\"")], "the model has 2 base scores for 1 outputs");
    check_error(&[("5E-1", "x")], "base_score is not a number or a list of numbers");
}

#[test]
fn listed_categories_go_to_the_right() {
    let tree = "\"tree_param\": {\"num_nodes\": \"5\"}";
    let categories = format!(
        "{tree}, \"split_type\": [0, 0, 1, 0, 0], \"categories_nodes\": [2], \
         \"categories_segments\": [1], \"categories_sizes\": [2], \"categories\": [7, 3, 4]"
    );
    check(&[(tree, &categories)], &[-0.5, 2.5, 2.5, -0.5, 2.5]);
    let left = ("[1, 0, 0, 0, 0]", "[1, 0, 1, 0, 0]");
    check(&[(tree, &categories), left], &[-0.5, 2.5, 2.5, -0.5, 1.5]);
    let none = categories.replace("nodes\": [2]", "nodes\": [1]");
    check_error(&[(tree, &none)], "node 2 of a tree has no categories");
    let beyond = categories.replace("segments\": [1]", "segments\": [2]");
    check_error(&[(tree, &beyond)], "a node points beyond the end of its tree");
}

#[test]
fn weights_of_dart_multiply_leaves() {
    let begin = (
        "{\"name\": \"gbtree\", \"model\"",
        "{\"name\": \"dart\", \"weight_drop\": [0.5], \"gbtree\": {\"model\"",
    );
    check(&[begin, ("]}}\n}}", "]}}}\n}}")], &[0.0, 1.0, 1.5, 0.0, 1.5]);
    let linear = ("\"name\": \"gbtree\"", "\"name\": \"gblinear\"");
    check_error(&[linear], "the booster \"gblinear\" has no trees; \"gbtree\" and \"dart\" have");
}

#[test]
fn vectors_of_leaves_belong_to_classes_or_targets() {
    let weights = "\"base_weights\": [0, 0, 1, -1, 0, 0, 2, -2, 3, -3]";
    let size = ("{\"num_nodes\": \"5\"}", format!("{{\"size_leaf_vector\": \"2\"}}, {weights}"));
    let targets = ("\"num_target\": \"1\"", "\"num_target\": \"2\"");
    let expected = [1.5, -0.5, 2.5, -1.5, 3.5, -2.5, 1.5, -0.5, 3.5, -2.5];
    check(&[(size.0, &size.1), targets], &expected);
    // Version 3.2 stores only the leaves' values; the right child's number is their index.
    let new = "{\"size_leaf_vector\": \"2\"}, \"leaf_weights\": [1, -1, 2, -2, 3, -3]";
    let right = ("[2, -1, 4, -1, -1]", "[2, 0, 4, 1, 2]");
    check(&[(size.0, new), right, targets], &expected);
    let classes =
        [("\"num_class\": \"0\"", "\"num_class\": \"2\""), ("reg:squarederror", "multi:softprob")];
    let forest = edited(&[(size.0, &size.1), classes[0], classes[1]]).unwrap();
    assert_eq!(
        (forest.target_count(), forest.columns_per_target(), forest.has_leaf_vectors()),
        (1, 2, true)
    );
    assert!((predict(&forest)[0] - 0.880_797).abs() < 1e-6);
    check_error(&[(size.0, &size.1)], "a leaf has 2 values, expected 1");
}

#[test]
fn groups_are_classes_or_targets() {
    let group = ("\"tree_info\": [0]", "\"tree_info\": [2]");
    let classes = ("\"num_class\": \"0\"", "\"num_class\": \"3\"");
    let softmax = ("reg:squarederror", "multi:softmax");
    let forest = edited(&[group, classes, softmax]).unwrap();
    let mut margins = [0.0; 3];
    forest.margins(&ROWS[2], 1, &mut margins, 1).unwrap();
    assert_eq!(margins, [0.5, 0.5, 2.5]);
    let targets = ("\"num_target\": \"1\"", "\"num_target\": \"3\"");
    let forest = edited(&[group, targets]).unwrap();
    assert_eq!(predict(&forest)[..3], [0.5, 0.5, -0.5]);
    check_error(&[group], "a tree belongs to an output that does not exist");
    check_error(
        &[classes, targets],
        "XGBoost does not support multi-target models for multi-class classification",
    );
    let many = ("\"num_class\": \"0\"", "\"num_class\": \"2000000000\"");
    check_error(&[many], "2000000000 outputs for each row are more than 32768");
}

#[test]
fn contradictions_are_refused() {
    check_error(&[("[1, -1, 3,", "[0, -1, 3,")], "node 0 of a tree has two parents");
    check_error(&[("[1, -1, 3,", "[2, -1, 3,")], "node 2 of a tree has two parents");
    check_error(&[("[1, -1, 3,", "[9, -1, 3,")], "a tree with 5 nodes has no node 9");
    check_error(
        &[("[1, -1, 3,", "[1.5, -1, 3,")],
        "the XGBoost model has no valid \"left_children\"",
    );
    check_error(
        &[("[1, 0, 2,", "[3, 0, 2,")],
        "a node tests feature 3, but the model has 3 features",
    );
    check_error(
        &[("[1, 0, 2, 0, 0]", "[1]")],
        "\"split_indices\" of a tree has 1 numbers, expected 5",
    );
    check_error(&[("reg:squarederror", "reg:new")], "Unrecognized XGBoost objective: reg:new");
    check_error(&[("\"trees\"", "\"tree\"")], "the XGBoost model has no valid \"trees\"");
    check_error(
        &[("tree_info\": [0]", "tree_info\": []")],
        "the model has 1 trees, but not as many groups or weights",
    );
}

/// Converts the document to the binary format.
fn legacy(booster: &str, edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut file = Vec::new();
    let numbers = |file: &mut Vec<u8>, list: &[i32]| {
        list.iter().for_each(|number| file.extend(number.to_le_bytes()));
    };
    let text = |file: &mut Vec<u8>, text: &str| {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.as_bytes());
    };
    file.extend(0.5_f32.to_le_bytes());
    numbers(&mut file, &[3, 0, 0, 0, 1, 7, 1]);
    numbers(&mut file, &[0; 26]);
    text(&mut file, "reg:squarederror");
    text(&mut file, booster);
    numbers(&mut file, &[1, 1, 3, 0, 0, 0, 1, 0]);
    numbers(&mut file, &[0; 32]);
    numbers(&mut file, &[1, 5, 0, 2, 3, 0]);
    numbers(&mut file, &[0; 31]);
    let nodes: [(i32, i32, u32, f32); 5] = [
        (1, 2, 1 | 1 << 31, 0.25),
        (-1, -1, 0, -1.0),
        (3, 4, 2, 4.0),
        (-1, -1, 0, 1.0),
        (-1, -1, 0, 2.0),
    ];
    for (left, right, feature, value) in nodes {
        numbers(&mut file, &[-1, left, right, feature.cast_signed()]);
        file.extend(value.to_le_bytes());
    }
    file.extend([0; 5 * 16]);
    numbers(&mut file, &[0]);
    if booster == "dart" {
        file.extend(1_u64.to_le_bytes());
        file.extend(0.5_f32.to_le_bytes());
    }
    edit(&mut file);
    file
}

#[test]
fn the_binary_format_says_the_same() {
    let forest = |file: &[u8]| read_forest(ModelFormat::XgboostLegacy, file).unwrap();
    assert_eq!(predict(&forest(&legacy("gbtree", |_| ()))), [-0.5, 1.5, 2.5, -0.5, 2.5]);
    assert_eq!(predict(&forest(&legacy("dart", |_| ()))), [0.0, 1.0, 1.5, 0.0, 1.5]);
    let with_magic = legacy("gbtree", |file| drop(file.splice(0..0, *b"binf")));
    assert_eq!(predict(&forest(&with_magic)), [-0.5, 1.5, 2.5, -0.5, 2.5]);
}

#[test]
fn a_shortened_binary_file_is_refused() {
    let whole = legacy("dart", |_| ());
    for length in 0..whole.len() {
        assert!(read_forest(ModelFormat::XgboostLegacy, &whole[..length]).is_err(), "{length}");
    }
    let error = read_forest(ModelFormat::XgboostLegacy, DOCUMENT.as_bytes()).unwrap_err();
    assert!(error.to_string().starts_with("this is JSON or UBJSON"));
    let linear = read_forest(ModelFormat::XgboostLegacy, &legacy("gblinear", |_| ())).unwrap_err();
    assert!(matches!(linear, ReadError::Unsupported(_)));
}
