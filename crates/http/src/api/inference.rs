//! The inference endpoint.

use bytes::Bytes;
use galatea_codec::forward::forward;
use galatea_codec::http::{
    OutputEncoding, TargetModel, decode_infer, decode_raw_infer, encode_infer_response,
    parse_header_length, parse_version,
};
use galatea_infer::{CancelToken, Pass, ResponseSender, Status, api};
use tokio::sync::oneshot;

use super::Api;
use crate::endpoint::Disconnected;
use crate::guard::{exiting, guarded};
use crate::http_response::{self, HttpResponse};
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;
use crate::single_response::{CancelOnDrop, InferenceResult, SingleResponse};

/// An inference in progress.
struct StartedInference {
    encoding: OutputEncoding,
    result: oneshot::Receiver<InferenceResult>,
    cancel: CancelOnDrop,
}

impl Api {
    /// Responds to an inference request. If the client disconnects first, the future is
    /// dropped, which cancels the request.
    pub(crate) async fn infer<B: RequestBody>(
        &self,
        pass: Pass<api::Inference>,
        head: &RequestHead<'_>,
        body: &mut B,
        name: &str,
        version: &str,
    ) -> Result<HttpResponse, Disconnected> {
        if self.is_stopping() {
            return Ok(http_response::failure(&exiting()));
        }
        if head.is_compressed() {
            return Ok(http_response::unsupported_encoding());
        }
        let body = match self.read_body(head, body).await? {
            Ok(body) => body,
            Err(refusal) => return Ok(refusal),
        };
        let started = match guarded(|| self.start_inference(pass, head, body, name, version)) {
            Ok(started) => started,
            Err(status) => return Ok(http_response::failure(&status)),
        };
        let StartedInference { encoding, result, cancel } = started;
        let result = result.await.unwrap_or_else(|_| {
            Err(Status::internal("the request was dropped without a final response"))
        });
        cancel.disarm();
        let encoded = guarded(|| encode_infer_response(&result?, &encoding));
        Ok(encoded.map_or_else(|status| http_response::failure(&status), http_response::inference))
    }

    fn start_inference(
        &self,
        pass: Pass<api::Inference>,
        head: &RequestHead<'_>,
        body: Bytes,
        name: &str,
        version: &str,
    ) -> Result<StartedInference, Status> {
        let target =
            TargetModel { model_name: name.to_owned(), model_version: parse_version(version)? };
        // An unknown model is reported before any error in the body.
        if self.control.is_decoupled(pass, name, target.model_version)? {
            return Err(Status::unsupported(
                "HTTP end point doesn't support models with decoupled transaction policy",
            ));
        }
        let header_length = match head.header_length {
            Some(value) => parse_header_length(value, body.len())?,
            None => body.len(),
        };
        let (mut request, encoding) = if header_length == 0 {
            let config = self.control.config_for_inference(pass, name, target.model_version)?;
            decode_raw_infer(&body, target, &config, &self.limits)?
        } else {
            decode_infer(&body, header_length, target, &self.limits)?
        };
        if let Some(forwarding) = &self.header_forward {
            let headers = head.headers.iter().map(|(name, value)| (name.as_ref(), *value));
            forward(&mut request.parameters, forwarding.parameters(headers)?);
        }
        let token = CancelToken::new();
        request.cancel = token.clone();
        let cancel = CancelOnDrop::new(token);
        let (sink, result) = SingleResponse::new(self.completions.current());
        self.service.infer(pass, request, ResponseSender::new(Box::new(sink)));
        Ok(StartedInference { encoding, result, cancel })
    }
}
