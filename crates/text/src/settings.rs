//! The settings in a model's configuration.

use std::collections::BTreeMap;

use crate::activation::Activation;
use crate::encoder::Overflow;
use crate::error::TextModelError;
use crate::pooling::PoolingMode;

/// The prefix of the parameters of a configuration that are settings of text models.
const PREFIX: &str = "text_";

/// The default number of tokens in a run, including the padding. Larger runs of a small encoder
/// don't make a processor faster, because their intermediate results no longer fit into its caches.
const RUN_TOKENS: u64 = 1024;

/// A kind of text model.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// The output is an embedding of each text.
    Embedding,
    /// The outputs are scores of each text.
    Classification,
    /// The outputs are scores of each pair of texts, such as a query and a document.
    CrossEncoder,
}

/// The settings of a text model. Settings that are `None` come from the model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextSettings {
    /// The backend that executes the network; `None` for the default.
    pub runtime: Option<String>,
    /// The kind of model.
    pub task: Option<TaskKind>,
    /// The maximum number of tokens of a text, or of a pair of texts.
    pub tokens_max: Option<usize>,
    /// The treatment of longer texts.
    pub overflow: Option<Overflow>,
    /// The pooling modes; empty if the network's output is already an embedding.
    pub pooling: Option<Vec<PoolingMode>>,
    /// True if embeddings are scaled to a length of 1.
    pub normalize: Option<bool>,
    /// The name of the default prompt.
    pub prompt: Option<String>,
    /// The function that converts outputs to scores.
    pub activation: Option<Activation>,
    /// The maximum number of tokens of a run, including the padding.
    pub run_tokens: u64,
}

impl Default for TextSettings {
    fn default() -> Self {
        Self {
            runtime: None,
            task: None,
            tokens_max: None,
            overflow: None,
            pooling: None,
            normalize: None,
            prompt: None,
            activation: None,
            run_tokens: RUN_TOKENS,
        }
    }
}

impl TextSettings {
    /// Returns true if the parameter of a configuration is a setting of text models.
    #[must_use]
    pub fn is_setting(parameter: &str) -> bool {
        parameter.starts_with(PREFIX)
    }

    /// Reads the settings from a configuration's parameters. Ignores parameters without the prefix
    /// `text_`.
    ///
    /// # Errors
    ///
    /// An error that states the parameter, its value and the valid values.
    pub fn parse(parameters: &BTreeMap<String, String>) -> Result<Self, TextModelError> {
        let mut settings = Self::default();
        for (name, value) in parameters.iter().filter(|(name, _)| Self::is_setting(name)) {
            settings.set(name, value).map_err(|expected| {
                let value = value.escape_debug();
                TextModelError::new(
                    format!("parameter '{}'", name.escape_debug()),
                    format!("'{value}' is not {expected}"),
                )
            })?;
        }
        Ok(settings)
    }

    /// Sets one setting, or returns a description of the valid values.
    fn set(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        match name {
            "text_runtime" => self.runtime = Some(value.to_owned()),
            "text_task" => {
                self.task = Some(match value {
                    "embedding" => TaskKind::Embedding,
                    "classification" => TaskKind::Classification,
                    "cross-encoder" => TaskKind::CrossEncoder,
                    _ => return Err("embedding, classification or cross-encoder"),
                });
            }
            "text_max_tokens" => {
                let count = value.parse().ok().filter(|count| *count > 0);
                self.tokens_max = Some(count.ok_or("a number above 0")?);
            }
            "text_truncation" => {
                self.overflow = Some(match value {
                    "right" => Overflow::TruncateRight,
                    "left" => Overflow::TruncateLeft,
                    "none" => Overflow::Refuse,
                    _ => return Err("right, left or none"),
                });
            }
            "text_pooling" => self.pooling = Some(parse_pooling(value)?),
            "text_normalize" => {
                self.normalize = Some(value.parse().map_err(|_| "true or false")?);
            }
            "text_prompt" => self.prompt = Some(value.to_owned()),
            "text_activation" => {
                let activation = Activation::from_name(value);
                self.activation = Some(activation.ok_or("none, sigmoid or softmax")?);
            }
            "text_run_tokens" => {
                let count = value.parse().ok().filter(|count| *count > 0);
                self.run_tokens = count.ok_or("a number above 0")?;
            }
            _ => return Err("a setting of text models, whose parameters start with 'text_'"),
        }
        Ok(())
    }
}

fn parse_pooling(value: &str) -> Result<Vec<PoolingMode>, &'static str> {
    if value == "none" {
        return Ok(Vec::new());
    }
    let modes = value.split(',').map(|name| PoolingMode::from_name(name.trim()));
    modes.collect::<Option<Vec<PoolingMode>>>().ok_or(
        "none, or a list of cls, max, mean, mean_sqrt_len_tokens, weightedmean and lasttoken",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, value: &str) -> Result<TextSettings, String> {
        let parameters = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        TextSettings::parse(&parameters).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_read() {
        let read = |name, value| parse(name, value).unwrap();
        assert_eq!(read("other", "x"), TextSettings::default());
        assert_eq!(read("text_task", "cross-encoder").task, Some(TaskKind::CrossEncoder));
        assert_eq!(read("text_max_tokens", "7").tokens_max, Some(7));
        assert_eq!(read("text_truncation", "none").overflow, Some(Overflow::Refuse));
        assert_eq!(read("text_pooling", "none").pooling, Some(Vec::new()));
        let pooling = read("text_pooling", "cls, mean").pooling;
        assert_eq!(pooling, Some(vec![PoolingMode::Cls, PoolingMode::Mean]));
        assert_eq!(read("text_normalize", "false").normalize, Some(false));
        assert_eq!(read("text_prompt", "query").prompt.as_deref(), Some("query"));
        assert_eq!(read("text_activation", "softmax").activation, Some(Activation::Softmax));
        assert_eq!(read("text_run_tokens", "9").run_tokens, 9);
        assert_eq!(read("text_runtime", "openvino").runtime.as_deref(), Some("openvino"));
    }

    #[test]
    fn errors_state_the_parameter_and_the_valid_values() {
        for (name, value, expected) in [
            ("text_task", "x", "'x' is not embedding, classification or cross-encoder"),
            ("text_max_tokens", "0", "'0' is not a number above 0"),
            ("text_truncation", "both", "'both' is not right, left or none"),
            ("text_normalize", "1", "'1' is not true or false"),
            ("text_activation", "tanh", "'tanh' is not none, sigmoid or softmax"),
            ("text_run_tokens", "-1", "'-1' is not a number above 0"),
            (
                "text_pooling",
                "sum",
                "'sum' is not none, or a list of cls, max, mean, mean_sqrt_len_tokens, \
                 weightedmean and lasttoken",
            ),
            (
                "text_poolin",
                "cls",
                "'cls' is not a setting of text models, whose parameters start with 'text_'",
            ),
        ] {
            let expected = format!("parameter '{name}': {expected}");
            assert_eq!(parse(name, value).unwrap_err(), expected);
        }
    }
}
