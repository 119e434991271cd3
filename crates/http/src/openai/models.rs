//! The endpoints for models.

use galatea_control::{LoadParameters, ModelState};
use galatea_infer::{AccessPass, Code, Status, api};
use galatea_openai::{ModelEntry, model_document, model_list_document, unloaded_document};
use hyper::StatusCode;

use super::endpoint::OpenAi;
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

    pub(super) async fn list(&self, pass: AccessPass<api::ModelRepository>) -> HttpResponse {
        match self.ready_models(pass).await {
            Ok(models) => http_response::json(model_list_document(&models)),
            Err(status) => refused(&status),
        }
    }

    pub(super) async fn describe(
        &self,
        pass: AccessPass<api::ModelRepository>,
        name: &str,
    ) -> HttpResponse {
        match self.ready_models(pass).await {
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
