//! Parameters, with Triton's error messages, and the outputs of forests whose predictions are
//! known.

use super::{FilError, FilModel, FilParameters, output_shape};
use crate::shape::Shape;
use crate::source::{SourceKind, SourceNode, SourceTree, Test};
use crate::{Forest, ForestTask, ModelFormat, Postprocessor, Precision};

fn read(entries: &[(&str, &str)]) -> Result<(FilParameters, Vec<String>), FilError> {
    let entries = entries.to_vec();
    FilParameters::read(|name| entries.iter().find(|entry| entry.0 == name).map(|entry| entry.1))
}

fn parameters(entries: &[(&str, &str)]) -> FilParameters {
    read(entries).unwrap().0
}

fn check_error(entries: &[(&str, &str)], expected: &FilError) {
    assert_eq!(read(entries).unwrap_err(), *expected);
}

const CLASSIFIER: (&str, &str) = ("is_classifier", "true");
const REGRESSOR: (&str, &str) = ("is_classifier", "false");
const PROBABILITIES: (&str, &str) = ("predict_proba", "true");

#[test]
fn parameters_have_defaults() {
    let expected = FilParameters {
        format: ModelFormat::XgboostLegacy,
        is_classifier: true,
        predict_proba: false,
        threshold: 0.5,
        threads: 1,
    };
    assert_eq!(read(&[CLASSIFIER]).unwrap(), (expected, vec![]));
    let all = [
        CLASSIFIER,
        PROBABILITIES,
        ("model_type", "xgboost_ubj"),
        ("threshold", "0.25 or so"),
        ("cpu_nthread", " 4x"),
        ("xgboost_allow_unknown_field", "true"),
        ("layout", "layered"),
        ("chunk_size", "4"),
        ("transfer_threshold", "2"),
    ];
    let expected = FilParameters {
        format: ModelFormat::XgboostUbjson,
        is_classifier: true,
        predict_proba: true,
        threshold: 0.25,
        threads: 4,
    };
    assert_eq!(read(&all).unwrap(), (expected, vec![]));
    // Values that aren't numbers are ignored if the parameter has a default.
    assert_eq!(parameters(&[REGRESSOR, ("cpu_nthread", "x")]).threads, 1);
    assert_eq!(parameters(&[REGRESSOR, ("cpu_nthread", "-1")]).threads, 1);
    assert_eq!(parameters(&[REGRESSOR, ("threshold", "x")]).threshold, 0.5);
}

#[test]
fn errors_have_the_texts_of_triton() {
    let required = "Required parameter is_classifier not found in config";
    check_error(&[], &FilError::InvalidArgument(required.into()));
    let boolean = "Expected 'true' or 'false' for parameter 'is_classifier', got: 'True'";
    check_error(&[("is_classifier", "True")], &FilError::Internal(boolean.into()));
    let format = "onnx not recognized as a valid serialization format.";
    check_error(&[CLASSIFIER, ("model_type", "onnx")], &FilError::Unsupported(format.into()));
    let threshold = "Bad input for parameter threshold";
    check_error(&[CLASSIFIER, ("threshold", "x")], &FilError::InvalidArgument(threshold.into()));
}

#[test]
fn removed_parameters_warn() {
    let (parameters, warnings) = read(&[
        ("algo", "NAIVE"),
        ("threads_per_tree", "1"),
        ("output_class", "false"),
        ("storage_type", "AUTO"),
        ("blocks_per_sm", "0"),
        CLASSIFIER,
        ("use_experimental_optimizations", "true"),
    ])
    .unwrap();
    assert!(!parameters.is_classifier, "the old name has precedence");
    assert_eq!(
        warnings,
        [
            "The `algo` parameter has been removed in 25.09 release. Use `layout` instead.",
            "The `threads_per_tree` parameter has been removed in 25.09 release. Use `chunk_size` \
         instead.",
            "The `output_class` parameter has been removed in 25.09 release. Use `is_classifier` \
         instead.",
            "The `storage_type` parameter has been removed in 25.09 release.",
            "The `blocks_per_sm` parameter has been removed in 25.09 release.",
            "use_experimental_optimizations option is deprecated. It will be removed in the 25.10 \
         release.",
        ]
    );
}

/// A forest that maps the row `[index]` to `values[index]`.
fn forest(classes: u32, values: &[&[f64]], postprocessor: Postprocessor) -> Forest {
    let task = if classes > 1 { ForestTask::MultiClassifier } else { ForestTask::BinaryClassifier };
    let shape = Shape {
        task,
        precision: Precision::Single,
        features: 1,
        classes: vec![classes],
        is_average: false,
        postprocessor,
        base_scores: vec![0.0],
    };
    let trees = (0..classes as usize).map(|class| {
        let leaf = |row: usize| SourceNode {
            kind: SourceKind::Leaf(values[row][class]),
            cover: Some(1.0),
        };
        let kind = SourceKind::Split {
            feature: 0,
            test: Test::Less(1.0),
            missing_left: true,
            left: 1,
            right: 2,
        };
        Ok(SourceTree {
            nodes: vec![SourceNode { kind, cover: Some(2.0) }, leaf(0), leaf(1)],
            target: Some(0),
            class: Some(class as u32),
            ..SourceTree::default()
        })
    });
    Forest::new(shape, trees).unwrap()
}

fn check(forest: Forest, entries: &[(&str, &str)], width: usize, expected: &[f32]) {
    let model = FilModel::new(forest, &parameters(entries), width).unwrap();
    let mut output = vec![9.0; 2 * width];
    model.predict(&[0.0, 1.0], 2, &mut output).unwrap();
    assert_eq!(output, expected, "{entries:?}");
}

#[test]
fn two_classes_have_a_threshold_or_probabilities() {
    let forest = || forest(1, &[&[0.25], &[0.5]], Postprocessor::Identity);
    check(forest(), &[CLASSIFIER], 1, &[0.0, 0.0]);
    check(forest(), &[CLASSIFIER, ("threshold", "0.25")], 1, &[0.0, 1.0]);
    check(forest(), &[CLASSIFIER, PROBABILITIES], 1, &[0.25, 0.5]);
    check(forest(), &[CLASSIFIER, PROBABILITIES], 2, &[0.75, 0.25, 0.5, 0.5]);
    check(forest(), &[REGRESSOR], 1, &[0.25, 0.5]);
}

#[test]
fn several_classes_have_an_index_or_probabilities() {
    let sums = || forest(3, &[&[-1.0, -2.0, -1.0], &[0.0, 2.0, 2.0]], Postprocessor::Identity);
    check(sums(), &[CLASSIFIER], 1, &[0.0, 1.0]);
    check(sums(), &[REGRESSOR], 3, &[-1.0, -2.0, -1.0, 0.0, 2.0, 2.0]);
    // Softmax replaces any other transformation.
    let equal = || forest(2, &[&[3.0, 3.0], &[0.0, 0.0]], Postprocessor::Identity);
    check(equal(), &[CLASSIFIER, PROBABILITIES], 2, &[0.5; 4]);
}

#[test]
fn outputs_must_have_the_width_of_the_model() {
    let error = |classes: u32, entries: &[(&str, &str)], width| {
        let values: &[&[f64]] = &[&[0.0; 3], &[0.0; 3]];
        let forest = forest(classes, values, Postprocessor::Identity);
        FilModel::new(forest, &parameters(entries), width).unwrap_err().to_string()
    };
    let text = "output__0 has 3 values for each row, but the model gives 1";
    assert_eq!(error(3, &[CLASSIFIER], 3), text);
    assert_eq!(error(1, &[CLASSIFIER, PROBABILITIES], 3), text);
    let text = "output__0 has 2 values for each row, but the model gives 3";
    assert_eq!(error(3, &[CLASSIFIER, PROBABILITIES], 2), text);
}

#[test]
fn explanations_have_a_bias_for_each_class() {
    let forest = forest(2, &[&[1.0, 5.0], &[3.0, 9.0]], Postprocessor::Softmax);
    let model = FilModel::new(forest, &parameters(&[CLASSIFIER]), 1).unwrap();
    let mut output = [0.0; 4];
    model.explainer(4).unwrap().explain(&[0.0], 1, &mut output).unwrap();
    assert_eq!(output, [-1.0, 2.0, -2.0, 7.0]);
    let error = model.explainer(2).unwrap_err();
    let text = "treeshap_output has 2 values for each row, but the model gives 4";
    assert_eq!(error, FilError::InvalidArgument(text.into()));
}

#[test]
fn shapes_lose_dimensions_of_one() {
    assert_eq!(output_shape(&[1], 7).unwrap(), [7]);
    assert_eq!(output_shape(&[-1, 1], 7).unwrap(), [7]);
    assert_eq!(output_shape(&[3], 1).unwrap(), [1, 3]);
    assert_eq!(output_shape(&[2, 1, 5], 7).unwrap(), [7, 2, 5]);
    assert!(matches!(output_shape(&[2, -1], 7), Err(FilError::Internal(_))));
}
