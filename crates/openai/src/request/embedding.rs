//! Requests for text embeddings.

use super::Fields;
use super::chat_schema::{CHAT_MODEL, OPTIONAL_TEXT};
use crate::Failure;
use crate::json::{JsonValue, Object, push_spaced};
use crate::schema::{Default, Extra, Field, ObjectForm, Schema};

static INTEGER: Schema = Schema::Int { min: None, max: None };
static INPUT: Schema = Schema::Union(&[
    ("str", Schema::Text),
    ("list[int]", Schema::List { element: &INTEGER, min: None, max: None }),
]);

static EMBEDDING: Schema = Schema::ObjectForm(&ObjectForm {
    fields: &[
        Field::required("input", Schema::NotEmpty(&INPUT)),
        Field::required("model", CHAT_MODEL),
        Field::optional("dimensions", Schema::Nullable(&INTEGER), Default::Null),
        Field::optional(
            "encoding_format",
            Schema::Nullable(&Schema::Literal(&["float", "base64"])),
            Default::Text("float"),
        ),
        Field::optional("user", OPTIONAL_TEXT, Default::Null),
    ],
    extra: Extra::Forbidden,
});

/// The refusal of tokens, whose numbers are those of a tokenizer that the model doesn't have.
const NO_TOKENS: &str = "the model takes texts; lists of tokens are not supported";

/// A request for an embedding, or for the embeddings of a list of texts.
#[derive(Clone, Debug)]
pub struct EmbeddingRequest {
    /// The validated fields; if the client sent a list of texts, the first one is the input.
    fields: Fields,
    /// The texts, if the client sent a list for a model that takes lists.
    list: Option<Vec<String>>,
}

impl EmbeddingRequest {
    /// Returns the model in a body whose input is a list. It determines whether [`Self::check`]
    /// accepts a list of texts.
    #[must_use]
    pub fn model_for_list(body: &JsonValue) -> Option<&str> {
        let members = body.as_object()?;
        let first = members.get("input")?.as_list()?.first()?;
        if first.as_str().is_none() && first.as_list().is_none() {
            return None;
        }
        members.get("model")?.as_str()
    }

    /// Validates the fields of a body. Triton's frontend refuses lists of texts; `takes_lists`
    /// accepts them.
    ///
    /// # Errors
    ///
    /// Code 422 for invalid fields, and 400 for lists of tokens if lists of texts are accepted.
    pub fn check(body: &JsonValue, takes_lists: bool) -> Result<Self, Failure> {
        if takes_lists && has_lists(body) {
            return Err(Failure::client(NO_TOKENS));
        }
        match takes_lists.then(|| texts_of(body)).flatten() {
            Some((list, first)) => {
                Ok(Self { fields: Fields::check(&first, &EMBEDDING)?, list: Some(list) })
            }
            None => Ok(Self { fields: Fields::check(body, &EMBEDDING)?, list: None }),
        }
    }

    /// Returns the texts, for a model that accepts several.
    pub(crate) fn texts(&self) -> Result<Vec<&str>, Failure> {
        match &self.list {
            Some(list) => Ok(list.iter().map(String::as_str).collect()),
            None => {
                let text = self.fields.text("input");
                Ok(vec![text.ok_or_else(|| Failure::client(NO_TOKENS))?])
            }
        }
    }

    /// The number of embeddings that the client requests.
    pub(crate) fn count(&self) -> usize {
        self.list.as_ref().map_or(1, Vec::len)
    }

    /// The number of dimensions that the client requests.
    pub(crate) fn dimensions(&self) -> Result<Option<i64>, Failure> {
        match self.fields.int("dimensions") {
            Some(count) if count < 1 => Err(Failure::client("dimensions must be at least 1")),
            count => Ok(count),
        }
    }

    /// The model that the client specifies.
    #[must_use]
    pub fn model(&self) -> &str {
        self.fields.text("model").unwrap_or_default()
    }

    /// True if the numbers are sent as bytes in base64. As in Triton, `null` has the same meaning.
    pub(crate) fn is_base64(&self) -> bool {
        self.fields.text("encoding_format") != Some("float")
    }

    /// Returns the text, for a model whose input is the text itself.
    pub(crate) fn plain_text(&self) -> Result<&str, Failure> {
        if self.fields.get("dimensions").is_some() {
            return Err(Failure::client("dimensions is not supported by this model"));
        }
        let text = self.fields.text("input");
        text.ok_or_else(|| Failure::client("only single string input is supported"))
    }

    /// Returns the request in the form that the vLLM backend reads.
    pub(crate) fn vllm_request(&self) -> String {
        let mut pooling = Object::default();
        if let Some(dimensions) = self.fields.get("dimensions") {
            pooling.push("dimensions", JsonValue::List(vec![dimensions.clone()]));
        }
        let mut request = Object::default();
        request.push("input", self.fields.get("input").cloned().unwrap_or(JsonValue::Null));
        request.push("pooling_params", JsonValue::Object(pooling));
        let mut text = Vec::new();
        push_spaced(&mut text, &JsonValue::Object(request));
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// True if the input is a list of lists.
fn has_lists(body: &JsonValue) -> bool {
    let input = body.as_object().and_then(|members| members.get("input"));
    let first = input.and_then(JsonValue::as_list).and_then(<[JsonValue]>::first);
    first.is_some_and(|first| first.as_list().is_some())
}

/// Returns the texts of a body whose input is a list of texts, and the same body with only the
/// first text.
fn texts_of(body: &JsonValue) -> Option<(Vec<String>, JsonValue)> {
    let members = body.as_object()?;
    let list = members.get("input")?.as_list()?;
    let texts: Vec<String> =
        list.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<_>>()?;
    let first = texts.first()?;
    let mut single = Object::default();
    for (name, value) in members.iter() {
        match name {
            "input" => single.push(name, JsonValue::text(first)),
            _ => single.push(name, value.clone()),
        }
    }
    Some((texts, JsonValue::Object(single)))
}
