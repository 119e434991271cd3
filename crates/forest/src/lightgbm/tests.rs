//! Handmade models, each of which tests one feature.

#![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use crate::{Forest, ModelFormat, ReadError, read_forest};

const MODEL: &str = "tree
version=v4
num_class=1
num_tree_per_iteration=1
label_index=0
max_feature_idx=1
objective=regression
feature_names=a b
unknown_key=1

Tree=0
num_leaves=3
num_cat=0
split_feature=0 1
split_gain=3 1
threshold=0.5 1
decision_type=10 0
left_child=-1 -2
right_child=1 -3
leaf_value=1 2 4
leaf_count=5 3 2
internal_count=10 5
is_linear=0
shrinkage=1


Tree=1
num_leaves=1
num_cat=0
split_feature=
threshold=
left_child=
right_child=
leaf_value=0.25

end of trees

feature_importances:
Tree=9
";

const ROWS: [[f32; 2]; 5] = [[0.5, 9.0], [0.6, 1.0], [0.6, 1.5], [f32::NAN, 9.0], [9.0, f32::NAN]];

fn edited(edits: &[(&str, &str)]) -> Result<Forest, ReadError> {
    let mut text = MODEL.to_owned();
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    read_forest(ModelFormat::Lightgbm, text.as_bytes())
}

fn check(edits: &[(&str, &str)], expected: &[f32]) {
    let forest = edited(edits).unwrap();
    let mut output = vec![0.0; ROWS.len() * forest.outputs_per_row()];
    forest.predict(ROWS.as_flattened(), ROWS.len(), &mut output, 1).unwrap();
    for (actual, expected) in output.iter().zip(expected) {
        assert!((actual - expected).abs() < 1e-6, "{edits:?}: {output:?}");
    }
}

fn check_error(edits: &[(&str, &str)], expected: &str) {
    assert_eq!(edited(edits).unwrap_err().to_string(), expected);
}

#[test]
fn rows_walk_and_missing_values_follow_their_kind() {
    check(&[], &[1.25, 2.25, 4.25, 1.25, 2.25]);
    // NaN is missing and goes to the right.
    check(&[("=10 0", "=8 8")], &[1.25, 2.25, 4.25, 4.25, 4.25]);
    // NaN counts as zero.
    check(&[("=10 0", "=2 0"), ("=0.5 1", "=0.5 -1")], &[1.25, 4.25, 4.25, 1.25, 4.25]);
    // Without `decision_type`, NaN counts as zero too.
    check(&[("decision_type=10 0\n", "")], &[1.25, 2.25, 4.25, 1.25, 2.25]);
}

#[test]
fn zeros_may_be_missing() {
    let forest = edited(&[("=10 0", "=4 4")]).unwrap();
    let mut output = [0.0; 3];
    forest.predict(&[0.0, 0.0, f32::NAN, 0.5, 0.1, 0.0], 3, &mut output, 1).unwrap();
    assert_eq!(output, [4.25, 2.25, 1.25]);
}

#[test]
fn sets_of_bits_are_categories_of_the_left() {
    let sets = ("num_cat=0", "num_cat=2\ncat_boundaries=0 1 3\ncat_threshold=1 2 1");
    let split = [sets, ("=10 0", "=0 1"), ("=0.5 1", "=0.5 1")];
    // The second set contains 1 and 32.
    check(&split, &[1.25, 2.25, 2.25, 1.25, 4.25]);
    check_error(&[split[0], split[1], ("=0.5 1", "=0.5 2")], "a split has no categories");
    let reversed = ("num_cat=0", "num_cat=2\ncat_boundaries=3 1 3\ncat_threshold=1 2 1");
    check_error(&[reversed, ("=10 0", "=0 1"), ("=0.5 1", "=0.5 0")], "a split has no categories");
}

#[test]
fn objectives_transform_sums() {
    let objective = |name| [("objective=regression", name)];
    let names = [
        ("objective=regression sqrt", 1.5625),
        ("objective=binary sigmoid:2", 0.924_142),
        ("objective=cross_entropy", 0.777_300),
        ("objective=cross_entropy_lambda", 1.501_929),
        ("objective=poisson", 3.490_343),
        ("objective=lambdarank", 1.25),
        ("no_objective=", 1.25),
    ];
    for (name, expected) in names {
        check(&objective(name), &[expected]);
    }
    check_error(&objective("objective=new"), "Unrecognized objective: new");
    check_error(
        &objective("objective=binary sigmoid:0"),
        "the objective binary of the LightGBM model has no positive sigmoid",
    );
}

#[test]
fn trees_take_turns_with_classes() {
    let classes = [
        ("num_class=1", "num_class=2"),
        ("iteration=1", "iteration=2"),
        ("objective=regression", "objective=multiclass num_class:2"),
    ];
    check(&classes, &[0.679_179, 0.320_821]);
    check_error(&classes[..1], "1 trees in each iteration do not fit 2 classes");
    let average = ("unknown_key=1", "average_output");
    check(&[average], &[0.625, 1.125, 2.125, 0.625, 1.125]);
}

#[test]
fn contradictions_are_refused() {
    check_error(
        &[("is_linear=0", "is_linear=1")],
        "LightGBM models with linear trees (linear_tree=True) are not supported",
    );
    check_error(&[("num_leaves=3", "num_leaves=0")], "a tree has no leaf");
    check_error(
        &[("num_leaves=3", "num_leaves=4")],
        "leaf_value of a tree has 3 numbers, expected 4",
    );
    check_error(&[("num_leaves=3\n", "")], "the LightGBM model has no num_leaves");
    check_error(&[("child=-1 -2", "child=0 -2")], "node 0 of a tree has two parents");
    check_error(&[("child=-1 -2", "child=-9 -2")], "a tree with 5 nodes has no node 10");
    check_error(
        &[("feature=0 1", "feature=0 2")],
        "a node tests feature 2, but the model has 2 features",
    );
    check_error(&[("=0.5 1", "=x 1")], "threshold of the LightGBM model is no number");
    let error = read_forest(ModelFormat::Lightgbm, b"PK\x03\x04").unwrap_err();
    assert_eq!(error.to_string(), "this is no model of LightGBM: it has no num_class");
}
