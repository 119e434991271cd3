//! Explanations of requests, for clients that request them.

use std::sync::Arc;
use std::time::Instant;

use galatea_explain::{DetailLevel, LatencyExplanation, LatencyExplanationText, Milestone};
use galatea_gate::access::ApiCategory;
use hyper::header::HeaderValue;

use super::Api;
use crate::http_response::HttpResponse;
use crate::request_head::RequestHead;

impl Api {
    /// Begins the explanation of a request whose head has arrived, if its client requests one. A
    /// client that may not read statistics learns nothing about other requests.
    pub(crate) fn explanation(&self, head: &RequestHead<'_>) -> Option<Arc<LatencyExplanation>> {
        let writer = self.explanations.filter(|_| head.wants_explanation)?;
        let detail = match self.admit(ApiCategory::Statistics, head) {
            Ok(_) => DetailLevel::Schedule,
            Err(_) => DetailLevel::Own,
        };
        Some(LatencyExplanation::begin(detail, Instant::now(), writer))
    }
}

/// Notes that the request passed a milestone, if the request is explained.
pub(crate) fn mark(explanation: Option<&Arc<LatencyExplanation>>, mark: Milestone) {
    if let Some(explanation) = explanation {
        explanation.set_milestone(mark, Instant::now());
    }
}

/// Adds the request's explanation, if any, to its response.
pub(crate) fn explain(response: &mut HttpResponse, explanation: Option<&Arc<LatencyExplanation>>) {
    let Some(LatencyExplanationText { json, server_timing }) =
        explanation.and_then(|one| one.text())
    else {
        return;
    };
    let added =
        [(LatencyExplanation::HEADER, json), (LatencyExplanation::SERVER_TIMING, server_timing)];
    let added = added
        .into_iter()
        .filter_map(|(name, text)| Some((name, HeaderValue::try_from(text).ok()?)));
    let headers = response.headers.take();
    response.headers = Some(headers.into_iter().flatten().chain(added).collect());
}
