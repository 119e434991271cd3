//! Compares predictions with those of the libraries themselves, for files that
//! `tests/forests/compare.py --write` creates.

#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;

use galatea_forest::{ModelFormat, read_forest};

/// The maximum error of a prediction from three trees, relative to the larger of its magnitude and
/// 1.
const ERROR_MAX: f32 = 2e-6;

fn numbers(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Checks a model against `MODEL.rows` and `MODEL.expected`.
fn check(model: &Path) {
    let format = match model.extension().and_then(|suffix| suffix.to_str()).unwrap() {
        "json" => ModelFormat::XgboostJson,
        "ubj" => ModelFormat::XgboostUbjson,
        "model" => ModelFormat::XgboostLegacy,
        "txt" => ModelFormat::Lightgbm,
        "tl" => ModelFormat::Treelite,
        other => panic!("{other}"),
    };
    let beside = |suffix: &str| numbers(Path::new(&format!("{}.{suffix}", model.display())));
    let forest = read_forest(format, &std::fs::read(model).unwrap()).unwrap();
    let (rows, expected) = (beside("rows"), beside("expected"));
    let count = rows.len() / forest.feature_count();
    assert_eq!(expected.len(), count * forest.outputs_per_row(), "{}", model.display());
    let mut output = vec![0.0; expected.len()];
    forest.predict(&rows, count, &mut output, 1).unwrap();
    for (index, (actual, expected)) in output.iter().zip(&expected).enumerate() {
        let error = (actual - expected).abs() / expected.abs().max(1.0);
        assert!(
            error <= ERROR_MAX,
            "{}, value {index}: {actual} is not {expected}",
            model.display()
        );
    }
}

#[test]
fn each_library_predicts_the_same() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    let mut models = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let suffix = path.extension().unwrap();
        if suffix != "rows" && suffix != "expected" {
            check(&path);
            models += 1;
        }
    }
    assert!(models >= 20, "{models} models");
}
