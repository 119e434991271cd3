//! The repository index, loads and unloads.

use bytes::Bytes;
use galatea_codec::documents::encode_repository_index_json;
use galatea_codec_http::{IndexRequest, UnloadRequest, decode_load_request};
use galatea_control::ServerControl;
use galatea_door::BlockingPermits;
use galatea_gate::access::AccessGrant;
use galatea_infer::{AccessPass, Status, api};

use super::Api;
use crate::guard::guarded;
use crate::http_response::{self, HttpResponse};
use crate::route::Route;

impl Api {
    pub(super) async fn repository(
        &self,
        admission: AccessGrant,
        route: Route<'_>,
        body: Bytes,
    ) -> Result<HttpResponse, Status> {
        let pass = admission.pass()?;
        match route {
            // As in Triton, the index of any repository is the index of all repositories.
            Route::RepositoryIndex { .. } => {
                let request = guarded(|| IndexRequest::decode(&body, &self.limits))?;
                self.index(pass, request.only_ready).await
            }
            Route::Load { repository, model } => {
                let parameters = guarded(|| {
                    refuse_repository_name(repository)?;
                    decode_load_request(&body, &self.limits)
                })?;
                self.change_model(&self.repository_permits.loads, model, move |control, model| {
                    control.load_model(pass, model, parameters)
                })
                .await
            }
            Route::Unload { repository, model } => {
                let request = guarded(|| {
                    refuse_repository_name(repository)?;
                    UnloadRequest::decode(&body, &self.limits)
                })?;
                let dependents = request.unload_dependents;
                self.change_model(&self.repository_permits.unloads, model, move |control, model| {
                    control.unload_model(pass, model, dependents)
                })
                .await
            }
            Route::Live
            | Route::Ready
            | Route::ServerMetadata
            | Route::Model { .. }
            | Route::AllStatistics
            | Route::SharedMemory { .. }
            | Route::Logging
            | Route::TraceSetting { .. } => {
                Err(Status::internal("a request was taken for one to the repository"))
            }
        }
    }

    /// Loads or unloads a model on a thread that may block.
    async fn change_model(
        &self,
        permits: &BlockingPermits,
        model: &str,
        change: impl FnOnce(&dyn ServerControl, &str) -> Result<(), Status> + Send + 'static,
    ) -> Result<HttpResponse, Status> {
        let model = model.to_owned();
        let permit = permits.acquire().await;
        self.run_blocking(move |control| {
            let _permit = permit;
            change(control, &model)
        })
        .await?;
        Ok(http_response::done())
    }

    /// Returns the repository index. Reading the repositories may block.
    async fn index(
        &self,
        pass: AccessPass<api::ModelRepository>,
        only_ready: bool,
    ) -> Result<HttpResponse, Status> {
        let permit = self.repository_permits.indexes.acquire().await;
        let index = self
            .run_blocking(move |control| {
                let _permit = permit;
                control.repository_index(pass, only_ready)
            })
            .await?;
        Ok(http_response::json(encode_repository_index_json(&index)))
    }
}

fn refuse_repository_name(repository: Option<&str>) -> Result<(), Status> {
    match repository {
        None => Ok(()),
        Some(_) => Err(Status::unsupported("'repository_name' specification is not supported")),
    }
}
