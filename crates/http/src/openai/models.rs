//! The endpoints for models.

use galatea_control::{LoadParameters, ModelState, ServerControl};
use galatea_infer::{AccessPass, Code, Status, api};
use galatea_openai::{ModelEntry, model_document, model_list_document, unloaded_document};
use hyper::StatusCode;

use super::endpoint::OpenAi;
use super::options::AdapterSource;
use super::responses::{detail, refused};
use crate::http_response::{self, HttpResponse};

impl OpenAi {
    /// Lists the models that are ready. As in Triton, this includes models for other purposes.
    async fn ready_models(
        &self,
        pass: AccessPass<api::ModelRepository>,
    ) -> Result<Vec<ModelEntry>, Status> {
        let permit = self.api.repository_permits.indexes.acquire().await;
        let index = self
            .api
            .run_blocking(move |control| {
                let _permit = permit;
                control.repository_index(pass, true)
            })
            .await?;
        let ready = index.into_iter().filter(|entry| entry.state == Some(ModelState::Ready));
        let mut names: Vec<String> = ready.map(|entry| entry.name).collect();
        names.dedup();
        Ok(self.times.entries(names, self.now().as_secs()))
    }

    /// Lists the models that are ready, each followed by its adapters.
    async fn models_and_adapters(
        &self,
        pass: AccessPass<api::ModelRepository>,
    ) -> Result<Vec<ModelEntry>, Status> {
        let models = self.ready_models(pass).await?;
        let Some(AdapterSource { separator, read, .. }) = self.options.adapters.clone() else {
            return Ok(models);
        };
        let with_adapters = move |model: ModelEntry| {
            let ModelEntry { id, created_secs } = &model;
            let created_secs = *created_secs;
            let adapter =
                |name: &str| ModelEntry { id: format!("{id}{separator}{name}"), created_secs };
            let adapters: Vec<_> = read(id).names().map(adapter).collect();
            std::iter::once(model).chain(adapters).collect::<Vec<_>>()
        };
        let list =
            move |_: &dyn ServerControl| Ok(models.into_iter().flat_map(with_adapters).collect());
        self.api.run_blocking(list).await
    }

    pub(super) async fn list(&self, pass: AccessPass<api::ModelRepository>) -> HttpResponse {
        match self.models_and_adapters(pass).await {
            Ok(models) => http_response::json(model_list_document(&models)),
            Err(status) => refused(&status),
        }
    }

    pub(super) async fn describe(
        &self,
        pass: AccessPass<api::ModelRepository>,
        name: &str,
    ) -> HttpResponse {
        match self.models_and_adapters(pass).await {
            Ok(models) => match models.iter().find(|model| model.id == name) {
                Some(model) => http_response::json(model_document(model)),
                None => detail(StatusCode::NOT_FOUND, &format!("Unknown model: {name}")),
            },
            Err(status) => refused(&status),
        }
    }

    pub(super) async fn load(
        &self,
        pass: AccessPass<api::ModelRepository>,
        name: &str,
    ) -> HttpResponse {
        if !self.options.has_model_control {
            return no_control();
        }
        match self.ready_models(pass).await {
            Ok(models) if models.iter().any(|model| model.id == name) => {
                let text = format!("Model '{name}' is already loaded");
                return detail(StatusCode::BAD_REQUEST, &text);
            }
            Ok(_) => {}
            Err(status) => return refused(&status),
        }
        let permit = self.api.repository_permits.loads.acquire().await;
        let model = name.to_owned();
        let loaded = self.api.run_blocking(move |control| {
            let _permit = permit;
            control.load_model(pass, &model, LoadParameters::default())
        });
        if let Err(status) = loaded.await {
            return not_changed("load", name, &status);
        }
        match self.ready_models(pass).await {
            Ok(models) => match models.iter().find(|model| model.id == name) {
                Some(model) => http_response::json(model_document(model)),
                None => {
                    let status = Status::internal("it was unloaded again");
                    not_changed("load", name, &status)
                }
            },
            Err(status) => refused(&status),
        }
    }

    pub(super) async fn unload(
        &self,
        pass: AccessPass<api::ModelRepository>,
        name: &str,
    ) -> HttpResponse {
        if !self.options.has_model_control {
            return no_control();
        }
        match self.ready_models(pass).await {
            Ok(models) if models.iter().all(|model| model.id != name) => {
                return detail(StatusCode::BAD_REQUEST, &format!("Unknown model: {name}"));
            }
            Ok(_) => {}
            Err(status) => return refused(&status),
        }
        let permit = self.api.repository_permits.unloads.acquire().await;
        let model = name.to_owned();
        let unloaded = self.api.run_blocking(move |control| {
            let _permit = permit;
            control.unload_model(pass, &model, false)
        });
        match unloaded.await {
            Ok(()) => http_response::json(unloaded_document(name)),
            Err(status) => not_changed("unload", name, &status),
        }
    }
}

fn no_control() -> HttpResponse {
    let text = "Model load/unload requires --model-control-mode=explicit";
    detail(StatusCode::BAD_REQUEST, text)
}

/// Creates the response to a load or unload that failed.
fn not_changed(change: &str, name: &str, status: &Status) -> HttpResponse {
    let code = match status.code() {
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    detail(code, &format!("Failed to {change} model '{name}': {}", status.message()))
}
