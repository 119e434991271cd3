//! The explanation of one request, for clients that ask for one.
//!
//! An explanation rides on the request's trace. It follows the trace everywhere, and each request
//! made to serve this one gets a child trace and a child explanation. Requests without an
//! explanation pay nothing.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use galatea_infer::{
    AdmissionTimes, ExecutionSummary, FailureReason, InferenceResponse, RequestObserver, Status,
    Trace, TraceAttachment, TraceSubject,
};
use galatea_stdx::{Lock, len64};

use crate::{DetailLevel, Milestone, RequestFacts, STEPS_MAX, WaitTimes};

/// The maximum nesting depth of explained steps.
const DEPTH_MAX: u32 = 8;

/// The facts about one request, gathered by the threads that process it.
#[derive(Debug)]
pub struct LatencyExplanation {
    /// The zero point of the explanation's times.
    epoch: Instant,
    detail: DetailLevel,
    writer: LatencyExplanationWriter,
    depth: u32,
    gathered: Lock<GatheredFacts>,
}

#[derive(Debug, Default)]
struct GatheredFacts {
    facts: RequestFacts,
    /// The explanations of the requests that this request made.
    steps: Vec<Arc<LatencyExplanation>>,
}

/// An explanation in the formats that clients read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyExplanationText {
    /// A JSON object.
    pub json: String,
    /// The value of the `Server-Timing` header.
    pub server_timing: String,
}

/// Writes a request's explanation from its facts.
pub type LatencyExplanationWriter = fn(&RequestFacts, DetailLevel) -> LatencyExplanationText;

/// The main cause of request latency, in words.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CauseText {
    /// A stable, machine-readable name.
    pub name: &'static str,
    /// A human-readable description.
    pub words: &'static str,
}

/// Finds the main cause of a model's overall request latency, from the queue wait times and the
/// total execution time in nanoseconds.
pub type LatencyCauseFinder = fn(&WaitTimes, u64) -> CauseText;

impl LatencyExplanation {
    /// The header (gRPC: the metadata key) that requests an explanation and also carries it back.
    pub const HEADER: &'static str = "triton-explain";
    /// The parameter of stream responses that carries the explanation.
    pub const PARAMETER: &'static str = "triton_explain";
    /// The header that reports the stages in the format that browsers read.
    pub const SERVER_TIMING: &'static str = "Server-Timing";

    /// Returns true if the header value asks for an explanation. Other values are silently ignored.
    #[must_use]
    pub fn is_asked(value: &[u8]) -> bool {
        value.trim_ascii() == b"1"
    }

    /// Begins the explanation of a request whose head arrived at `at`.
    #[must_use]
    pub fn begin(detail: DetailLevel, at: Instant, writer: LatencyExplanationWriter) -> Arc<Self> {
        Arc::new(Self { epoch: at, detail, writer, depth: 0, gathered: Lock::default() })
    }

    /// The explanation attached to this trace, if the client asked for one.
    #[must_use]
    pub fn from_trace(trace: &Trace) -> Option<Arc<Self>> {
        let companion: Arc<dyn Any + Send + Sync> = trace.attachment()?.clone();
        companion.downcast().ok()
    }

    /// Begins the explanation of another request on the same connection.
    #[must_use]
    pub fn begin_next(&self, at: Instant) -> Arc<Self> {
        Self::begin(self.detail, at, self.writer)
    }

    /// Begins the explanation of a request made by this one; `None` if there are too many steps.
    fn step(&self) -> Option<Arc<Self>> {
        let begin = self.since_begin(Instant::now());
        let mut gathered = self.gathered.lock("add a step");
        if gathered.steps.len() >= STEPS_MAX || self.depth >= DEPTH_MAX {
            gathered.facts.steps_omitted = gathered.facts.steps_omitted.saturating_add(1);
            return None;
        }
        let facts = RequestFacts::starting_at(begin);
        let step = Arc::new(Self {
            epoch: self.epoch,
            detail: self.detail,
            writer: self.writer,
            depth: self.depth.saturating_add(1),
            gathered: Lock::new(GatheredFacts { facts, steps: Vec::new() }),
        });
        gathered.steps.push(step.clone());
        Some(step)
    }

    /// Records that the request reached a milestone.
    pub fn set_milestone(&self, mark: Milestone, at: Instant) {
        let at = self.since_begin(at);
        self.update(|facts| facts.set_milestone(mark, at));
    }

    /// Updates the facts.
    pub fn update(&self, change: impl FnOnce(&mut RequestFacts)) {
        change(&mut self.gathered.lock("explain a request").facts);
    }

    /// Records that the first response, or an error instead, reached the door.
    pub fn record_delivery(&self, result: &Result<InferenceResponse, Status>, at: Instant) {
        let outputs = result.as_ref().map_or(&[][..], |response| &response.outputs);
        let bytes = outputs.iter().map(|output| len64(output.data.len()));
        let bytes = bytes.fold(0, u64::saturating_add);
        self.update(|facts| facts.output_bytes = bytes);
        self.set_milestone(Milestone::Delivered, at);
    }

    /// The explanation so far, or `None` if no model has received the request yet.
    #[must_use]
    pub fn text(&self) -> Option<LatencyExplanationText> {
        let facts = self.facts();
        (!facts.model.is_empty()).then(|| (self.writer)(&facts, self.detail))
    }

    /// The facts known so far, including the steps.
    fn facts(&self) -> RequestFacts {
        let (mut facts, steps) = {
            let gathered = self.gathered.lock("read an explanation");
            (gathered.facts.clone(), gathered.steps.clone())
        };
        facts.steps = steps.iter().map(|step| step.facts()).collect();
        facts
    }

    fn since_begin(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.epoch).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX)
    }
}

impl TraceAttachment for LatencyExplanation {
    fn begin(&self, subject: &TraceSubject<'_>, at: Instant) {
        self.update(|facts| {
            subject.model_name.clone_into(&mut facts.model);
            facts.version = subject.model_version;
        });
        self.set_milestone(Milestone::Arrived, at);
    }

    fn child(&self) -> Option<Arc<dyn TraceAttachment>> {
        let step = self.step()?;
        Some(step)
    }
}

/// Gathers facts for the explanation before passing them on to the model's statistics.
#[derive(Debug)]
pub struct ExplainingObserver {
    explanation: Arc<LatencyExplanation>,
    inner: Arc<dyn RequestObserver>,
}

impl ExplainingObserver {
    /// Puts an explaining observer in front of the statistics observer.
    #[must_use]
    pub fn wrap(
        explanation: Arc<LatencyExplanation>,
        inner: Arc<dyn RequestObserver>,
    ) -> Arc<dyn RequestObserver> {
        Arc::new(Self { explanation, inner })
    }
}

impl RequestObserver for ExplainingObserver {
    fn succeeded(&self, batch_size: u32, times: &AdmissionTimes, execution: &ExecutionSummary) {
        let inputs = execution.start.checked_add(execution.input);
        let computed = inputs.and_then(|inputs| inputs.checked_add(execution.infer));
        for (mark, at) in [
            (Milestone::InputsReady, inputs),
            (Milestone::Computed, computed),
            (Milestone::Ended, Some(execution.end)),
        ] {
            if let Some(at) = at {
                self.explanation.set_milestone(mark, at);
            }
        }
        self.inner.succeeded(batch_size, times, execution);
    }

    fn failed(&self, times: &AdmissionTimes, reason: FailureReason) {
        self.inner.failed(times, reason);
    }

    fn responding(&self, times: &AdmissionTimes) {
        self.explanation.set_milestone(Milestone::Answered, Instant::now());
        self.inner.responding(times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBJECT: TraceSubject<'_> =
        TraceSubject { model_name: "m", model_version: 3, request_id: "", deadline: None };

    fn begin() -> (Arc<LatencyExplanation>, Instant) {
        let now = Instant::now();
        (LatencyExplanation::begin(DetailLevel::Schedule, now, write), now)
    }

    fn write(facts: &RequestFacts, detail: DetailLevel) -> LatencyExplanationText {
        let json = format!("{} version {}", facts.model, facts.version);
        LatencyExplanationText { json, server_timing: format!("{detail:?}") }
    }

    #[test]
    fn a_request_that_no_model_received_is_not_explained() {
        let (explanation, now) = begin();
        explanation.set_milestone(Milestone::Received, now);
        assert_eq!(explanation.text(), None);
        let trace = Trace::with_attachment(None, explanation.clone());
        trace.begin(&SUBJECT, now);
        let text = explanation.text().unwrap();
        assert_eq!((&*text.json, &*text.server_timing), ("m version 3", "Schedule"));
    }

    #[test]
    fn an_explained_request_is_not_traced() {
        let (explanation, now) = begin();
        let trace = Trace::with_attachment(None, explanation);
        trace.begin(&SUBJECT, now);
        assert!(!trace.is_traced() && trace.backing_object().is_none());
        assert_eq!(trace.identity(), galatea_infer::TraceIdentity::default());
        let child = trace.child().unwrap();
        assert!(!child.is_traced() && LatencyExplanation::from_trace(&child).is_some());
    }

    #[test]
    fn the_steps_of_a_request_are_bounded() {
        let (explanation, now) = begin();
        let trace = Trace::with_attachment(None, explanation.clone());
        trace.begin(&SUBJECT, now);
        let steps: Vec<_> = (0..STEPS_MAX + 3).filter_map(|_| trace.child()).collect();
        steps.iter().for_each(|step| step.begin(&SUBJECT, now));
        let facts = explanation.facts();
        assert_eq!((facts.steps.len(), facts.steps_omitted), (STEPS_MAX, 3));
        // The depth is limited too.
        let mut deepest = steps.into_iter().next().unwrap();
        let mut depth = 1;
        while let Some(step) = deepest.child() {
            (deepest, depth) = (step, depth + 1);
        }
        assert_eq!(depth, DEPTH_MAX);
    }

    #[test]
    fn the_statistics_tell_the_parts_of_an_execution() {
        #[derive(Debug)]
        struct Unobserved;
        impl RequestObserver for Unobserved {
            fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {}
            fn failed(&self, _: &AdmissionTimes, _: FailureReason) {}
        }
        let (explanation, now) = begin();
        let ms = std::time::Duration::from_millis;
        explanation.set_milestone(Milestone::Started, now);
        let observer = ExplainingObserver::wrap(explanation.clone(), Arc::new(Unobserved));
        let summary = ExecutionSummary {
            start: now,
            end: now + ms(60),
            input: ms(10),
            infer: ms(20),
            output: ms(30),
            gpu: None,
        };
        observer.succeeded(1, &AdmissionTimes { arrival: now, queued: now }, &summary);
        let marks = [Milestone::InputsReady, Milestone::Computed, Milestone::Ended];
        let facts = explanation.facts();
        assert_eq!(marks.map(|mark| facts.milestone_time(mark).unwrap() / 1_000_000), [10, 30, 60]);
    }
}
