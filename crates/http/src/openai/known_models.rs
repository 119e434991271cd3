//! The descriptions of models and their chat templates, which are derived from the models'
//! configurations once.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use galatea_control::ModelConfigDocument;
use galatea_openai::{ChatTemplate, Failure, ModelDescription, RequestFormat};
use galatea_stdx::Lock;

use super::adapters::KnownAdapters;

/// The models that clients have requested.
pub(super) struct KnownModels {
    /// The convention for all models; `None` for each backend's own.
    format: Option<RequestFormat>,
    /// The template for models without their own; `None` if the server has none.
    common: Option<Arc<ChatTemplate>>,
    /// The models by name. Adding a model removes those that were unloaded, so there are at most as
    /// many as were loaded at one time.
    models: Lock<BTreeMap<String, DerivedModel>>,
}

struct DerivedModel {
    /// The configuration from which the facts were derived. It is freed when the model is unloaded.
    config: Weak<ModelConfigDocument>,
    model: Arc<KnownModel>,
}

/// The facts that are derived from a model's configuration.
pub(super) struct KnownModel {
    pub(super) description: ModelDescription,
    /// The model's own template, compiled when it is first needed, or the reason why it can't be
    /// used.
    template: OnceLock<Result<Arc<ChatTemplate>, String>>,
    pub(super) adapters: Arc<KnownAdapters>,
}

impl KnownModels {
    pub(super) fn new(format: Option<RequestFormat>, common: Option<Arc<ChatTemplate>>) -> Self {
        Self { format, common, models: Lock::default() }
    }

    /// Returns the model with this name and configuration.
    ///
    /// # Errors
    ///
    /// Code 500 if the configuration can't be used.
    pub(super) fn of(
        &self,
        name: &str,
        config: &Arc<ModelConfigDocument>,
    ) -> Result<Arc<KnownModel>, Failure> {
        let models = self.models.lock("find a model");
        let is_current = |entry: &&DerivedModel| entry.config.as_ptr() == Arc::as_ptr(config);
        let known = models.get(name).filter(is_current).map(|entry| entry.model.clone());
        drop(models);
        if let Some(model) = known {
            return Ok(model);
        }
        let description = ModelDescription::new(&config.protobuf, self.format)?;
        let model = KnownModel { description, template: OnceLock::new(), adapters: Arc::default() };
        let model = Arc::new(model);
        let entry = DerivedModel { config: Arc::downgrade(config), model: model.clone() };
        let mut models = self.models.lock("keep a model");
        models.retain(|_, entry| entry.config.strong_count() > 0);
        models.insert(name.to_owned(), entry);
        Ok(model)
    }

    /// Returns the template for a model.
    ///
    /// # Errors
    ///
    /// Code 500 without a template, as in Triton, or if the model's own template can't be parsed.
    pub(super) fn template(
        &self,
        name: &str,
        model: &KnownModel,
    ) -> Result<Arc<ChatTemplate>, Failure> {
        let Some(source) = model.description.tokenizer_config() else {
            let unknown = || Failure::Server(String::from("Unknown tokenizer"));
            return self.common.clone().ok_or_else(unknown);
        };
        let compile = || {
            let template = ChatTemplate::new(Some(source), None);
            template.map(Arc::new).map_err(|error| error.to_string())
        };
        model.template.get_or_init(compile).clone().map_err(|error| {
            Failure::Server(format!("the chat template of model '{name}' can't be used: {error}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use galatea_control::ServerControl;
    use galatea_fakes::FakeServer;
    use galatea_infer::AccessPass;

    use super::*;

    fn config(template: &str) -> Arc<ModelConfigDocument> {
        let (mut server, _) = FakeServer::new();
        let parameter = server.model.parameters.entry(String::from("openai_tokenizer_config"));
        parameter.or_default().string_value = template.to_owned();
        server.model_config(AccessPass::in_process(), "m", None).unwrap()
    }

    #[test]
    fn facts_are_derived_once_per_configuration() {
        let models = KnownModels::new(None, None);
        let first = config(r#"{"chat_template": "a"}"#);
        let model = models.of("m", &first).unwrap();
        let template = models.template("m", &model).unwrap();
        let again = models.of("m", &first).unwrap();
        assert!(Arc::ptr_eq(&model, &again));
        assert!(Arc::ptr_eq(&template, &models.template("m", &again).unwrap()));
        let reloaded = models.of("m", &config(r#"{"chat_template": "a"}"#)).unwrap();
        assert!(!Arc::ptr_eq(&model, &reloaded));
    }

    #[test]
    fn a_template_that_cannot_be_used_is_compiled_once() {
        let models = KnownModels::new(None, None);
        let config = config(r#"{"chat_template": "{% if"}"#);
        let model = models.of("m", &config).unwrap();
        let reason = || models.template("m", &model).err().unwrap().to_string();
        assert!(model.template.get().is_none());
        let text = reason();
        assert!(text.starts_with("the chat template of model 'm' can't be used: "), "{text}");
        assert!(model.template.get().is_some_and(Result::is_err));
        assert_eq!(reason(), text);
    }

    #[test]
    fn unloaded_models_are_removed() {
        let models = KnownModels::new(None, None);
        let (one, two) = (config("{}"), config("{}"));
        models.of("one", &one).unwrap();
        models.of("two", &two).unwrap();
        assert_eq!(models.models.lock("count the models").len(), 2);
        drop((one, two));
        let three = config("{}");
        models.of("three", &three).unwrap();
        let names: Vec<_> = models.models.lock("list the models").keys().cloned().collect();
        assert_eq!(names, ["three"]);
    }
}
