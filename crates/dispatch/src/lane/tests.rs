//! Which batches are executed by the threads that bring them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use galatea_backend::{ExecutionGuarantee, ExecutionPolicy};
use galatea_infer::{InferenceRequest, InputTensor};
use galatea_policy::LaneStatus;
use galatea_stdx::{InlineBudget, IoThread};
use galatea_tensor::{Buffer, DataType, Shape};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::predictor::SHORT_EXECUTION_MAX;
use crate::testing::TestServer;
use crate::testing::sequences::{Scripted, answer, int, step, value, wait_until};
use crate::testing::{LONG, Setup, send};
use crate::{HostPolicies, RateLimit};

fn model(more: &str) -> String {
    format!(
        "name: 'seq' backend: 'fake' max_batch_size: 8 {more}
         input {{ name: 'IN' data_type: TYPE_INT32 dims: [ -1 ] }}
         output {{ name: 'OUT' data_type: TYPE_INT32 dims: [ 1 ] }}"
    )
}

const ONE: &str = "instance_group { kind: KIND_CPU count: 1 }";
const TWO: &str = "instance_group { kind: KIND_CPU count: 2 }";

/// More requests than are needed to know that they are quick.
const MANY: u32 = 128;
/// Fewer.
const FEW: u32 = 16;

/// What a request asks of the instance.
const SHORT_EXECUTION_MAXLY: i32 = 1;
const SLOWLY: i32 = 2;
/// Send another request before it answers.
const WITH_ANOTHER: i32 = 3;

/// A server and who executes.
struct Stage {
    server: Arc<TestServer>,
    ran: Arc<Mutex<Vec<ThreadId>>>,
}

impl Stage {
    fn new(text: &str, guarantee: ExecutionGuarantee) -> Self {
        Self::with(text, guarantee, |setup| setup)
    }

    fn with(
        text: &str,
        guarantee: ExecutionGuarantee,
        change: impl FnOnce(Setup) -> Setup,
    ) -> Self {
        let ran = Arc::<Mutex<Vec<ThreadId>>>::default();
        let later = Arc::<OnceLock<Weak<TestServer>>>::default();
        let (note, known) = (ran.clone(), later.clone());
        let backend = Scripted::new(ExecutionPolicy::Blocking, move |batch| {
            for request in batch {
                note.lock().unwrap().push(std::thread::current().id());
                let task = int(&request, "IN");
                if task == SLOWLY {
                    let start = Instant::now();
                    while start.elapsed() <= SHORT_EXECUTION_MAX {}
                } else if task == WITH_ANOTHER {
                    let server = known.get().unwrap().upgrade().unwrap();
                    let _answer = send(&server, step(0, "", SHORT_EXECUTION_MAXLY));
                }
                answer(request, task);
            }
            Ok(())
        });
        let server = change(Setup::new(text, backend.promising(guarantee))).serve();
        later.set(Arc::downgrade(&server)).unwrap();
        Self { server, ran }
    }

    /// Who executes this request, when all instances are free.
    fn thread_of(&self, request: InferenceRequest) -> ThreadId {
        self.ran.lock().unwrap().clear();
        let task =
            i32::from_le_bytes(*request.inputs[0].data.host().unwrap().first_chunk().unwrap());
        assert_eq!(value(&send(&self.server, request)), task);
        self.wait_until_free();
        self.ran.lock().unwrap()[0]
    }

    fn wait_until_free(&self) {
        wait_until(&self.server, "all are free", |dispatcher| {
            let is_free = |lane: &LaneStatus| matches!(lane, LaneStatus::Free { .. });
            dispatcher.queued() == 0 && dispatcher.report().status.lanes.iter().all(is_free)
        });
    }

    /// Whether this thread executes the request.
    fn is_errand(&self, request: InferenceRequest) -> bool {
        self.thread_of(request) == std::thread::current().id()
    }

    /// Sends quick requests until one is executed on this thread: on a busy machine some
    /// take longer than they should.
    fn warm_up(&self) {
        let deadline = Instant::now() + LONG;
        while !self.is_errand(quick()) {
            assert!(Instant::now() < deadline, "no request is executed on this thread");
        }
    }

    /// None of many quick requests is executed on this thread.
    #[track_caller]
    fn check_never(&self) {
        for _ in 0..MANY {
            assert!(!self.is_errand(quick()));
        }
    }
}

fn quick() -> InferenceRequest {
    step(0, "", SHORT_EXECUTION_MAXLY)
}

/// A quick request of another shape.
fn wider(width: i64) -> InferenceRequest {
    let mut request = quick();
    let numbers = usize::try_from(width).unwrap();
    request.inputs[0] = InputTensor {
        name: String::from("IN"),
        datatype: DataType::Int32,
        shape: Shape::new(&[1, width]).unwrap(),
        data: Buffer::from_vec(SHORT_EXECUTION_MAXLY.to_le_bytes().repeat(numbers)),
    };
    request
}

/// More time for errands than a test takes, also if its thread is kept waiting in the
/// middle of one: that counts too.
const PLENTY: Duration = Duration::from_hours(24);

/// Makes this thread an I/O thread with a full inline budget.
fn io_thread(budget: Duration) -> IoThread {
    let io_thread = IoThread::enter(budget);
    IoThread::refill();
    io_thread
}

/// Leaves one nanosecond of this thread's inline budget of [`PLENTY`].
fn leave_one_nanosecond() {
    IoThread::refill();
    InlineBudget::take().unwrap().charge(PLENTY.saturating_sub(Duration::from_nanos(1)));
}

/// Runs a test on a thread with time for errands.
fn with_time(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _io_thread = io_thread(PLENTY);
            test();
        });
    });
}

#[test]
fn what_was_quick_many_times_is_executed_by_who_brings_it() {
    with_time(|| {
        let stage = Stage::new(&model(ONE), ExecutionGuarantee::Predictable);
        for number in 0..FEW {
            assert!(!stage.is_errand(quick()), "the first ones tell nothing: {number}");
        }
        stage.warm_up();
    });
}

#[test]
fn what_is_slow_or_of_another_shape_is_not() {
    with_time(|| {
        let stage = Stage::new(&model(ONE), ExecutionGuarantee::Predictable);
        stage.warm_up();
        for number in 0..FEW {
            assert!(!stage.is_errand(wider(2)), "{number}");
        }
        stage.warm_up();
        for _ in 0..3 {
            stage.thread_of(step(0, "", SLOWLY));
        }
        for number in 0..FEW / 2 {
            assert!(!stage.is_errand(quick()), "{number}");
        }
        stage.warm_up();
    });
}

#[test]
fn a_thread_without_time_executes_nothing() {
    with_time(|| {
        let stage = Stage::new(&model(ONE), ExecutionGuarantee::Predictable);
        stage.warm_up();
        let here = std::thread::current().id();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| (std::thread::current().id(), stage.thread_of(quick())));
            let (other, ran) = other.join().unwrap();
            assert!(ran != other && ran != here);
        });
        stage.warm_up();
        let busy = InlineBudget::take().unwrap();
        assert!(!stage.is_errand(quick()));
        drop(busy);
        // One takes more time than there is.
        let deadline = Instant::now() + LONG;
        loop {
            stage.warm_up();
            leave_one_nanosecond();
            if stage.is_errand(quick()) {
                assert!(!stage.is_errand(quick()));
                break;
            }
            // The last one of the warm-up was slow.
            IoThread::refill();
            assert!(Instant::now() < deadline, "no request is executed on this thread");
        }
    });
}

#[test]
fn instances_that_do_not_promise_it_are_left_to_their_threads() {
    for guarantee in [ExecutionGuarantee::Unspecified, ExecutionGuarantee::NonBlocking] {
        with_time(|| Stage::new(&model(ONE), guarantee).check_never());
    }
}

#[test]
fn batches_and_permits_are_left_to_the_threads() {
    with_time(|| {
        let batching = model("dynamic_batching { } instance_group { kind: KIND_CPU count: 1 }");
        Stage::new(&batching, ExecutionGuarantee::Predictable).check_never();
        let limit = RateLimit::ExecutionCount(Vec::new());
        let limiter = "rate_limiter { resources { name: 'R' count: 1 } }";
        let limited = model(&ONE.replace('}', &format!("{limiter} }}")));
        Stage::with(&limited, ExecutionGuarantee::Predictable, |setup| setup.rate_limit(limit))
            .check_never();
    });
}

#[test]
fn an_instance_that_is_bound_to_processors_is_left_to_its_thread() {
    with_time(|| {
        let mut policies = HostPolicies::default();
        let allowed = sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).find(|&core| allowed.is_set(core)).unwrap();
        policies.set_cores("cpu", &format!("{core}-{core}")).unwrap();
        let change = |setup: Setup| setup.host_policies(policies);
        Stage::with(&model(ONE), ExecutionGuarantee::Predictable, change).check_never();
    });
}

#[test]
fn an_errand_leads_to_no_other() {
    with_time(|| {
        let stage = Stage::new(&model(TWO), ExecutionGuarantee::Predictable);
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
            let is_errand = ran[0] == here;
            assert!(!is_errand || ran[1] != here, "both ran here");
            is_seen.store(is_errand, Ordering::Relaxed);
        }
    });
}

/// Many threads with time for errands, and some without, on one model.
#[test]
fn every_request_is_answered_whoever_executes_it() {
    let stage = Stage::new(&model(TWO), ExecutionGuarantee::Predictable);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let stage = &stage;
            scope.spawn(move || {
                let _io_thread = (number % 2 == 0).then(|| io_thread(PLENTY));
                for round in 0..500 {
                    let task = if round % 97 == 96 { SLOWLY } else { SHORT_EXECUTION_MAXLY };
                    assert_eq!(value(&send(&stage.server, step(0, "", task))), task);
                }
            });
        }
    });
    stage.wait_until_free();
}
