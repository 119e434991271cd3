//! Requests for scores of documents. Triton's frontend has no such requests.
//!
//! The form is that of Cohere's and Jina's API. With `texts` in place of `documents`, it is that of
//! text-embeddings-inference.

use super::Fields;
use super::chat_schema::{CHAT_MODEL, OPTIONAL_BOOL};
use crate::Failure;
use crate::json::JsonValue;
use crate::schema::{Default, Extra, Field, ObjectForm, Schema};

static DOCUMENT: Schema = Schema::Union(&[
    ("str", Schema::Text),
    (
        "document",
        Schema::ObjectForm(&ObjectForm {
            fields: &[Field::required("text", Schema::Text)],
            extra: Extra::Ignored,
        }),
    ),
]);
static DOCUMENTS: Schema = Schema::List { element: &DOCUMENT, min: Some(1), max: None };
static POSITIVE: Schema = Schema::Int { min: Some(1), max: None };

static RERANK: Schema = Schema::ObjectForm(&ObjectForm {
    fields: &[
        Field::required("model", CHAT_MODEL),
        Field::required("query", Schema::Text),
        Field::required("documents", DOCUMENTS),
        Field::optional("top_n", Schema::Nullable(&POSITIVE), Default::Null),
        Field::optional("return_documents", OPTIONAL_BOOL, Default::Null),
    ],
    extra: Extra::Ignored,
});

static RERANK_TEXTS: Schema = Schema::ObjectForm(&ObjectForm {
    fields: &[
        Field::required("model", CHAT_MODEL),
        Field::required("query", Schema::Text),
        Field::required("texts", DOCUMENTS),
        Field::optional("return_text", OPTIONAL_BOOL, Default::Null),
        Field::optional("raw_scores", OPTIONAL_BOOL, Default::Null),
        Field::optional("truncate", OPTIONAL_BOOL, Default::Null),
    ],
    extra: Extra::Ignored,
});

/// The form of a request and its response.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum RerankForm {
    /// Cohere's and Jina's: an object with `results`.
    Results,
    /// That of text-embeddings-inference: a list.
    List,
}

/// A request for the scores of documents.
#[derive(Clone, Debug)]
pub struct RerankRequest {
    fields: Fields,
    form: RerankForm,
}

impl RerankRequest {
    /// Validates the fields of a body.
    ///
    /// # Errors
    ///
    /// Code 422 for invalid fields.
    pub fn check(body: &JsonValue) -> Result<Self, Failure> {
        let has_texts = body
            .as_object()
            .is_some_and(|body| body.get("texts").is_some() && body.get("documents").is_none());
        let (schema, form) = if has_texts {
            (&RERANK_TEXTS, RerankForm::List)
        } else {
            (&RERANK, RerankForm::Results)
        };
        Ok(Self { fields: Fields::check(body, schema)?, form })
    }

    /// The model that the client specifies.
    #[must_use]
    pub fn model(&self) -> &str {
        self.fields.text("model").unwrap_or_default()
    }

    pub(crate) const fn form(&self) -> RerankForm {
        self.form
    }

    pub(crate) fn query(&self) -> &str {
        self.fields.text("query").unwrap_or_default()
    }

    /// The name of the field that contains the documents.
    pub(crate) const fn documents_field(&self) -> &'static str {
        match self.form {
            RerankForm::Results => "documents",
            RerankForm::List => "texts",
        }
    }

    fn listed(&self) -> &[JsonValue] {
        let documents = self.fields.get(self.documents_field());
        documents.and_then(JsonValue::as_list).unwrap_or_default()
    }

    pub(crate) fn documents_count(&self) -> usize {
        self.listed().len()
    }

    /// The texts of the documents.
    pub(crate) fn documents(&self) -> Vec<&str> {
        self.listed().iter().map(|document| text_of(document).unwrap_or_default()).collect()
    }

    /// The number of results.
    pub(crate) fn results_max(&self) -> usize {
        let count = self.fields.int("top_n").and_then(|count| usize::try_from(count).ok());
        count.unwrap_or(usize::MAX)
    }

    pub(crate) fn returns_documents(&self) -> bool {
        self.fields.is_true("return_documents") || self.fields.is_true("return_text")
    }

    /// Returns a boolean that is passed to the model, if the client sets it.
    pub(crate) fn option(&self, name: &str) -> Option<bool> {
        self.fields.get(name).and_then(JsonValue::as_bool)
    }
}

/// The text of a document, which is a string or an object.
fn text_of(document: &JsonValue) -> Option<&str> {
    document.as_str().or_else(|| document.as_object()?.get("text")?.as_str())
}
