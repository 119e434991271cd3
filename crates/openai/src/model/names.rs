//! The names of inputs and outputs.

use super::RequestFormat;

/// The names that requests and responses use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// The input for the prompt.
    pub(crate) prompt: String,
    /// The input that states whether the client streams.
    pub(crate) stream: String,
    /// The input for all sampling parameters as JSON; `None` if each parameter has its own input.
    pub(crate) parameters: Option<String>,
    /// The inputs for single sampling parameters that don't have the parameter's name.
    sampling: Vec<(&'static str, String)>,
    /// The input that excludes the prompt from the text.
    pub(crate) exclude_prompt: Option<String>,
    /// The output that contains the text.
    pub(crate) text: String,
    /// The output with the number of prompt tokens.
    pub(crate) prompt_tokens: String,
    /// The output with the number of tokens in this response.
    pub(crate) completion_tokens: String,
    /// The output with the reason why the text ends.
    pub(crate) finish_reason: Option<String>,
    /// The input for the text to embed.
    pub(crate) embedding_input: Option<String>,
    /// The output that contains an embedding; `None` if the embedding is JSON in the text output.
    pub(crate) embedding_output: Option<String>,
}

/// The sampling parameters with an input each, and the configuration's parameters that name these
/// inputs.
const SAMPLING_INPUTS: [(&str, &str); 7] = [
    ("max_tokens", "openai_max_tokens_input"),
    ("stop_words", "openai_stop_words_input"),
    ("top_p", "openai_top_p_input"),
    ("frequency_penalty", "openai_frequency_penalty_input"),
    ("presence_penalty", "openai_presence_penalty_input"),
    ("seed", "openai_seed_input"),
    ("temperature", "openai_temperature_input"),
];

/// The inputs that make models omit the prompt.
const EXCLUDE_PROMPT: [&str; 2] =
    ["exclude_input_in_output", "sampling_param_exclude_input_from_output"];

impl Names {
    /// Returns a convention's names, with the names from the configuration's parameters in place of
    /// the defaults.
    pub(super) fn new(
        format: RequestFormat,
        is_text_model: bool,
        parameter: impl Fn(&str) -> Option<String>,
        declares: impl Fn(&str) -> bool,
    ) -> Self {
        let is_vllm = format == RequestFormat::Vllm;
        let named = |key: &str, name: &str| parameter(key).unwrap_or_else(|| name.to_owned());
        let conventional = |name: &str| is_vllm.then(|| name.to_owned());
        let of_text_model = |name: &str| is_text_model.then(|| name.to_owned());
        let exclude_prompt = EXCLUDE_PROMPT.into_iter().find(|name| declares(name));
        Self {
            prompt: named("openai_prompt_input", "text_input"),
            stream: named("openai_stream_input", "stream"),
            parameters: parameter("openai_parameters_input")
                .or_else(|| conventional("sampling_parameters")),
            sampling: SAMPLING_INPUTS
                .into_iter()
                .filter_map(|(name, key)| Some((name, parameter(key)?)))
                .collect(),
            exclude_prompt: parameter("openai_exclude_prompt_input")
                .or_else(|| exclude_prompt.map(str::to_owned)),
            text: named("openai_text_output", "text_output"),
            prompt_tokens: named("openai_prompt_tokens_output", "num_input_tokens"),
            completion_tokens: named("openai_completion_tokens_output", "num_output_tokens"),
            finish_reason: parameter("openai_finish_reason_output"),
            embedding_input: parameter("openai_embedding_input")
                .or_else(|| of_text_model("text"))
                .or_else(|| conventional("embedding_request")),
            embedding_output: parameter("openai_embedding_output")
                .or_else(|| of_text_model("embedding")),
        }
    }

    /// The input for a sampling parameter.
    pub(super) fn sampling_input<'n>(&'n self, name: &'n str) -> &'n str {
        let named = self.sampling.iter().find(|(parameter, _)| *parameter == name);
        named.map_or(name, |(_, input)| input)
    }
}
