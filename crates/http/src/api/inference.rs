//! The inference endpoint.

use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::compression::CompressedStreamEnd;
use galatea_codec::forward::{HeaderWhitespace, add_header_parameters};
use galatea_codec::parse_version;
use galatea_codec_http::{
    DecodeContext, OutputFormatMap, TargetModel, check_compressed_body_end, decode_infer,
    decode_raw_infer, encode_infer_response,
};
use galatea_control::{DoorTraceSink, RequestShmRegions, RequestTraceParts, ServedModel};
use galatea_explain::{LatencyExplanation, Milestone};
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{
    AccessPass, CancelToken, Deadline, InferenceRequest, ResponseSender, Status, Trace, api,
};
use galatea_stdx::len64;
use tokio::sync::oneshot;

use super::Api;
use super::explain::{explain, mark};
use super::trace::Arrival;
use crate::compression::{BodyCoding, InflatedBody};
use crate::endpoint::Disconnected;
use crate::guard::guarded;
use crate::http_response::{self, HttpResponse};
use crate::long_text::{TextBounds, is_long_request, is_long_response};
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;
use crate::single_response::{CancelOnDrop, InferenceResult, SingleResponse};

/// The model of a request, together with everything known about the request except its body.
struct TracedTarget<'a> {
    target: TargetModel,
    arrival: InferenceArrival<'a>,
}

/// Everything known about a request except its body.
struct InferenceArrival<'a> {
    model: Arc<dyn ServedModel>,
    trace: Option<RequestTraceParts>,
    deadline: Deadline,
    explanation: Option<&'a Arc<LatencyExplanation>>,
}

/// An inference in progress.
struct StartedInference {
    encoding: OutputFormatMap,
    result: oneshot::Receiver<InferenceResult>,
    cancel: CancelOnDrop,
    /// The door's half of the request's trace.
    trace: Option<Arc<dyn DoorTraceSink>>,
}

impl Api {
    /// Responds to an inference request. If the client disconnects first, the future is dropped,
    /// which cancels the request.
    pub(crate) async fn infer<B: RequestBody>(
        &self,
        pass: AccessPass<api::Inference>,
        head: &RequestHead<'_>,
        body: &mut B,
        name: &str,
        version: &str,
    ) -> Result<HttpResponse, Disconnected> {
        let arrival = self.arrival();
        let explanation = self.explanation(head);
        let deadline = head.timeouts.deadline();
        let bytes = match self.read_body(head, body, self.infer_bytes_max(head)).await? {
            Ok(bytes) => bytes,
            Err(refusal) => return Ok(refusal),
        };
        let received = arrival.map(Arrival::received);
        mark(explanation.as_ref(), Milestone::Received);
        let account = body.account();
        // An unknown model is reported before any error in the body.
        let found = match guarded(|| self.target(pass, name, version)) {
            Ok(found) => Ok(found),
            Err(missing) => {
                Box::pin(self.awaited_target(pass, name, version, deadline, missing)).await
            }
        };
        let (target, model) = match found {
            Ok(found) => found,
            Err(status) => return Ok(http_response::plain(http_response::failure(&status))),
        };
        let trace =
            received.and_then(|received| received.begin_trace(pass, head, &target.model_name));
        let explanation = explanation.as_ref();
        let arrival = InferenceArrival { model, trace, deadline, explanation };
        let target = TracedTarget { target, arrival };
        let started = match self.short_json_length(head, bytes.len()) {
            Some(length) => self.start(pass, head, bytes, length, account, target),
            None => Box::pin(self.start_slowly(pass, head, bytes, account, target)).await,
        };
        let mut response = match started {
            Ok(StartedInference { encoding, result, cancel, trace }) => {
                let result = result.await.unwrap_or_else(|_| Err(dropped()));
                cancel.disarm();
                mark(explanation, Milestone::TakenUp);
                let mut response = if self.is_slow_response(head, &result, &encoding) {
                    Box::pin(self.finish_slowly(head, account, encoding, result)).await
                } else {
                    self.finish_inference(account, encoding, result)
                };
                mark(explanation, Milestone::Encoded);
                response.trace = trace;
                response
            }
            Err(refusal) => refusal,
        };
        explain(&mut response, explanation);
        Ok(response)
    }

    /// Returns the JSON length of a body that can be parsed immediately because it isn't compressed
    /// and its JSON is short.
    fn short_json_length(&self, head: &RequestHead<'_>, body_length: usize) -> Option<usize> {
        let is_plain = self.dialect.coding(head) == BodyCoding::Identity;
        let length = is_plain.then(|| self.dialect.json_length(head, body_length).ok()).flatten();
        length.filter(|length| !is_long_request(*length))
    }

    fn start(
        &self,
        pass: AccessPass<api::Inference>,
        head: &RequestHead<'_>,
        bytes: Bytes,
        header_length: usize,
        account: &Arc<MemoryAccount>,
        target: TracedTarget<'_>,
    ) -> Result<StartedInference, HttpResponse> {
        let body = InflatedBody { bytes, end: CompressedStreamEnd::Complete };
        guarded(|| self.start_inference(pass, head, body, header_length, account, target))
            .map_err(not_understood)
    }

    /// Starts the inference of a request that may have to be inflated or parsed on another thread.
    async fn start_slowly(
        &self,
        pass: AccessPass<api::Inference>,
        head: &RequestHead<'_>,
        bytes: Bytes,
        account: &Arc<MemoryAccount>,
        target: TracedTarget<'_>,
    ) -> Result<StartedInference, HttpResponse> {
        let inflated = match self.dialect.coding(head) {
            BodyCoding::Identity => Ok(InflatedBody { bytes, end: CompressedStreamEnd::Complete }),
            BodyCoding::Compressed => self.compression.inflate(bytes, &self.limits, account).await,
            BodyCoding::Unknown => return Err(http_response::unsupported_encoding()),
        };
        let measured = inflated.and_then(|body| {
            let header_length = self.dialect.json_length(head, body.bytes.len())?;
            Ok((body, header_length))
        });
        let (body, header_length) =
            measured.map_err(|status| http_response::plain(http_response::failure(&status)))?;
        let started = if is_long_request(header_length) {
            self.start_long_inference(pass, head, body, header_length, account, target).await
        } else {
            guarded(|| self.start_inference(pass, head, body, header_length, account, target))
        };
        started.map_err(not_understood)
    }

    /// Returns true if a response may have to be compressed, or written on another thread.
    fn is_slow_response(
        &self,
        head: &RequestHead<'_>,
        result: &InferenceResult,
        encoding: &OutputFormatMap,
    ) -> bool {
        self.dialect.compresses() && head.accept_encoding.is_some()
            || result.as_ref().is_ok_and(|response| is_long_response(response, encoding))
    }

    fn finish_inference(
        &self,
        account: &Arc<MemoryAccount>,
        encoding: OutputFormatMap,
        result: InferenceResult,
    ) -> HttpResponse {
        let result = match result
            .and_then(|result| guarded(|| encoding.write_shared_memory_outputs(result)))
        {
            Ok(result) => result,
            Err(status) => return http_response::failure(&status),
        };
        match guarded(move || encode_infer_response(&result, &encoding, account)) {
            Ok(encoded) => self.dialect.inference(http_response::inference(encoded)),
            Err(status) => http_response::plain(http_response::failure(&status)),
        }
    }

    async fn finish_slowly(
        &self,
        head: &RequestHead<'_>,
        account: &Arc<MemoryAccount>,
        encoding: OutputFormatMap,
        result: InferenceResult,
    ) -> HttpResponse {
        let result = match result
            .and_then(|result| guarded(|| encoding.write_shared_memory_outputs(result)))
        {
            Ok(result) => result,
            Err(status) => return http_response::failure(&status),
        };
        let encoded = if is_long_response(&result, &encoding) {
            self.text_threads.encode(result, encoding, account).await
        } else {
            guarded(move || encode_infer_response(&result, &encoding, account))
        };
        let response = match encoded.map(http_response::inference) {
            Ok(response) if self.dialect.compresses() => {
                self.compression.deflate(head, response, account).await
            }
            encoded => encoded.map(|response| self.dialect.inference(response)),
        };
        let plain = |status| http_response::plain(http_response::failure(&status));
        response.unwrap_or_else(plain)
    }

    /// Finds the model of a request, which must send a single response per request.
    fn target(
        &self,
        pass: AccessPass<api::Inference>,
        name: &str,
        version: &str,
    ) -> Result<(TargetModel, Arc<dyn ServedModel>), Status> {
        let target =
            TargetModel { model_name: name.to_owned(), model_version: parse_version(version)? };
        let model = self.control.model_for_inference(pass, name, target.model_version)?;
        check_single_response(&*model)?;
        Ok((target, model))
    }

    /// Waits for the model of a request that was not found, if it is loaded on demand.
    async fn awaited_target(
        &self,
        pass: AccessPass<api::Inference>,
        name: &str,
        version: &str,
        deadline: Deadline,
        missing: Status,
    ) -> Result<(TargetModel, Arc<dyn ServedModel>), Status> {
        let version = parse_version(version)?;
        let model = self.wait_for_model(pass, name, version, deadline, missing).await?;
        check_single_response(&*model)?;
        Ok((TargetModel { model_name: name.to_owned(), model_version: version }, model))
    }

    /// Returns the maximum body length of an inference request. As in Triton, binary tensors are
    /// limited only by the ledger, while JSON, raw and inflated bodies have their own limit.
    fn infer_bytes_max(&self, head: &RequestHead<'_>) -> u64 {
        let limit = self.limits.input_bytes_max;
        // The facts that the headers state in addition to the length are known before the body is
        // read.
        let has_tensors = self.dialect.coding(head) == BodyCoding::Identity
            && self.dialect.tells_json_length(head)
            && self
                .dialect
                .json_length(head, usize::MAX)
                .is_ok_and(|length| (1..=limit).contains(&len64(length)));
        if has_tensors { u64::MAX } else { limit }
    }

    fn start_inference(
        &self,
        pass: AccessPass<api::Inference>,
        head: &RequestHead<'_>,
        body: InflatedBody,
        header_length: usize,
        account: &Arc<MemoryAccount>,
        target: TracedTarget<'_>,
    ) -> Result<StartedInference, Status> {
        let InflatedBody { bytes: body, end } = body;
        let TracedTarget { target, arrival } = target;
        let is_raw = header_length == 0;
        let regions = RequestShmRegions::new(&*self.regions, pass);
        let bounds = DecodeContext { limits: &self.limits, account, regions };
        let (request, encoding) = if is_raw {
            decode_raw_infer(&body, target, &arrival.model.config(), &bounds)?
        } else {
            decode_infer(&body, header_length, target, &bounds)?
        };
        check_compressed_body_end(end, is_raw)?;
        self.begin_inference(pass, head, request, encoding, arrival)
    }

    /// Parses the request's JSON on another thread.
    async fn start_long_inference(
        &self,
        pass: AccessPass<api::Inference>,
        head: &RequestHead<'_>,
        body: InflatedBody,
        header_length: usize,
        account: &Arc<MemoryAccount>,
        target: TracedTarget<'_>,
    ) -> Result<StartedInference, Status> {
        let InflatedBody { bytes: body, end } = body;
        let TracedTarget { target, arrival } = target;
        let (limits, regions) = (&self.limits, &self.regions);
        let bounds = TextBounds { limits, account, regions, pass };
        let decoding = self.text_threads.decode(body, header_length, target, &bounds);
        let (request, encoding) = decoding.await?;
        check_compressed_body_end(end, false)?;
        guarded(|| self.begin_inference(pass, head, request, encoding, arrival))
    }

    #[inline]
    fn begin_inference(
        &self,
        pass: AccessPass<api::Inference>,
        head: &RequestHead<'_>,
        mut request: Box<InferenceRequest>,
        encoding: OutputFormatMap,
        arrival: InferenceArrival<'_>,
    ) -> Result<StartedInference, Status> {
        let InferenceArrival { model, trace, deadline, explanation } = arrival;
        request.found_model = Some(model);
        if let Some(forwarding) = &self.header_forward {
            let headers = head.headers.iter().map(|header| (header.name, header.value));
            add_header_parameters(
                &mut request.parameters,
                forwarding.parameters_from_headers(headers, HeaderWhitespace::HttpLine)?,
            );
        }
        let token = CancelToken::new();
        request.cancel = token.clone();
        request.deadline = deadline;
        let cancel = CancelOnDrop::new(token);
        let (traced, door_trace) = match trace {
            Some(RequestTraceParts { request, door }) => (Some(request), Some(door)),
            None => (None, None),
        };
        request.trace = match explanation {
            None => traced,
            Some(explanation) => Some(Trace::with_attachment(traced, explanation.clone())),
        };
        let completions = self.completions.current();
        let (sink, result) =
            SingleResponse::new(completions, door_trace.clone(), explanation.cloned());
        self.service.infer(pass, request, ResponseSender::new(Box::new(sink)));
        Ok(StartedInference { encoding, result, cancel, trace: door_trace })
    }
}

/// Checks that a model sends a single response per request.
fn check_single_response(model: &dyn ServedModel) -> Result<(), Status> {
    if !model.is_decoupled() {
        return Ok(());
    }
    Err(Status::unsupported(
        "HTTP end point doesn't support models with decoupled transaction policy",
    ))
}

/// Creates the response to a request that can't be parsed. As in Triton, its trace ends here.
fn not_understood(status: Status) -> HttpResponse {
    http_response::failure(&status)
}

fn dropped() -> Status {
    Status::internal("the request was dropped without a final response")
}
