//! The fields that chat and text completion requests share.

use galatea_infer::InputTensor;

use crate::Failure;
use crate::json::{JsonValue, Object};
use crate::schema::{ErrorList, Schema, check};

/// The maximum number of stop words.
const STOP_WORDS_MAX: usize = 1024;

/// The validated fields of a request.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    values: Object,
}

impl Fields {
    pub(crate) fn check(body: &JsonValue, schema: &Schema) -> Result<Self, Failure> {
        let mut errors = ErrorList::default();
        match check(body, schema, &mut errors) {
            Some(JsonValue::Object(values)) if errors.is_empty() => Ok(Self { values }),
            _ => Err(Failure::Invalid(errors)),
        }
    }

    /// Returns a field that is not `null`.
    pub(crate) fn get(&self, name: &str) -> Option<&JsonValue> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(JsonValue::as_str)
    }

    /// Returns an integer, or the nearest 64-bit integer.
    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        match self.get(name)? {
            JsonValue::BigInt(digits) if digits.starts_with('-') => Some(i64::MIN),
            JsonValue::BigInt(_) => Some(i64::MAX),
            value => value.as_int(),
        }
    }

    /// Returns true if a boolean is present and true.
    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.get(name).and_then(JsonValue::as_bool).unwrap_or(false)
    }

    /// Returns the fields with these names that are not `null`, in this order.
    pub(crate) fn some_of(&self, names: &[&str]) -> Object {
        let mut some = Object::default();
        for name in names {
            if let Some(value) = self.get(name) {
                some.push(name, value.clone());
            }
        }
        some
    }

    /// Returns the stop words.
    pub(crate) fn stop_words(&self) -> Result<Vec<String>, Failure> {
        let words = match self.get("stop") {
            Some(JsonValue::Text(word)) if !word.is_empty() => vec![word.to_string()],
            Some(JsonValue::List(words)) => {
                words.iter().filter_map(JsonValue::as_str).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        if words.len() > STOP_WORDS_MAX {
            return Err(Failure::client(format!(
                "Received {} stop sequences, but at most {STOP_WORDS_MAX} are supported",
                words.len()
            )));
        }
        Ok(words)
    }

    /// Refuses stream options in a request that doesn't stream. As in Triton, `{}` counts as
    /// options.
    pub(crate) fn check_stream_options(&self) -> Result<(), Failure> {
        if self.get("stream_options").is_some() && !self.is_true("stream") {
            return Err(Failure::client("`stream_options` can only be used when `stream` is True"));
        }
        Ok(())
    }

    pub(crate) fn includes_usage(&self) -> bool {
        let options = self.get("stream_options").and_then(JsonValue::as_object);
        let include = options.and_then(|options| options.get("include_usage"));
        include.and_then(JsonValue::as_bool).unwrap_or(false)
    }

    /// Refuses more than one choice.
    pub(crate) fn check_choices(&self) -> Result<(), Failure> {
        match self.int("n") {
            Some(n) if n > 1 => Err(Failure::client(format!(
                "Received n={n}, but only single choice (n=1) is currently supported"
            ))),
            _ => Ok(()),
        }
    }
}

/// The generation that a request of either kind asks a model for.
#[derive(Clone, Debug)]
pub struct Generation {
    /// True if the client reads the text as it is generated.
    pub is_stream: bool,
    /// The maximum number of tokens, or the server's default.
    pub tokens_max: Option<i64>,
    /// The number of most likely tokens whose probabilities the client requests.
    pub likely_tokens: Option<i64>,
    /// The adapter of the model.
    pub adapter: Option<AdapterChoice>,
    /// True if the text includes the prompt; `None` if the client doesn't or can't specify this.
    pub echo: Option<bool>,
    /// The words that end the text.
    pub stop_words: Vec<String>,
    /// The sampling parameters that are set, under OpenAI's names and in the order of Triton's
    /// frontend.
    pub(crate) sampling: Object,
    /// The form that the text must have.
    pub(crate) guide: Option<Guide>,
    /// The part of the request that contains the schema of the text.
    pub(crate) schema_field: &'static str,
}

/// The adapter with which a model generates a text.
#[derive(Clone, Debug)]
pub enum AdapterChoice {
    /// The name, for a model with an input of all parameters.
    Name(String),
    /// The identifier of the adapter's task, for any other model.
    Task {
        /// The identifier.
        id: u64,
        /// The adapter's tensors, for a model that doesn't have them yet.
        tensors: Vec<InputTensor>,
    },
}

/// The form of a text that is JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Guide {
    /// Any object.
    JsonObject,
    /// A value that matches the JSON schema of the response format.
    JsonSchema(String),
    /// The arguments of a tool, which match this JSON schema.
    ToolSchema(String),
}

/// The tool that a client requests by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTool(pub(crate) String);

/// The sampling parameters in the order in which Triton's frontend sends them to vLLM. The order is
/// the same for chat and text completions.
pub(crate) const SAMPLING: [&str; 10] = [
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "min_tokens",
    "n",
    "presence_penalty",
    "seed",
    "stop",
    "temperature",
    "top_p",
];
