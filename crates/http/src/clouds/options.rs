//! The settings of the clouds' doors.

use std::fmt::{self, Display};
use std::sync::Arc;

use galatea_control::ArchiveInspector;
use regex_lite::Regex;

use crate::HttpOptions;

/// The settings of the door for SageMaker.
#[derive(Clone)]
pub struct SageMakerOptions {
    /// The options that it shares with the inference door. Headers become no parameters.
    pub http: HttpOptions,
    /// The question of `/ping`.
    pub ping: Ping,
    /// The model of `/invocations`.
    pub default_model: String,
    /// The meaning of `/invocations`.
    pub inference: InferenceType,
    /// The archives of models on the disk.
    pub archives: Arc<dyn ArchiveInspector>,
    /// Takes a line for the log about each load and unload.
    pub notices: Arc<NoticeSink>,
}

/// Takes a line for the log.
pub type NoticeSink = dyn Fn(&dyn Display) + Send + Sync;

/// The question of a health check.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Ping {
    /// True if the server runs.
    Live,
    /// True if it accepts inference requests.
    Ready,
}

/// The kind of the requests for inference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InferenceType {
    /// Those of KServe.
    Infer,
    /// Those of the generate extension, for one response.
    Generate,
    /// The same for events.
    GenerateStream,
    /// Refused: it has a name that means nothing.
    Unknown(String),
}

impl InferenceType {
    /// The one with this name.
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

/// The settings of the door for Vertex AI.
#[derive(Clone)]
pub struct VertexAiOptions {
    /// The options that it shares with the inference door. Headers become no parameters.
    pub http: HttpOptions,
    /// The path of health checks.
    pub health: PathPattern,
    /// The path of everything else.
    pub predict: PathPattern,
    /// The model of requests that name none.
    pub default_model: String,
    /// Renders the metrics, if the server has some.
    pub metrics: Option<Arc<dyn Fn() -> String + Send + Sync>>,
}

/// A pattern for whole paths.
#[derive(Clone, Debug)]
pub struct PathPattern(Regex);

impl PathPattern {
    /// Paths that a regular expression matches from end to end; a path without special
    /// characters matches itself.
    ///
    /// # Errors
    ///
    /// Why it is no regular expression.
    pub fn new(pattern: &str) -> Result<Self, String> {
        // The expression alone first, so that parentheses can't pair with the added ones.
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
