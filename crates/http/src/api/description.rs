//! Descriptions of the server and its models: metadata, configurations, statistics.

use galatea_codec::documents::{
    encode_model_metadata_json, encode_server_metadata_json, encode_statistics_json,
};
use galatea_codec::parse_version;
use galatea_gate::access::AccessGrant;
use galatea_infer::Status;

use super::Api;
use super::document::Document;
use super::health::health;
use crate::guard::failed;
use crate::http_response::{self, HttpResponse};
use crate::route::{ModelAction, Route};

impl Api {
    /// Responds to a request that needs no body and doesn't wait.
    pub(super) fn render(
        &self,
        admission: AccessGrant,
        route: &Route<'_>,
    ) -> Result<HttpResponse, Status> {
        match *route {
            Route::Live => Ok(health(self.control.live(admission.pass()?))),
            Route::ServerMetadata => {
                let metadata = self.control.server_metadata(admission.pass()?);
                Ok(http_response::json(encode_server_metadata_json(&metadata)))
            }
            Route::Model { name, version, action } => {
                self.render_model(admission, name, parse_version(version)?, action)
            }
            Route::Ready | Route::AllStatistics | Route::Logging | Route::TraceSetting { .. } => {
                Err(Status::internal("a question was taken for another"))
            }
            Route::RepositoryIndex { .. }
            | Route::Load { .. }
            | Route::Unload { .. }
            | Route::SharedMemory { .. } => {
                Err(Status::internal("a request with a body was taken for another"))
            }
        }
    }

    fn render_model(
        &self,
        admission: AccessGrant,
        name: &str,
        version: Option<i64>,
        action: ModelAction<'_>,
    ) -> Result<HttpResponse, Status> {
        match action {
            ModelAction::Metadata => {
                let metadata = self.control.model_metadata(admission.pass()?, name, version)?;
                Ok(http_response::json(encode_model_metadata_json(&metadata)))
            }
            ModelAction::Config => {
                let config = self.control.model_config(admission.pass()?, name, version)?;
                Ok(http_response::json(config.json.clone()))
            }
            ModelAction::Statistics => {
                let statistics = self.control.statistics(admission.pass()?, Some(name), version)?;
                Ok(http_response::json(encode_statistics_json(&statistics)))
            }
            ModelAction::Ready
            | ModelAction::Traffic
            | ModelAction::Report(_)
            | ModelAction::Infer
            | ModelAction::Generate
            | ModelAction::GenerateStream => {
                Err(Status::internal("a model's request was taken for another"))
            }
        }
    }

    pub(super) async fn report(
        &self,
        admission: AccessGrant,
        name: &str,
        version: &str,
        report: &str,
    ) -> Result<HttpResponse, Status> {
        let (pass, version) = (admission.pass()?, parse_version(version)?);
        let (model, name) = (name.to_owned(), report.to_owned());
        self.render_document(Document::Report { pass, name, model, version }).await
    }

    pub(super) async fn all_statistics(
        &self,
        admission: AccessGrant,
    ) -> Result<HttpResponse, Status> {
        self.render_document(Document::Statistics { pass: admission.pass()? }).await
    }

    async fn render_document(&self, document: Document) -> Result<HttpResponse, Status> {
        let rendered = self.documents.render(document).await;
        rendered.unwrap_or_else(|| Err(failed())).map(http_response::json)
    }
}
