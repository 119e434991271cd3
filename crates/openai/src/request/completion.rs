//! Requests for text completions.

use super::chat_schema::{
    CHOICES, COUNT, LOGIT_BIAS, OPTIONAL_BOOL, OPTIONAL_TEXT, PENALTY, SEED, STOP, STREAM_OPTIONS,
    TEMPERATURE, TEXT_LIST, TOP_P,
};
use super::fields::SAMPLING;
use super::{Capabilities, Fields, Generation};
use crate::Failure;
use crate::json::JsonValue;
use crate::schema::{Default, Extra, Field, ObjectForm, Schema};

static INTEGER: Schema = Schema::Int { min: None, max: None };
static PROMPT_ITEM: Schema = Schema::List { element: &Schema::Any, min: None, max: None };

static COMPLETION: Schema = Schema::ObjectForm(&ObjectForm {
    fields: &[
        Field::required(
            "model",
            Schema::Union(&[
                ("str", Schema::Text),
                (
                    "enum[Model1]",
                    Schema::Choice(&["gpt-3.5-turbo-instruct", "davinci-002", "babbage-002"]),
                ),
            ]),
        ),
        Field::required(
            "prompt",
            Schema::Union(&[
                ("str", Schema::Text),
                ("list[str]", TEXT_LIST),
                ("list[int]", Schema::List { element: &INTEGER, min: None, max: None }),
                ("list[PromptItem]", Schema::List { element: &PROMPT_ITEM, min: None, max: None }),
            ]),
        ),
        Field::optional(
            "best_of",
            Schema::Nullable(&Schema::Int { min: Some(0), max: Some(20) }),
            Default::Int(1),
        ),
        Field::optional("echo", OPTIONAL_BOOL, Default::Bool(false)),
        Field::optional("frequency_penalty", PENALTY, Default::Int(0)),
        Field::optional("ignore_eos", OPTIONAL_BOOL, Default::Bool(false)),
        Field::optional("logit_bias", LOGIT_BIAS, Default::Null),
        Field::optional(
            "logprobs",
            Schema::Nullable(&Schema::Int { min: Some(0), max: Some(5) }),
            Default::Null,
        ),
        Field::optional("max_tokens", COUNT, Default::Null),
        Field::optional("min_tokens", COUNT, Default::Null),
        Field::optional("n", CHOICES, Default::Int(1)),
        Field::optional("presence_penalty", PENALTY, Default::Int(0)),
        Field::optional("seed", SEED, Default::Null),
        Field::optional("stop", STOP, Default::Null),
        Field::optional("stream", OPTIONAL_BOOL, Default::Bool(false)),
        Field::optional("stream_options", STREAM_OPTIONS, Default::Null),
        Field::optional("suffix", OPTIONAL_TEXT, Default::Null),
        Field::optional("temperature", TEMPERATURE, Default::Int(1)),
        Field::optional("top_p", TOP_P, Default::Int(1)),
        Field::optional("user", OPTIONAL_TEXT, Default::Null),
    ],
    extra: Extra::Forbidden,
});

/// A request for a text completion.
#[derive(Clone, Debug)]
pub struct CompletionRequest {
    fields: Fields,
    /// True if the client sent `best_of`, whatever its value.
    has_best_of: bool,
}

impl CompletionRequest {
    /// Validates the fields of a body.
    ///
    /// # Errors
    ///
    /// Code 422 for invalid fields.
    pub fn check(body: &JsonValue) -> Result<Self, Failure> {
        let fields = Fields::check(body, &COMPLETION)?;
        let sent = body.as_object().and_then(|object| object.get("best_of"));
        Ok(Self { fields, has_best_of: sent.is_some() })
    }

    /// The model that the client specifies.
    #[must_use]
    pub fn model(&self) -> &str {
        self.fields.text("model").unwrap_or_default()
    }

    /// The text to complete.
    #[must_use]
    pub fn prompt(&self) -> &str {
        self.fields.text("prompt").unwrap_or_default()
    }

    /// True if the client requests the token counts at the end of a stream.
    #[must_use]
    pub fn includes_usage(&self) -> bool {
        self.fields.includes_usage()
    }

    /// Returns the generation that the model should perform, unless the request is refused.
    ///
    /// # Errors
    ///
    /// Refuses requests in the same cases and the same order as Triton's frontend.
    pub fn generation(&self, capabilities: Capabilities) -> Result<Generation, Failure> {
        let fields = &self.fields;
        if fields.get("suffix").is_some() {
            return Err(Failure::client("suffix is not currently supported"));
        }
        match fields.get("prompt") {
            Some(JsonValue::Text(text)) if !text.is_empty() => {}
            Some(JsonValue::List(items)) if !items.is_empty() => {
                return Err(Failure::client("only single string input is supported"));
            }
            _ => return Err(Failure::client("prompt must be non-empty")),
        }
        if self.has_best_of && capabilities.is_vllm {
            return Err(Failure::client(
                "best_of is no longer supported in vLLM backend, removed from vLLM V1 engine",
            ));
        }
        fields.check_choices()?;
        if let Some(best_of) = fields.int("best_of").filter(|best_of| *best_of > 1) {
            return Err(Failure::client(format!(
                "Received best_of={best_of}, but only single choice (best_of=1) is currently \
                 supported"
            )));
        }
        if fields.get("logit_bias").is_some() {
            return Err(Failure::client("logit bias is not supported"));
        }
        let likely_tokens = fields.int("logprobs").filter(|count| *count > 0);
        if likely_tokens.is_some() && !capabilities.is_vllm {
            return Err(Failure::client(
                "logprobs are currently available only for the vLLM backend",
            ));
        }
        fields.check_stream_options()?;
        Ok(Generation {
            is_stream: fields.is_true("stream"),
            tokens_max: fields.int("max_tokens"),
            likely_tokens,
            adapter: None,
            echo: fields.get("echo").and_then(JsonValue::as_bool),
            stop_words: fields.stop_words()?,
            sampling: fields.some_of(&SAMPLING),
            guide: None,
            schema_field: "",
        })
    }
}
