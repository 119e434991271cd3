//! Tree-ensemble files, whose configuration is derived from the file.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use galatea_forest::{Forest, ForestTask, ModelFormat, read_forest};

/// The number of bytes to read from the start of a file to identify its format if its extension is
/// ambiguous.
const HEAD_BYTES: u64 = 4096;
/// The maximum batch size; a batch is one pass over the forest for each row.
const BATCH_MAX: u32 = 1024;

/// The format of a file; `None` if the file is not a forest. If the extension is ambiguous, the
/// file's content decides.
pub(super) fn format_of(path: &Path) -> Option<ModelFormat> {
    let ending = path.extension().and_then(OsStr::to_str)?;
    let begins = |start: &[u8]| head(path).is_some_and(|head| head.starts_with(start));
    match ending {
        "ubj" => Some(ModelFormat::XgboostUbjson),
        "tl" => Some(ModelFormat::Treelite),
        "json" => is_xgboost_json(path).then_some(ModelFormat::XgboostJson),
        "txt" => (begins(b"tree\n") || begins(b"tree\r\n")).then_some(ModelFormat::Lightgbm),
        // XGBoost also uses this extension for its newer formats.
        "model" if is_xgboost_json(path) => Some(ModelFormat::XgboostJson),
        "model" if begins(b"{") => Some(ModelFormat::XgboostUbjson),
        "model" => Some(ModelFormat::XgboostLegacy),
        _ => None,
    }
}

/// Returns true if a file in a directory of other files is a forest. Many programs use the
/// extension `.model`, so such a file must have the backend's default name.
pub(super) fn is_served(path: &Path) -> bool {
    let is_any_model = path.extension() == Some(OsStr::new("model"))
        && path.file_name() != Some(OsStr::new(ModelFormat::XgboostLegacy.default_file_name()));
    !is_any_model && format_of(path).is_some()
}

/// Returns true if the file has its usual name within a version, which says nothing about the
/// model.
pub(super) fn has_usual_name(path: &Path) -> bool {
    let is_name =
        |format: &ModelFormat| path.file_name() == Some(OsStr::new(format.default_file_name()));
    ModelFormat::ALL.iter().any(is_name)
}

/// The configuration for a file, with class probabilities or numbers as output. For a damaged file,
/// the sizes are arbitrary, because the load reports the damage before they matter.
pub(super) fn config(path: &Path, format: ModelFormat) -> String {
    let forest = std::fs::read(path).ok().and_then(|file| read_forest(format, &file).ok());
    let is_classifier = forest.as_ref().is_some_and(|forest| {
        matches!(forest.task(), ForestTask::BinaryClassifier | ForestTask::MultiClassifier)
    });
    let features = forest.as_ref().map_or(1, Forest::feature_count);
    let columns = forest.as_ref().map_or(1, Forest::columns_per_target);
    let parameter = |key: &str, value: &str| {
        format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n")
    };
    let tensor = |kind: &str, name: &str, size: usize| {
        format!("{kind} {{ name: \"{name}\" data_type: TYPE_FP32 dims: [ {size} ] }}\n")
    };
    [
        format!("backend: \"fil\"\nmax_batch_size: {BATCH_MAX}\ndynamic_batching {{ }}\n"),
        tensor("input", "input__0", features),
        tensor("output", "output__0", columns),
        parameter("model_type", format.model_type()),
        parameter("is_classifier", &is_classifier.to_string()),
        parameter("predict_proba", &is_classifier.to_string()),
    ]
    .concat()
}

fn head(path: &Path) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
    Some(head)
}

/// Returns true if the file is a JSON object with XGBoost's `learner` key.
fn is_xgboost_json(path: &Path) -> bool {
    const LEARNER: &[u8] = b"\"learner\"";
    let Some(head) = head(path) else { return false };
    head.trim_ascii_start().starts_with(b"{")
        && head.windows(LEARNER.len()).any(|window| window == LEARNER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_known_by_their_endings_and_contents() {
        let folder = std::env::temp_dir().join(format!("galatea-forests-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, content, format, is_served_there) in [
            ("a.json", "{\"learner\":{", Some(ModelFormat::XgboostJson), true),
            ("a.ubj", "", Some(ModelFormat::XgboostUbjson), true),
            ("a.tl", "", Some(ModelFormat::Treelite), true),
            ("a.txt", "tree\nversion=v4\n", Some(ModelFormat::Lightgbm), true),
            ("a.model", "\u{0}\u{0}", Some(ModelFormat::XgboostLegacy), false),
            ("b.model", "{L", Some(ModelFormat::XgboostUbjson), false),
            ("c.model", "{\"learner\":{", Some(ModelFormat::XgboostJson), false),
            ("xgboost.model", "\u{0}\u{0}", Some(ModelFormat::XgboostLegacy), true),
            ("config.json", "{\"learning\":{", None, false),
            ("notes.txt", "trees\n", None, false),
            ("other.txt", "# tree", None, false),
            ("a.onnx", "tree", None, false),
        ] {
            let path = folder.join(name);
            std::fs::write(&path, content).unwrap();
            assert_eq!((format_of(&path), is_served(&path)), (format, is_served_there), "{name}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
