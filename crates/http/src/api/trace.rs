//! Request traces and trace settings.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use galatea_codec_http::{decode_trace_change, encode_trace_settings};
use galatea_control::{DoorTracePoint, RequestTraceParts, TraceControl};
use galatea_gate::access::AccessGrant;
use galatea_infer::{AccessPass, Status, api};

use super::Api;
use crate::http_response::{self, HttpResponse};
use crate::request_head::RequestHead;

/// The time at which the request was received, if requests are traced. If requests are not traced,
/// the clock is not read.
pub(crate) struct Arrival {
    tracing: Arc<dyn TraceControl>,
    start: Instant,
}

impl Api {
    /// Notes that the server has begun to receive a request.
    pub(crate) fn arrival(&self) -> Option<Arrival> {
        let tracing = self.tracing.as_ref().filter(|tracing| tracing.is_on())?.clone();
        Some(Arrival { tracing, start: Instant::now() })
    }

    /// Responds with the settings, after changing them if there is a body.
    pub(super) async fn trace_setting(
        &self,
        admission: AccessGrant,
        model: Option<&str>,
        body: Option<Bytes>,
    ) -> Result<HttpResponse, Status> {
        let pass = admission.pass()?;
        let Some(tracing) = self.tracing.clone() else {
            return Err(Status::unavailable("the server does not support tracing"));
        };
        let (model, limits) = (model.map(str::to_owned), self.limits);
        let permit = self.blocking_permits.acquire().await;
        // A model's backend may decide whether the model is ready.
        let settings = self.run_blocking(move |_| {
            let (_permit, model) = (permit, model.as_deref());
            if let Some(model) = model {
                tracing.check_model(pass, model)?;
            }
            if let Some(body) = body {
                tracing.change(pass, model, &decode_trace_change(&body, &limits)?)?;
            }
            Ok(tracing.settings(pass, model))
        });
        Ok(http_response::json(encode_trace_settings(&settings.await?)))
    }
}

impl Arrival {
    /// Notes that the whole request has been received.
    pub(crate) fn received(self) -> Received {
        Received { arrival: self, end: Instant::now() }
    }
}

/// A request that may be traced.
pub(crate) struct Received {
    arrival: Arrival,
    end: Instant,
}

impl Received {
    /// Begins the trace of the request, if it is to be traced.
    pub(crate) fn begin_trace(
        &self,
        pass: AccessPass<api::Inference>,
        head: &RequestHead<'_>,
        model: &str,
    ) -> Option<RequestTraceParts> {
        let trace = self.arrival.tracing.begin(pass, model, head.trace)?;
        trace.door.record(DoorTracePoint::HttpReceiveStart, self.arrival.start);
        trace.door.record(DoorTracePoint::HttpReceiveEnd, self.end);
        Some(trace)
    }
}
