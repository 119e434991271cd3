//! Loom models of all interleavings of the threads that hand over a lane: those that bring
//! requests, and the lane's own.
//!
//! The dispatcher, its scheduler and its lanes are the real ones. Time stands still, so predictions
//! are the same in every run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_backend::{BeginResult, ExecutionPolicy, Instance, RefusedBatch, ResumableInstance};
use galatea_infer::{
    AdmissionTimes, ExecutionReadings, ExecutionSummary, ExecutionTimes, FailureReason,
    InferenceRequest, InferenceResponse, PendingRequest, Reply, RequestObserver, ResponseSender,
};
use galatea_policy::{InstanceId, SchedulingMode, SchedulingSpec};
use galatea_stdx::IoThreadGuard;
use galatea_stdx::sync::atomic::{AtomicU32, Ordering};
use galatea_stdx::sync::thread;

use super::{Lane, LaneKind};
use crate::LogSink;
use crate::batch::ClosedBatch;
use crate::dispatcher::{AdmittedRequest, Dispatcher, DispatcherOptions, ReplyOrdering};
use crate::timer::Timer;

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

/// The ID of requests whose executions outlast their first call.
const LEFT: &str = "left";

/// The events counted by the models.
#[derive(Debug, Default)]
struct EventCounts {
    executed: AtomicU32,
    responses: AtomicU32,
    errors: AtomicU32,
    /// The number of invalid calls: calls during an unfinished execution, and calls to finish an
    /// execution that doesn't exist.
    misuses: AtomicU32,
    instances: AtomicU32,
}

impl RequestObserver for EventCounts {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {}

    fn failed(&self, _: &AdmissionTimes, _: FailureReason) {}
}

fn add(count: &AtomicU32) {
    count.fetch_add(1, Ordering::SeqCst);
}

fn of(count: &AtomicU32) -> u32 {
    count.load(Ordering::SeqCst)
}

/// An instance that leaves the execution of [`LEFT`] requests to the lane's thread.
struct LeavingInstance {
    counts: Arc<EventCounts>,
    left: Option<PendingRequest>,
}

impl LeavingInstance {
    fn reply(&self, request: PendingRequest) {
        add(&self.counts.executed);
        let now = Instant::now();
        let response = InferenceResponse {
            model_name: Arc::from("m"),
            model_version: 1,
            id: request.request().id.clone(),
            parameters: Default::default(),
            outputs: Vec::new(),
        };
        let times = ExecutionTimes::from(ExecutionReadings {
            start: now,
            compute_start: now,
            compute_end: now,
            end: now,
        });
        request.complete(Ok(response), &times);
    }

    fn note_misuse(&self, is_misuse: bool) {
        if is_misuse {
            add(&self.counts.misuses);
        }
    }
}

impl Instance for LeavingInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        self.note_misuse(self.left.is_some());
        requests.into_iter().for_each(|request| self.reply(request));
        Ok(())
    }

    fn resumable(&mut self) -> Option<&mut dyn ResumableInstance> {
        Some(self)
    }
}

impl ResumableInstance for LeavingInstance {
    fn begin(
        &mut self,
        requests: Vec<PendingRequest>,
        _: Duration,
    ) -> Result<BeginResult, RefusedBatch> {
        self.note_misuse(self.left.is_some());
        for request in requests {
            if request.request().id == LEFT {
                self.left = Some(request);
                return Ok(BeginResult::InProgress);
            }
            self.reply(request);
        }
        Ok(BeginResult::Ended)
    }

    fn finish(&mut self) -> Result<(), RefusedBatch> {
        self.note_misuse(self.left.is_none());
        if let Some(request) = self.left.take() {
            self.reply(request);
        }
        Ok(())
    }

    fn took(&self) -> Duration {
        Duration::ZERO
    }
}

impl Drop for LeavingInstance {
    fn drop(&mut self) {
        self.counts.instances.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A lane that executes requests inline from the first one on.
fn trusting_lane(name: &str, counts: &Arc<EventCounts>) -> Lane {
    add(&counts.instances);
    let instance = LeavingInstance { counts: counts.clone(), left: None };
    let log = LogSink::new(|_, _, _| {});
    let lane = Lane::new(name.to_owned(), Box::new(instance), ExecutionPolicy::Blocking, log);
    let LaneKind::Threaded { instance, .. } = &lane.kind else { unreachable!("it has a thread") };
    let mut state = instance.lock("learn");
    let predictor = &mut state.predictor;
    let batch = ClosedBatch::Requests(vec![PendingRequest::read_only_copy(content(""), 1)]);
    let profile = predictor.inline_profile(&batch);
    (0..100).for_each(|_| predictor.observe(profile, Duration::ZERO));
    drop(state);
    lane
}

fn content(id: &str) -> InferenceRequest {
    InferenceRequest { id: id.to_owned(), ..InferenceRequest::default() }
}

/// A dispatcher with lanes that execute inline, and its event counts.
#[derive(Clone)]
struct LaneStage {
    dispatcher: Arc<Dispatcher>,
    counts: Arc<EventCounts>,
}

impl LaneStage {
    fn new(lanes: &[&str]) -> Self {
        let counts = Arc::<EventCounts>::default();
        let options = DispatcherOptions {
            scheduling: SchedulingSpec {
                max_batch_size: 0,
                mode: SchedulingMode::Default,
                hold_until_queued: 0,
                hold_until_backlogged: 0,
            },
            lanes: lanes.iter().map(|name| trusting_lane(name, &counts)).collect(),
            rate_limiter: None,
            sequence_assembler: None,
            padding: None,
            reply_order: ReplyOrdering::Free,
            custom_batching: None,
            model: String::from("m"),
            log: LogSink::new(|_, _, _| {}),
            timer: Timer::stopped(),
        };
        Self { dispatcher: Dispatcher::start(options).unwrap(), counts }
    }

    fn send(&self, id: &str) {
        let counts = self.counts.clone();
        let sender = ResponseSender::new(Box::new(move |reply: Reply| match reply {
            Reply::Response { result: Ok(_), .. } => add(&counts.responses),
            Reply::Response { result: Err(_), .. } | Reply::Finished => add(&counts.errors),
        }));
        let now = Instant::now();
        let times = AdmissionTimes { arrival: now, queued: now };
        let observer = self.counts.clone();
        self.dispatcher.enqueue(AdmittedRequest {
            request: PendingRequest::new(content(id), sender, 1, times, observer),
            shape_class: None,
            length: 0,
            reply_number: Default::default(),
        });
    }

    /// A thread that may execute inline and sends a request.
    fn io_thread(&self, id: &'static str) -> thread::JoinHandle<()> {
        let stage = self.clone();
        thread::spawn(move || {
            let _io_thread = IoThreadGuard::enter(Duration::from_hours(24));
            IoThreadGuard::refill_inline_budget();
            stage.send(id);
        })
    }

    /// Drains, waits for the lanes to end, and checks that nothing was lost or done twice.
    fn end(self, responses: u32, errors: u32) {
        let here = thread::current();
        self.dispatcher.drain_and_notify(move || here.unpark());
        while !self.dispatcher.is_drained() {
            thread::park();
        }
        self.dispatcher.join_lanes();
        let counts = &*self.counts;
        assert_eq!(of(&counts.misuses), 0);
        assert_eq!((of(&counts.responses), of(&counts.errors)), (responses, errors));
        assert_eq!(of(&counts.executed), responses);
        assert_eq!(of(&counts.instances), 0);
    }
}

#[test]
fn each_of_two_requests_is_executed_once_by_a_thread_that_has_the_lane() {
    model(|| {
        let stage = LaneStage::new(&["a"]);
        let other = stage.io_thread("");
        stage.send("");
        other.join().unwrap();
        stage.end(2, 0);
    });
}

#[test]
fn an_execution_that_goes_on_keeps_the_lane_until_the_lanes_thread_has_ended_it() {
    model(|| {
        let stage = LaneStage::new(&["a"]);
        let others = [stage.io_thread(LEFT), stage.io_thread("")];
        others.into_iter().for_each(|other| other.join().unwrap());
        stage.end(2, 0);
    });
}

#[test]
fn a_lane_that_leaves_loses_no_batch() {
    model(|| {
        let stage = LaneStage::new(&["a", "b"]);
        let other = stage.io_thread(LEFT);
        // Instances are numbered in the order of their lanes.
        stage.dispatcher.remove_lanes(&[InstanceId(0)]);
        other.join().unwrap();
        stage.end(1, 0);
    });
}
