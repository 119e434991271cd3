//! The settings of the cloud doors.

use std::fmt::{self, Display};
use std::sync::Arc;

use galatea_control::ModelArchiveClassifier;
use regex_lite::Regex;

use crate::HttpOptions;

/// The settings of the SageMaker door.
#[derive(Clone)]
pub struct SageMakerOptions {
    /// The options shared with the inference door. Headers don't become parameters.
    pub http: HttpOptions,
    /// The condition that `/ping` verifies.
    pub ping: PingCheck,
    /// The model for `/invocations`.
    pub default_model: String,
    /// The kind of requests that `/invocations` accepts.
    pub inference: InferenceType,
    /// The model archives on the disk.
    pub archives: Arc<dyn ModelArchiveClassifier>,
    /// Receives a log line about each load and unload.
    pub notices: Arc<LogLineSink>,
}

/// Receives log lines.
pub type LogLineSink = dyn Fn(&dyn Display) + Send + Sync;

/// The condition that a health check verifies.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PingCheck {
    /// The server is running.
    Live,
    /// The server accepts inference requests.
    Ready,
}

/// The kind of inference requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InferenceType {
    /// KServe requests.
    Infer,
    /// Generate requests that return a single response.
    Generate,
    /// Generate requests that return server-sent events.
    GenerateStream,
    /// An unknown configured name; requests are refused.
    Unknown(String),
}

impl InferenceType {
    /// Returns the type with this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name {
            "infer" => Self::Infer,
            "generate" => Self::Generate,
            "generate_stream" => Self::GenerateStream,
            _ => Self::Unknown(name.to_owned()),
        }
    }
}

/// The settings of the Vertex AI door.
#[derive(Clone)]
pub struct VertexAiOptions {
    /// The options shared with the inference door. Headers don't become parameters.
    pub http: HttpOptions,
    /// The path for health checks.
    pub health: PathPattern,
    /// The path for everything else.
    pub predict: PathPattern,
    /// The model for requests that don't specify one.
    pub default_model: String,
    /// Renders the metrics, if the server has any.
    pub metrics: Option<Arc<dyn Fn() -> String + Send + Sync>>,
}

/// A pattern for whole paths.
#[derive(Clone, Debug)]
pub struct PathPattern(Regex);

impl PathPattern {
    /// Creates a pattern for the paths that a regular expression matches from end to end. A path
    /// without special characters matches itself.
    ///
    /// # Errors
    ///
    /// The reason why `pattern` is not a regular expression.
    pub fn new(pattern: &str) -> Result<Self, String> {
        // The expression is compiled by itself first, so that its parentheses can't pair with the
        // added ones.
        Regex::new(pattern).map_err(|error| error.to_string())?;
        Regex::new(&format!(r"\A(?:{pattern})\z")).map(Self).map_err(|error| error.to_string())
    }

    pub(super) fn matches(&self, path: &str) -> bool {
        self.0.is_match(path)
    }
}

impl fmt::Debug for SageMakerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SageMakerOptions");
        shown.field("http", &self.http).field("ping", &self.ping);
        shown.field("default_model", &self.default_model).field("inference", &self.inference);
        shown.finish_non_exhaustive()
    }
}

impl fmt::Debug for VertexAiOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("VertexAiOptions");
        shown.field("http", &self.http).field("health", &self.health);
        shown.field("predict", &self.predict).field("default_model", &self.default_model);
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        let check = |pattern: &str, path: &str| PathPattern::new(pattern).unwrap().matches(path);
        assert!(check("/predict", "/predict"));
        assert!(check(
            "/v1/endpoints/1/deployedModels/2:predict",
            "/v1/endpoints/1/deployedModels/2:predict"
        ));
        assert!(check("/a|/b", "/b"));
        for path in ["/predict/", "/predict\n", "x/predict", "/predic", ""] {
            assert!(!check("/predict", path), "{path:?}");
        }
        assert!(!check("/a|/b", "/ab"));
        for wrong in ["/p[", "a)(b", "(?"] {
            assert!(PathPattern::new(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn inference_types_have_names() {
        for (name, expected) in [
            ("infer", InferenceType::Infer),
            ("generate", InferenceType::Generate),
            ("generate_stream", InferenceType::GenerateStream),
            ("", InferenceType::Unknown(String::new())),
            ("Infer", InferenceType::Unknown("Infer".into())),
        ] {
            assert_eq!(InferenceType::named(name), expected);
        }
    }
}
