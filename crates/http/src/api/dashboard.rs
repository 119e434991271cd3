//! The dashboard: its page and its stream of events.
//!
//! The page is the same on every server, so anyone may load it. Its data comes from the stream,
//! which belongs to the `statistics` API, and from endpoints that are open to every client.
//!
//! The stream requires a header that a browser sends only to its own server, so no other site can
//! make a visitor's browser start a recording. Scripts from other sites can't read the page or the
//! stream even if that site's name resolves to this server, because both are served only under the
//! server's own names.

use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::compression::{ContentCoding, accepted_coding};
use galatea_dashboard::{Dashboard, Page};
use galatea_gate::access::ApiCategory;
use galatea_gate::ledger::MemoryAccount;
use hyper::header::HeaderValue;
use hyper::{Method, StatusCode};

use super::Api;
use crate::events::Events;
use crate::http_response::{self, HttpResponse};
use crate::request_head::RequestHead;

const PATH: &str = "/dashboard";
const EVENTS_PATH: &str = "/dashboard/events";

const HTML: &str = "text/html; charset=utf-8";

/// The header that a request for the stream must have, with any value.
const WATCH_HEADER: &str = "galatea-dashboard";

/// Returns true if `path` may belong to the dashboard.
pub(super) fn has(path: &str) -> bool {
    path.starts_with(PATH)
}

impl Api {
    /// Returns the response to a dashboard request, or `None` if the path doesn't belong to the
    /// dashboard.
    pub(super) fn dashboard(
        &self,
        dashboard: &Dashboard,
        head: &RequestHead<'_>,
        account: &Arc<MemoryAccount>,
    ) -> Option<HttpResponse> {
        let is_page = match head.path {
            PATH | "/dashboard/" => true,
            EVENTS_PATH => false,
            _ => return None,
        };
        if let Err(reason) = dashboard.hosts().check(head.header("host"), head.header("origin")) {
            let refusal = http_response::error(StatusCode::FORBIDDEN, &reason);
            return Some(http_response::closing(refusal));
        }
        Some(if head.method != Method::GET {
            http_response::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
        } else if is_page {
            page(dashboard.page(), head)
        } else {
            self.watch(dashboard, head, account)
        })
    }

    fn watch(
        &self,
        dashboard: &Dashboard,
        head: &RequestHead<'_>,
        account: &Arc<MemoryAccount>,
    ) -> HttpResponse {
        let admission = match self.admit(ApiCategory::Statistics, head) {
            Ok(admission) => admission,
            Err(refusal) => return http_response::restricted(refusal),
        };
        if head.header(WATCH_HEADER).is_none() {
            let text = format!("the stream of the dashboard demands the header '{WATCH_HEADER}'");
            return http_response::error(StatusCode::BAD_REQUEST, &text);
        }
        let pass = match admission.pass() {
            Ok(pass) => pass,
            Err(mistake) => return http_response::failure(&mistake.into()),
        };
        match dashboard.watch(pass, account) {
            Ok(watcher) => {
                let events = Events::Frames(watcher);
                let mut response = http_response::events(StatusCode::OK, events);
                response.headers = headers([("Cache-Control", "no-store")]);
                // A connection that stays open would delay the server's shutdown.
                http_response::closing(response)
            }
            Err(status) => http_response::failure(&status),
        }
    }
}

/// Returns the page, unless the client already has it.
fn page(page: &Page, head: &RequestHead<'_>) -> HttpResponse {
    let known = head.header("if-none-match").unwrap_or_default();
    let mut entries = known.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let is_known =
        entries.any(|tag| tag.strip_prefix(b"W/").unwrap_or(tag) == page.etag().as_bytes());
    let is_gzip = head.accept_encoding.and_then(accepted_coding) == Some(ContentCoding::Gzip);
    let (code, body) = match (is_known, is_gzip) {
        (true, _) => (StatusCode::NOT_MODIFIED, Bytes::new()),
        (false, true) => (StatusCode::OK, page.gzip().clone()),
        (false, false) => (StatusCode::OK, page.html().clone()),
    };
    let mut response = http_response::text(HTML, body);
    response.code = code;
    response.content_encoding = (is_gzip && !is_known).then_some("gzip");
    response.headers = headers([
        ("Cache-Control", "no-cache"),
        ("Content-Security-Policy", page.content_security_policy()),
        ("Etag", page.etag()),
        ("Referrer-Policy", "no-referrer"),
        ("Vary", "Accept-Encoding"),
        ("X-Content-Type-Options", "nosniff"),
    ]);
    http_response::closing(response)
}

fn headers<const N: usize>(
    headers: [(&'static str, &str); N],
) -> Option<Box<[(&'static str, HeaderValue)]>> {
    let value = |text| HeaderValue::from_str(text).ok();
    Some(headers.into_iter().filter_map(|(name, text)| Some((name, value(text)?))).collect())
}
