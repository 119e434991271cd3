//! The parameters of a request.

use galatea_infer::{Parameter, ParameterValue, Status};
use galatea_text::{TextDescription, TextTask, check_size};

/// The options of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestOptions {
    /// The prompt; `None` for the default one.
    pub(crate) prompt: Option<String>,
    /// True if texts with too many tokens are truncated; `None` for the model's setting.
    pub(crate) truncates: Option<bool>,
    /// The number of dimensions to keep.
    pub(crate) dimensions: Option<usize>,
    /// True if embeddings are scaled to a length of 1; `None` for the model's setting.
    pub(crate) normalize: Option<bool>,
    /// True if the network's outputs are the scores.
    pub(crate) raw_scores: bool,
}

impl RequestOptions {
    /// Reads the options. Other parameters are ignored, as every backend does. `width` is the
    /// number of values for each row.
    pub(crate) fn read(
        parameters: &[Parameter],
        description: &TextDescription,
        width: usize,
    ) -> Result<Self, Status> {
        let mut options = Self::default();
        let is_embedding = matches!(description.task, TextTask::Embedding(_));
        for Parameter { name, value } in parameters {
            match &**name {
                "prompt_name" => {
                    let text = description.prompts.find(string(name, value)?);
                    let text = text.map_err(|error| refused(name, error.to_string()))?;
                    options.set_prompt(name, text)?;
                }
                "prompt" => options.set_prompt(name, string(name, value)?)?,
                "truncate" => options.truncates = Some(boolean(name, value)?),
                "dimensions" if is_embedding => {
                    options.dimensions = Some(dimensions(name, value, width)?);
                }
                "normalize" if is_embedding => options.normalize = Some(boolean(name, value)?),
                "raw_scores" if !is_embedding => options.raw_scores = boolean(name, value)?,
                "dimensions" | "normalize" => {
                    return Err(refused(name, String::from("the model has no embeddings")));
                }
                "raw_scores" => return Err(refused(name, String::from("the model has no scores"))),
                _ => {}
            }
        }
        Ok(options)
    }

    fn set_prompt(&mut self, name: &str, text: &str) -> Result<(), Status> {
        if self.prompt.is_some() {
            let problem = "'prompt' and 'prompt_name' exclude each other";
            return Err(refused(name, String::from(problem)));
        }
        check_size(text).map_err(|problem| refused(name, problem))?;
        self.prompt = Some(text.to_owned());
        Ok(())
    }
}

fn dimensions(name: &str, value: &ParameterValue, width: usize) -> Result<usize, Status> {
    let count = match value {
        ParameterValue::Int64(number) => usize::try_from(*number).ok(),
        ParameterValue::Bool(_) | ParameterValue::Double(_) | ParameterValue::String(_) => None,
    };
    let is_valid = |count: &usize| (1..=width).contains(count);
    count
        .filter(is_valid)
        .ok_or_else(|| refused(name, format!("the value must be a number from 1 to {width}")))
}

fn string<'a>(name: &str, value: &'a ParameterValue) -> Result<&'a str, Status> {
    match value {
        ParameterValue::String(text) => Ok(text),
        ParameterValue::Bool(_) | ParameterValue::Double(_) | ParameterValue::Int64(_) => {
            Err(refused(name, String::from("the value must be a string")))
        }
    }
}

fn boolean(name: &str, value: &ParameterValue) -> Result<bool, Status> {
    match value {
        ParameterValue::Bool(value) => Ok(*value),
        ParameterValue::String(_) | ParameterValue::Double(_) | ParameterValue::Int64(_) => {
            Err(refused(name, String::from("the value must be a boolean")))
        }
    }
}

fn refused(name: &str, problem: String) -> Status {
    Status::invalid_argument(format!("parameter '{name}': {problem}"))
}
