//! Parses the configuration's `parameters`, whose values are strings, by Triton's rules.

use super::FilError;
use crate::ModelFormat;

/// The default threshold. Triton's documentation promises this default, but its code refuses a
/// model without a threshold.
const THRESHOLD: f32 = 0.5;
/// Removed parameters and their replacements.
const REMOVED: [(&str, Option<&str>); 5] = [
    ("algo", Some("layout")),
    ("threads_per_tree", Some("chunk_size")),
    ("output_class", Some("is_classifier")),
    ("storage_type", None),
    ("blocks_per_sm", None),
];

/// A warning about a parameter, for the log.
pub type FilWarning = String;

/// The parameters that matter on a CPU.
#[derive(Debug, Clone, PartialEq)]
pub struct FilParameters {
    /// The model's format.
    pub format: ModelFormat,
    /// True if the model predicts classes.
    pub is_classifier: bool,
    /// True if the outputs are class probabilities rather than class indices.
    pub predict_proba: bool,
    /// The second of two classes is chosen if the prediction is above this value.
    pub threshold: f32,
    /// The maximum number of threads for a prediction. Triton's default is all processors, which is
    /// slower than one thread for all but large batches.
    pub threads: usize,
}

impl FilParameters {
    /// Parses the parameters in Triton's order. `get` looks up a parameter by name.
    pub fn read<'a>(
        get: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<(Self, Vec<FilWarning>), FilError> {
        let mut warnings = Vec::new();
        let old_output_class = removed(&get, &mut warnings);
        let predict_proba = boolean(&get, "predict_proba")?.unwrap_or(false);
        let format = format_of(word(get("model_type")).unwrap_or("xgboost"))?;
        // The parameter's value is only validated: unknown fields are never an error here.
        boolean(&get, "xgboost_allow_unknown_field")?;
        let is_classifier = match old_output_class {
            Some(is_classifier) => is_classifier,
            None => boolean(&get, "is_classifier")?.ok_or_else(|| {
                let text = "Required parameter is_classifier not found in config";
                FilError::InvalidArgument(text.to_owned())
            })?,
        };
        let threshold = match get("threshold") {
            Some(text) if is_classifier => leading_number(text).ok_or_else(|| {
                FilError::InvalidArgument("Bad input for parameter threshold".to_owned())
            })?,
            _ => THRESHOLD,
        };
        let threads = get("cpu_nthread").and_then(leading_integer).unwrap_or(-1);
        if boolean(&get, "use_experimental_optimizations")?.unwrap_or(false) {
            warnings.push(
                "use_experimental_optimizations option is deprecated. \
                 It will be removed in the 25.10 release."
                    .to_owned(),
            );
        }
        let threads = usize::try_from(threads).unwrap_or(1).max(1);
        let parameters = Self { format, is_classifier, predict_proba, threshold, threads };
        Ok((parameters, warnings))
    }
}

impl ModelFormat {
    /// All formats.
    pub const ALL: [Self; 5] = [
        Self::XgboostLegacy,
        Self::XgboostJson,
        Self::XgboostUbjson,
        Self::Lightgbm,
        Self::Treelite,
    ];

    /// The value of the parameter `model_type`.
    #[must_use]
    pub fn model_type(self) -> &'static str {
        match self {
            Self::XgboostLegacy => "xgboost",
            Self::XgboostJson => "xgboost_json",
            Self::XgboostUbjson => "xgboost_ubj",
            Self::Lightgbm => "lightgbm",
            Self::Treelite => "treelite_checkpoint",
        }
    }

    /// The name of the model file, unless the configuration specifies another one.
    #[must_use]
    pub fn default_file_name(self) -> &'static str {
        match self {
            Self::XgboostLegacy => "xgboost.model",
            Self::XgboostJson => "xgboost.json",
            Self::XgboostUbjson => "xgboost.ubj",
            Self::Lightgbm => "model.txt",
            Self::Treelite => "checkpoint.tl",
        }
    }
}

fn format_of(model_type: &str) -> Result<ModelFormat, FilError> {
    let found = ModelFormat::ALL.into_iter().find(|format| format.model_type() == model_type);
    found.ok_or_else(|| {
        FilError::Unsupported(format!(
            "{model_type} not recognized as a valid serialization format."
        ))
    })
}

/// Warns about removed parameters. One of them, `output_class`, still takes effect and is returned.
fn removed<'a>(
    get: &impl Fn(&str) -> Option<&'a str>,
    warnings: &mut Vec<FilWarning>,
) -> Option<bool> {
    let mut is_classifier = None;
    for (name, replacement) in REMOVED {
        let Some(value) = word(get(name)) else { continue };
        let mut warning = format!("The `{name}` parameter has been removed in 25.09 release.");
        if let Some(replacement) = replacement {
            warning += &format!(" Use `{replacement}` instead.");
        }
        warnings.push(warning);
        if name == "output_class" {
            is_classifier = match value {
                "true" => Some(true),
                "false" => Some(false),
                _ => None,
            };
        }
    }
    is_classifier
}

fn boolean<'a>(
    get: &impl Fn(&str) -> Option<&'a str>,
    name: &str,
) -> Result<Option<bool>, FilError> {
    match get(name) {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(other) => Err(FilError::Internal(format!(
            "Expected 'true' or 'false' for parameter '{name}', got: '{other}'"
        ))),
    }
}

/// The first word of a string, as a C++ stream reads it.
fn word(text: Option<&str>) -> Option<&str> {
    text?.split_ascii_whitespace().next()
}

/// The number at the beginning of a string, as a C++ stream reads it. Anything after the number is
/// ignored.
fn leading_number(text: &str) -> Option<f32> {
    let text = text.trim_ascii_start();
    let digits = |byte: u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    let length = text.bytes().take_while(|byte| digits(*byte)).count();
    (1..=length).rev().find_map(|length| text.get(..length)?.parse().ok())
}

fn leading_integer(text: &str) -> Option<i32> {
    let text = text.trim_ascii_start();
    let digits = |byte: u8| matches!(byte, b'0'..=b'9' | b'+' | b'-');
    let length = text.bytes().take_while(|byte| digits(*byte)).count();
    (1..=length).rev().find_map(|length| text.get(..length)?.parse().ok())
}
