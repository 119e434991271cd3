//! OpenAI's API on the inference door.

use galatea_gate::ledger::MemoryAccount;

use super::OpenAi;
use crate::api::Api;
use crate::endpoint::{Disconnected, Endpoint};
use crate::http_response::HttpResponse;
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;

/// The endpoint of the inference door, with OpenAI's paths under `/v1`.
pub(crate) struct CombinedEndpoint {
    pub(crate) api: Api,
    pub(crate) openai: OpenAi,
}

fn is_openai(path: &str) -> bool {
    path.starts_with("/v1/")
}

impl Endpoint for CombinedEndpoint {
    async fn respond<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        if is_openai(head.path) {
            return Box::pin(self.openai.respond(head, body)).await;
        }
        self.api.respond(head, body).await
    }

    fn open_account(&self) -> MemoryAccount {
        self.api.open_account()
    }

    async fn drain<B: RequestBody>(&self, body: &mut B) {
        self.api.drain(body).await;
    }

    fn wants_headers(&self) -> bool {
        true
    }

    fn wants_headers_of(&self, path: &str) -> bool {
        is_openai(path) || self.api.wants_headers_of(path)
    }
}
