//! The inference endpoint.

use bytes::Bytes;
use galatea_codec::forward::forward;
use galatea_codec::http::{
    OutputEncoding, Target, decode_infer, decode_raw_infer, encode_infer_response,
    parse_header_length, parse_version,
};
use galatea_infer::{CancelToken, ResponseSender, Status};
use tokio::sync::oneshot;

use crate::api::{Api, exiting, guarded};
use crate::body::RequestBody;
use crate::door::Closed;
use crate::head::Head;
use crate::reply::{CancelOnDrop, Outcome, SingleResponse};
use crate::respond::{self, Reply};

/// An inference on its way.
struct Started {
    encoding: OutputEncoding,
    outcome: oneshot::Receiver<Outcome>,
    cancel: CancelOnDrop,
}

impl Api {
    /// Answers an inference request. If the client goes away before the
    /// answer, the future is dropped and the request cancelled with it.
    pub(crate) async fn infer<B: RequestBody>(
        &self,
        head: &Head<'_>,
        body: &mut B,
        name: &str,
        version: &str,
    ) -> Result<Reply, Closed> {
        if self.is_stopping() {
            return Ok(respond::failure(&exiting()));
        }
        if head.is_compressed() {
            return Ok(respond::unsupported_encoding());
        }
        let body = match self.read_body(head, body).await? {
            Ok(body) => body,
            Err(refusal) => return Ok(refusal),
        };
        let started = match guarded(|| self.begin(head, body, name, version)) {
            Ok(started) => started,
            Err(status) => return Ok(respond::failure(&status)),
        };
        let Started { encoding, outcome, cancel } = started;
        let outcome = outcome.await.unwrap_or_else(|_| {
            Err(Status::internal("the request was dropped without a final response"))
        });
        cancel.disarm();
        let encoded = guarded(|| encode_infer_response(&outcome?, &encoding));
        Ok(encoded.map_or_else(|status| respond::failure(&status), respond::inference))
    }

    fn begin(
        &self,
        head: &Head<'_>,
        body: Bytes,
        name: &str,
        version: &str,
    ) -> Result<Started, Status> {
        let target = Target { model_name: name.to_owned(), model_version: parse_version(version)? };
        // A model that isn't there is said before anything about the body.
        if self.control.is_decoupled(name, target.model_version)? {
            return Err(Status::unsupported(
                "HTTP end point doesn't support models with decoupled transaction policy",
            ));
        }
        let header_length = match head.header_length {
            Some(value) => parse_header_length(value, body.len())?,
            None => body.len(),
        };
        let (mut request, encoding) = if header_length == 0 {
            let config = self.control.model_config(name, target.model_version)?;
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
        let (sink, outcome) = SingleResponse::new(self.mailrooms.here());
        self.service.infer(request, ResponseSender::new(Box::new(sink)));
        Ok(Started { encoding, outcome, cancel })
    }
}
