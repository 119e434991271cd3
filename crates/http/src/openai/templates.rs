//! The chat templates: the server's, and those of models that have their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_openai::{ChatTemplate, Failure, ModelDescription};
use galatea_stdx::Lock;

/// The chat templates.
pub(super) struct ChatTemplates {
    /// The template for models without their own; `None` if the server has none.
    common: Option<Arc<ChatTemplate>>,
    /// The models' own templates, compiled when they are first needed. There is one for each model
    /// name, so their number is that of the models.
    own: Lock<BTreeMap<String, OwnTemplate>>,
}

/// A compiled template with its source.
struct OwnTemplate {
    source: String,
    template: Arc<ChatTemplate>,
}

impl ChatTemplates {
    pub(super) fn new(common: Option<Arc<ChatTemplate>>) -> Self {
        Self { common, own: Lock::default() }
    }

    /// The template for a model, which exists.
    ///
    /// # Errors
    ///
    /// Code 500 without a template, as in Triton, or if the model's own template can't be parsed.
    pub(super) fn of(
        &self,
        model: &str,
        description: &ModelDescription,
    ) -> Result<Arc<ChatTemplate>, Failure> {
        let Some(source) = description.tokenizer_config() else {
            let unknown = || Failure::Server(String::from("Unknown tokenizer"));
            return self.common.clone().ok_or_else(unknown);
        };
        let known = self
            .own
            .lock("find the template of a model")
            .get(model)
            .and_then(|own| (own.source == source).then(|| own.template.clone()));
        if let Some(template) = known {
            return Ok(template);
        }
        let template = ChatTemplate::new(Some(source), None).map_err(|error| {
            Failure::Server(format!("the chat template of model '{model}' can't be used: {error}"))
        })?;
        let template = Arc::new(template);
        let own = OwnTemplate { source: source.to_owned(), template: template.clone() };
        self.own.lock("keep the template of a model").insert(model.to_owned(), own);
        Ok(template)
    }
}
