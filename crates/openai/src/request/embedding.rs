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

/// A request for an embedding.
#[derive(Clone, Debug)]
pub struct EmbeddingRequest {
    fields: Fields,
}

impl EmbeddingRequest {
    /// Validates the fields of a body.
    ///
    /// # Errors
    ///
    /// Code 422 for invalid fields.
    pub fn check(body: &JsonValue) -> Result<Self, Failure> {
        Ok(Self { fields: Fields::check(body, &EMBEDDING)? })
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
