//! The log settings.

use galatea_codec_http::{decode_log_request, encode_log_settings};
use galatea_control::LogSettingsUpdate;
use galatea_gate::access::AccessGrant;
use hyper::Method;

use super::{Api, or_error};
use crate::endpoint::Disconnected;
use crate::guard::guarded;
use crate::http_response::{self, HttpResponse};
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;

impl Api {
    /// Changes the log settings if the method is POST, and returns the current ones.
    pub(super) async fn logging<B: RequestBody>(
        &self,
        admission: AccessGrant,
        head: &RequestHead<'_>,
        body: &mut B,
    ) -> Result<HttpResponse, Disconnected> {
        let changes = if head.method == Method::POST {
            match self.read_body(head, body, self.limits.input_bytes_max).await? {
                Ok(body) => Some(body),
                Err(refusal) => return Ok(refusal),
            }
        } else {
            None
        };
        Ok(or_error(guarded(|| {
            let update = match changes {
                Some(body) => decode_log_request(&body, &self.limits)?,
                None => LogSettingsUpdate::default(),
            };
            let settings = update.apply(self.log.as_deref(), admission.pass()?)?;
            Ok(http_response::json(encode_log_settings(&settings)))
        })))
    }
}
