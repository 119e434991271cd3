//! The traffic of a model, reported for as long as the client reads.

use galatea_codec::parse_version;
use galatea_gate::access::AccessGrant;
use hyper::StatusCode;
use hyper::header::HeaderValue;

use super::Api;
use crate::events::Events;
use crate::http_response::{self, HttpResponse};
use crate::request_head::RequestHead;

/// The content type of a body in which each line is JSON.
const LINES: &str = "application/x-ndjson";

/// The header that a request for traffic must have, with any value. A browser sends it only to its
/// own server, so no other site can make a visitor's browser start a recording.
const TRAFFIC_HEADER: &str = "galatea-traffic";

/// Returns true if a path may be a traffic path.
pub(super) fn has(path: &str) -> bool {
    path.ends_with("/traffic")
}

impl Api {
    pub(super) fn traffic(
        &self,
        admission: AccessGrant,
        head: &RequestHead<'_>,
        name: &str,
        version: &str,
    ) -> HttpResponse {
        let Some(recorder) = &self.recorder else {
            return http_response::error(StatusCode::NOT_FOUND, "Not Found");
        };
        if head.header(TRAFFIC_HEADER).is_none() {
            let text = format!("recording traffic demands the header '{TRAFFIC_HEADER}'");
            return http_response::error(StatusCode::BAD_REQUEST, &text);
        }
        let begun = parse_version(version).and_then(|version| {
            let pass = admission.pass()?;
            recorder.begin(pass, name, version)
        });
        match begun {
            Ok(stream) => {
                let mut response = http_response::events(StatusCode::OK, Events::Traffic(stream));
                let no_store = [("Cache-Control", HeaderValue::from_static("no-store"))];
                // A connection that stays open would delay the server's shutdown.
                response.content_type = Some(LINES);
                response.headers = Some(Box::new(no_store));
                http_response::closing(response)
            }
            Err(status) => http_response::failure(&status),
        }
    }
}
