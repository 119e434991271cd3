//! Loom models of the threads that share a request's trace or cancellation, over all interleavings.

use std::sync::Arc;
use std::time::Instant;

use crate::{
    CancelToken, TensorTracePoint, Trace, TracePoint, TraceSink, TraceSubject, TracedTensor,
};
use galatea_stdx::sync::atomic::{AtomicU32, Ordering};
use galatea_stdx::sync::thread;

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

const SUBJECT: TraceSubject<'_> =
    TraceSubject { model_name: "m", model_version: 1, request_id: "", deadline: None };

#[derive(Debug, Default)]
struct Calls {
    begun: AtomicU32,
    ended: AtomicU32,
}

#[derive(Debug)]
struct CountingSink(Arc<Calls>);

impl TraceSink for CountingSink {
    fn wants_tensors(&self) -> bool {
        false
    }

    fn begin(&self, _subject: &TraceSubject<'_>) {
        assert_eq!(self.0.ended.load(Ordering::SeqCst), 0);
        self.0.begun.fetch_add(1, Ordering::SeqCst);
    }

    fn record(&self, _point: TracePoint, _at: Instant) {}

    fn record_tensor(&self, _point: TensorTracePoint, _tensor: &TracedTensor<'_>) {}

    fn child(&self) -> Option<Box<dyn TraceSink>> {
        None
    }

    fn end(&self) {
        assert_eq!(self.0.begun.load(Ordering::SeqCst), 1);
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_trace_ends_once_with_any_release() {
    model(|| {
        let calls = Arc::new(Calls::default());
        let trace = Trace::new(Box::new(CountingSink(calls.clone())));
        trace.begin(&SUBJECT, Instant::now());
        let others = [(); 2].map(|()| {
            let trace = trace.clone();
            thread::spawn(move || {
                trace.begin(&SUBJECT, Instant::now());
                trace.end();
            })
        });
        drop(trace);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(calls.begun.load(Ordering::SeqCst), 1);
        assert_eq!(calls.ended.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_hook_of_a_cancelled_request_runs_once() {
    model(|| {
        let (token, runs) = (CancelToken::new(), Arc::new(AtomicU32::new(0)));
        let cancelling = [(); 2].map(|()| {
            let token = token.clone();
            thread::spawn(move || token.cancel())
        });
        let counted = runs.clone();
        token.on_cancel(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        cancelling.into_iter().for_each(|other| other.join().unwrap());
        assert!(token.is_cancelled());
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_hook_that_is_cleared_runs_at_most_once() {
    model(|| {
        let (token, runs) = (CancelToken::new(), Arc::new(AtomicU32::new(0)));
        let counted = runs.clone();
        token.on_cancel(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let other = token.clone();
        let cancelling = thread::spawn(move || other.cancel());
        token.clear_hooks();
        cancelling.join().unwrap();
        assert!(token.is_cancelled() && runs.load(Ordering::SeqCst) <= 1);
    });
}
