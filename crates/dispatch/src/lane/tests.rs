//! Tests of inline execution: which batches an I/O thread executes itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use galatea_backend::{ExecutionPolicy, ExecutionPredictability, Instance, RefusedBatch};
use galatea_infer::{InferenceRequest, InputTensor, PendingRequest};
use galatea_policy::{InstanceId, InstanceStatus};
use galatea_stdx::{InlineBudget, IoThreadGuard};
use galatea_tensor::{Buffer, DataType, Shape};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::predictor::SHORT_EXECUTION_MAX;
use super::{AssembledBatch, ExecutionLane, LaneOwner, execute};
use crate::batch::ClosedBatch;
use crate::testing::TestServer;
use crate::testing::sequences::{ScriptedBackend, int, reply_with, step, value, wait_until};
use crate::testing::{LONG, ServerSetup, send};
use crate::{HostPolicies, HostPolicySetting, LogSink, RateLimiterMode};

fn model(more: &str) -> String {
    format!(
        "name: 'seq' backend: 'fake' max_batch_size: 8 {more}
         input {{ name: 'IN' data_type: TYPE_INT32 dims: [ -1 ] }}
         output {{ name: 'OUT' data_type: TYPE_INT32 dims: [ 1 ] }}"
    )
}

const ONE: &str = "instance_group { kind: KIND_CPU count: 1 }";
const TWO: &str = "instance_group { kind: KIND_CPU count: 2 }";

/// More requests than the predictor needs to trust a kind.
const MANY: u32 = 128;
/// Fewer requests than the predictor needs to trust a kind.
const FEW: u32 = 16;

/// A short task. Requests carry the instance's task as their value.
const SHORT_TASK: i32 = 1;
const LONG_TASK: i32 = 2;
/// A task that sends another request before it replies.
const WITH_ANOTHER: i32 = 3;
/// A task whose execution outlasts its first call.
const LEFT_TASK: i32 = 4;

/// A server, and the threads that have executed requests.
struct Stage {
    server: Arc<TestServer>,
    ran: Arc<Mutex<Vec<ThreadId>>>,
}

impl Stage {
    fn new(text: &str, guarantee: ExecutionPredictability) -> Self {
        Self::with(text, guarantee, |setup| setup)
    }

    /// An instance whose thread finishes the executions of [`LEFT_TASK`]s.
    fn resumable() -> Self {
        let backend =
            |scripted: ScriptedBackend| scripted.leaving(|request| int(request, "IN") == LEFT_TASK);
        Self::of(&model(ONE), backend, |setup| setup)
    }

    fn with(
        text: &str,
        guarantee: ExecutionPredictability,
        change: impl FnOnce(ServerSetup) -> ServerSetup,
    ) -> Self {
        Self::of(text, |scripted| scripted.with_guarantee(guarantee), change)
    }

    fn of(
        text: &str,
        backend: impl FnOnce(ScriptedBackend) -> ScriptedBackend,
        change: impl FnOnce(ServerSetup) -> ServerSetup,
    ) -> Self {
        let ran = Arc::<Mutex<Vec<ThreadId>>>::default();
        let later = Arc::<OnceLock<Weak<TestServer>>>::default();
        let (note, known) = (ran.clone(), later.clone());
        let scripted = ScriptedBackend::new(ExecutionPolicy::Blocking, move |batch| {
            for request in batch {
                note.lock().unwrap().push(std::thread::current().id());
                let task = int(&request, "IN");
                if task == LONG_TASK {
                    let start = Instant::now();
                    while start.elapsed() <= SHORT_EXECUTION_MAX {}
                } else if task == WITH_ANOTHER {
                    let server = known.get().unwrap().upgrade().unwrap();
                    let _answer = send(&server, step(0, "", SHORT_TASK));
                }
                reply_with(request, task);
            }
            Ok(())
        });
        let server = change(ServerSetup::new(text, backend(scripted))).serve();
        later.set(Arc::downgrade(&server)).unwrap();
        Self { server, ran }
    }

    /// The thread that executes this request while all instances are idle.
    fn thread_of(&self, request: InferenceRequest) -> ThreadId {
        self.ran.lock().unwrap().clear();
        let task = i32::from_le_bytes(
            *request.inputs[0].data.host_bytes().unwrap().first_chunk().unwrap(),
        );
        assert_eq!(value(&send(&self.server, request)), task);
        self.wait_until_free();
        self.ran.lock().unwrap()[0]
    }

    fn wait_until_free(&self) {
        wait_until(&self.server, "all are free", |dispatcher| {
            let is_free = |lane: &InstanceStatus| matches!(lane, InstanceStatus::Free { .. });
            dispatcher.queued() == 0 && dispatcher.lane_states().iter().all(is_free)
        });
    }

    /// Returns true if this thread executes the request.
    fn is_inline(&self, request: InferenceRequest) -> bool {
        self.thread_of(request) == std::thread::current().id()
    }

    /// Sends short requests until one is executed on this thread. On a busy machine, some requests
    /// take longer than expected.
    fn warm_up(&self) {
        let deadline = Instant::now() + LONG;
        while !self.is_inline(short()) {
            assert!(Instant::now() < deadline, "no request is executed on this thread");
        }
    }

    /// Checks that none of many short requests are executed on this thread.
    #[track_caller]
    fn check_never(&self) {
        for _ in 0..MANY {
            assert!(!self.is_inline(short()));
        }
    }
}

fn short() -> InferenceRequest {
    step(0, "", SHORT_TASK)
}

/// A short request with a different shape.
fn wider(width: i64) -> InferenceRequest {
    let mut request = short();
    let numbers = usize::try_from(width).unwrap();
    request.inputs[0] = InputTensor {
        name: String::from("IN"),
        datatype: DataType::Int32,
        shape: Shape::new(&[1, width]).unwrap(),
        data: Buffer::from_vec(SHORT_TASK.to_le_bytes().repeat(numbers)),
    };
    request
}

/// An inline budget that no test can use up, even if its thread has to wait for the processor
/// during an execution, which also counts against the budget.
const PLENTY: Duration = Duration::from_hours(24);

/// Makes this thread an I/O thread with a full inline budget.
fn io_thread(budget: Duration) -> IoThreadGuard {
    let io_thread = IoThreadGuard::enter(budget);
    IoThreadGuard::refill_inline_budget();
    io_thread
}

/// Uses up this thread's inline budget of [`PLENTY`] except for one nanosecond.
fn leave_one_nanosecond() {
    IoThreadGuard::refill_inline_budget();
    InlineBudget::take().unwrap().charge(PLENTY.saturating_sub(Duration::from_nanos(1)));
}

/// Runs a test on a thread with an inline budget.
fn with_budget(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _io_thread = io_thread(PLENTY);
            test();
        });
    });
}

#[test]
fn a_kind_that_was_short_many_times_is_executed_inline() {
    with_budget(|| {
        let stage = Stage::new(&model(ONE), ExecutionPredictability::Predictable);
        for number in 0..FEW {
            assert!(!stage.is_inline(short()), "the first ones tell nothing: {number}");
        }
        stage.warm_up();
    });
}

#[test]
fn what_an_io_thread_began_is_ended_by_the_lanes_thread() {
    with_budget(|| {
        let stage = Stage::resumable();
        stage.warm_up();
        for number in 0..3 {
            // The execution begins here, as long as its kind is trusted.
            assert!(!stage.is_inline(step(0, "", LEFT_TASK)), "{number}");
        }
        for number in 0..FEW / 4 {
            assert!(!stage.is_inline(short()), "what goes on costs trust: {number}");
        }
        stage.warm_up();
    });
}

#[test]
fn a_client_of_a_request_that_goes_on_is_answered_once() {
    let stage = Stage::resumable();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let stage = &stage;
            scope.spawn(move || {
                let _io_thread = (number % 2 == 0).then(|| io_thread(PLENTY));
                for round in 0..MANY {
                    let task = if (round + number) % 5 == 0 { LEFT_TASK } else { SHORT_TASK };
                    assert_eq!(value(&send(&stage.server, step(0, "", task))), task);
                }
            });
        }
    });
}

#[test]
fn long_and_differently_shaped_requests_are_not_executed_inline() {
    with_budget(|| {
        let stage = Stage::new(&model(ONE), ExecutionPredictability::Predictable);
        stage.warm_up();
        for number in 0..FEW {
            assert!(!stage.is_inline(wider(2)), "{number}");
        }
        stage.warm_up();
        for _ in 0..3 {
            stage.thread_of(step(0, "", LONG_TASK));
        }
        for number in 0..FEW / 2 {
            assert!(!stage.is_inline(short()), "{number}");
        }
        stage.warm_up();
    });
}

#[test]
fn a_thread_without_budget_executes_nothing() {
    with_budget(|| {
        let stage = Stage::new(&model(ONE), ExecutionPredictability::Predictable);
        stage.warm_up();
        let here = std::thread::current().id();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| (std::thread::current().id(), stage.thread_of(short())));
            let (other, ran) = other.join().unwrap();
            assert!(ran != other && ran != here);
        });
        stage.warm_up();
        let busy = InlineBudget::take().unwrap();
        assert!(!stage.is_inline(short()));
        drop(busy);
        // A single execution exceeds the budget.
        let deadline = Instant::now() + LONG;
        loop {
            stage.warm_up();
            leave_one_nanosecond();
            if stage.is_inline(short()) {
                assert!(!stage.is_inline(short()));
                break;
            }
            // The last execution of the warm-up was long.
            IoThreadGuard::refill_inline_budget();
            assert!(Instant::now() < deadline, "no request is executed on this thread");
        }
    });
}

#[test]
fn instances_without_the_guarantee_are_executed_by_their_threads() {
    for guarantee in [ExecutionPredictability::Unspecified, ExecutionPredictability::NonBlocking] {
        with_budget(|| Stage::new(&model(ONE), guarantee).check_never());
    }
}

#[test]
fn batches_and_permits_exclude_inline_execution() {
    with_budget(|| {
        let batching = model("dynamic_batching { } instance_group { kind: KIND_CPU count: 1 }");
        Stage::new(&batching, ExecutionPredictability::Predictable).check_never();
        let limit = RateLimiterMode::ExecutionCount(Vec::new());
        let limiter = "rate_limiter { resources { name: 'R' count: 1 } }";
        let limited = model(&ONE.replace('}', &format!("{limiter} }}")));
        Stage::with(&limited, ExecutionPredictability::Predictable, |setup| {
            setup.rate_limit(limit)
        })
        .check_never();
    });
}

#[test]
fn a_bound_instance_is_executed_by_its_thread() {
    with_budget(|| {
        let mut policies = HostPolicies::default();
        let allowed = sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).find(|&core| allowed.is_set(core)).unwrap();
        policies.set("cpu", HostPolicySetting::CpuCores, &format!("{core}-{core}"));
        let change = |setup: ServerSetup| setup.host_policies(policies);
        Stage::with(&model(ONE), ExecutionPredictability::Predictable, change).check_never();
    });
}

#[test]
fn inline_executions_are_not_nested() {
    with_budget(|| {
        let stage = Stage::new(&model(TWO), ExecutionPredictability::Predictable);
        stage.warm_up();
        let here = std::thread::current().id();
        let is_seen = AtomicBool::new(false);
        let deadline = Instant::now() + LONG;
        while !is_seen.load(Ordering::Relaxed) {
            assert!(Instant::now() < deadline, "the first is never executed here");
            stage.warm_up();
            stage.ran.lock().unwrap().clear();
            assert_eq!(value(&send(&stage.server, step(0, "", WITH_ANOTHER))), WITH_ANOTHER);
            stage.wait_until_free();
            let ran = stage.ran.lock().unwrap().clone();
            let is_inline = ran[0] == here;
            assert!(!is_inline || ran[1] != here, "both ran here");
            is_seen.store(is_inline, Ordering::Relaxed);
        }
    });
}

/// Lets many threads use one model, some with an inline budget and some without.
#[test]
fn every_request_gets_its_reply_on_whatever_thread_it_is_executed() {
    let stage = Stage::new(&model(TWO), ExecutionPredictability::Predictable);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let stage = &stage;
            scope.spawn(move || {
                let _io_thread = (number % 2 == 0).then(|| io_thread(PLENTY));
                for round in 0..500 {
                    let task = if round % 97 == 96 { LONG_TASK } else { SHORT_TASK };
                    assert_eq!(value(&send(&stage.server, step(0, "", task))), task);
                }
            });
        }
    });
    stage.wait_until_free();
}

/// The owner of a lane that lacks the memory to combine several requests into one batch.
struct WithoutMemory;

impl LaneOwner for WithoutMemory {
    fn assemble(&self, batch: ClosedBatch) -> AssembledBatch {
        let ClosedBatch::Requests(requests) = batch else { unreachable!("there are no rows") };
        AssembledBatch::Apart(requests)
    }

    fn lane_free(&self, _: InstanceId) -> Option<ClosedBatch> {
        None
    }
}

/// An instance that panics in its second execution.
struct Panicking(Vec<usize>);

impl Instance for Panicking {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        self.0.push(requests.len());
        assert_ne!(self.0.len(), 2, "the second execution fails");
        Ok(())
    }
}

#[test]
fn requests_that_can_not_be_one_batch_are_executed_one_by_one() {
    let log = LogSink::new(|_, _, _| {});
    let lost = OnceLock::new();
    let run = |instance: &mut Panicking| {
        let request = || PendingRequest::read_only_copy(InferenceRequest::default(), 1);
        let batch = ClosedBatch::Requests(vec![request(), request(), request()]);
        let of = ExecutionLane { lost: &lost, gpu: None, watch: None, name: "m_0_0", log: &log };
        execute(instance, batch, &WithoutMemory, of);
    };
    let mut instance = Panicking(Vec::new());
    run(&mut instance);
    assert_eq!(instance.0, [1, 1, 1]);
    // A lost device executes none of them.
    lost.set(galatea_infer::Status::unavailable("lost")).unwrap();
    run(&mut instance);
    assert_eq!(instance.0.len(), 3);
}
