//! The dashboard: its page and its stream of events.
//!
//! The page is the same on every server, so that anybody may have it. What it shows comes with
//! the stream, which belongs to the API `statistics`, and from the endpoints of every client.
//!
//! The stream demands a header that a browser sends to its own server only: no other site can
//! let a visitor's browser begin a recording. Scripts of other sites can't read either, also if
//! their name leads here: both are served under the names of the server alone.

use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::compression::{ContentCoding, accepted_coding};
use galatea_dashboard::{Dashboard, Page};
use galatea_gate::access::ApiCategory;
use galatea_gate::ledger::Account;
use hyper::header::HeaderValue;
use hyper::{Method, StatusCode};

use super::Api;
use crate::events::Events;
use crate::http_response::{self, HttpResponse};
use crate::request_head::RequestHead;

const PATH: &str = "/dashboard";
const EVENTS_PATH: &str = "/dashboard/events";

const HTML: &str = "text/html; charset=utf-8";

/// The header of a request for the stream, with any value.
const WATCH_HEADER: &str = "galatea-dashboard";

/// Returns true if a path may be one of the dashboard.
pub(super) fn has(path: &str) -> bool {
    path.starts_with(PATH)
}

impl Api {
    /// The response to a request for the dashboard; `None` if the path is not one of it.
    pub(super) fn dashboard(
        &self,
        dashboard: &Dashboard,
        head: &RequestHead<'_>,
        account: &Arc<Account>,
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
        account: &Arc<Account>,
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
                // A connection that stays open would hold up the end of the server.
                http_response::closing(response)
            }
            Err(status) => http_response::failure(&status),
        }
    }
}

/// The page, unless the client has it.
fn page(page: &Page, head: &RequestHead<'_>) -> HttpResponse {
    let known = head.header("if-none-match").unwrap_or_default();
    let mut entries = known.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let is_known =
        entries.any(|tag| tag.strip_prefix(b"W/").unwrap_or(tag) == page.tag().as_bytes());
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
        ("Content-Security-Policy", page.policy()),
        ("Etag", page.tag()),
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
