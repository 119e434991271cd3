//! The readiness of the server and its models.

use galatea_codec::parse_version;
use galatea_control::ServerControl;
use galatea_gate::access::AccessGrant;
use galatea_infer::{AccessPass, Status, api};
use hyper::StatusCode;

use super::Api;
use crate::guard::guarded;
use crate::http_response::{self, HttpResponse};

impl Api {
    pub(super) async fn ready(&self, admission: AccessGrant) -> Result<HttpResponse, Status> {
        self.is_ready(admission.pass()?).await.map(health)
    }

    /// Returns true if the server accepts inference requests.
    pub(crate) async fn is_ready(&self, pass: AccessPass<api::Health>) -> Result<bool, Status> {
        self.check_readiness(pass, None, move |control| control.ready(pass)).await
    }

    pub(super) async fn model_ready(
        &self,
        admission: AccessGrant,
        name: &str,
        version: &str,
    ) -> Result<HttpResponse, Status> {
        let (pass, version) = (admission.pass()?, parse_version(version)?);
        let owned = name.to_owned();
        let is_ready =
            move |control: &dyn ServerControl| control.model_ready(pass, &owned, version);
        if self.check_readiness(pass, Some((name, version)), is_ready).await? {
            return Ok(http_response::bare(StatusCode::OK));
        }
        Err(Status::invalid_argument("Model version not ready"))
    }

    /// Checks whether the server or a model is ready. The check runs on this thread, unless it
    /// calls a backend, which may block.
    async fn check_readiness(
        &self,
        pass: AccessPass<api::Health>,
        model: Option<(&str, Option<i64>)>,
        is_ready: impl FnOnce(&dyn ServerControl) -> Result<bool, Status> + Send + 'static,
    ) -> Result<bool, Status> {
        if !guarded(|| Ok(self.control.readiness_may_block(pass, model)))? {
            return guarded(|| is_ready(&*self.control));
        }
        let permit = self.blocking_permits.acquire().await;
        self.run_blocking(move |control| {
            let _permit = permit;
            is_ready(control)
        })
        .await
    }
}

/// Creates the response to a health check.
pub(super) fn health(good: bool) -> HttpResponse {
    http_response::bare(if good { StatusCode::OK } else { StatusCode::BAD_REQUEST })
}
