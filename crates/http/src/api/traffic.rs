//! The traffic of a model, while its client reads.

use galatea_codec::parse_version;
use galatea_gate::access::Admission;
use hyper::StatusCode;
use hyper::header::HeaderValue;

use super::Api;
use crate::events::Events;
use crate::http_response::{self, HttpResponse};
use crate::request_head::RequestHead;

/// The type of a body of lines that are JSON each.
const LINES: &str = "application/x-ndjson";

/// The header of a request for traffic, with any value. A browser sends it to its own server only,
/// so that no other site can let a visitor's browser begin a recording.
const TRAFFIC_HEADER: &str = "galatea-traffic";

/// Returns true if a path may be one of traffic.
pub(super) fn has(path: &str) -> bool {
    path.ends_with("/traffic")
}

impl Api {
    pub(super) fn traffic(
        &self,
        admission: Admission,
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
                // A connection that stays open would hold up the end of the server.
                response.content_type = Some(LINES);
                response.headers = Some(Box::new(no_store));
                http_response::closing(response)
            }
            Err(status) => http_response::failure(&status),
        }
    }
}
