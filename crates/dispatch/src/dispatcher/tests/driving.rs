//! The threads on which a dispatcher executes batches.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::thread::ThreadId;

use galatea_backend::{ExecutionPolicy, Instance, RefusedBatch};
use galatea_infer::{AccessPass, InferenceService, PendingRequest, Reply, ResponseSender};
use galatea_policy::{InstanceStatus, SchedulingMode, SchedulingSpec};

use crate::LogSink;
use crate::dispatcher::{Dispatcher, DispatcherOptions, INLINE_BATCHES_MAX, ReplyOrdering};
use crate::lane::Lane;
use crate::testing::TestServer;
use crate::testing::sequences::{
    DIRECT, ScriptedBackend, TWO_INSTANCES, config, int, reply_with, step, value, wait_until,
    wait_until_empty,
};
use crate::testing::{LONG, ServerSetup, send};
use crate::timer::Timer;

/// An instance that counts the existing instances.
struct Counted(Arc<AtomicUsize>);

impl Instance for Counted {
    fn execute(&mut self, _: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        Ok(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn a_failure_to_start_a_thread_stops_the_others() {
    let count = Arc::new(AtomicUsize::new(0));
    let mut parts = options(&count, ExecutionPolicy::Blocking);
    parts.lanes[1].request_huge_stack();
    let status = Dispatcher::start(parts).unwrap_err();
    assert!(status.message().contains("can't start a thread for b"), "{status}");
    // The first lane's thread has been joined, so its instance is destroyed.
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

#[test]
// row: BAPI-03
fn instances_are_destroyed_with_their_model() {
    for policy in [ExecutionPolicy::Inline, ExecutionPolicy::Blocking] {
        let count = Arc::new(AtomicUsize::new(0));
        let dispatcher = Dispatcher::start(options(&count, policy)).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 3);
        assert!(dispatcher.wait_drained(LONG));
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }
}

/// Options for a dispatcher with three counted instances, named a, b and c.
fn options(count: &Arc<AtomicUsize>, policy: ExecutionPolicy) -> DispatcherOptions {
    let log = LogSink::new(|_, _, _| {});
    let lane = |name: &str| {
        count.fetch_add(1, Ordering::Relaxed);
        Lane::new(String::from(name), Box::new(Counted(count.clone())), policy, log.clone())
    };
    DispatcherOptions {
        scheduling: SchedulingSpec {
            max_batch_size: 0,
            mode: SchedulingMode::Default,
            hold_until_queued: 0,
            hold_until_backlogged: 0,
        },
        lanes: ["a", "b", "c"].map(lane).into_iter().collect(),
        rate_limiter: None,
        sequence_assembler: None,
        padding: None,
        reply_order: ReplyOrdering::Free,
        custom_batching: None,
        model: String::from("m"),
        log: log.clone(),
        timer: Timer::start().unwrap(),
    }
}

const INLINE: &str = "
    name: \"seq\" backend: \"fake\" max_batch_size: 1
    instance_group { kind: KIND_CPU count: 1 }
    input { name: \"IN\" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: \"OUT\" data_type: TYPE_INT32 dims: [ 1 ] }";

/// The server, set later, for a backend that sends requests itself.
type Later = Arc<OnceLock<Weak<TestServer>>>;

fn send_to(server: &Later, number: i32, answers: &mpsc::Sender<i32>) {
    let server = server.get().unwrap().upgrade().unwrap();
    let answers = answers.clone();
    let sender = ResponseSender::new(Box::new(move |_: Reply| {
        let _ = answers.send(number);
    }));
    server.infer(AccessPass::in_process(), Box::new(step(0, "", number)), sender);
}

#[test]
fn a_thread_executes_a_limited_number_of_batches_of_others() {
    const COUNT: i32 = 1000;
    let later = Later::default();
    let (answers, inbox) = mpsc::channel();
    let threads: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
    let (server, told, ran) = (later.clone(), answers.clone(), threads.clone());
    // Each request sends another one during its execution, so the queue is never empty, as if other
    // clients kept filling it.
    let backend = ScriptedBackend::new(ExecutionPolicy::Inline, move |batch| {
        for request in batch {
            ran.lock().unwrap().push(std::thread::current().id());
            let number = int(&request, "IN");
            if number < COUNT {
                send_to(&server, number + 1, &told);
            }
            reply_with(request, number);
        }
        Ok(())
    });
    let server = ServerSetup::new(INLINE, backend).serve();
    later.set(Arc::downgrade(&server)).unwrap();
    send_to(&later, 1, &answers);
    let own = threads.lock().unwrap().len();
    for number in 1..=COUNT {
        assert_eq!(inbox.recv_timeout(LONG).unwrap(), number);
    }
    let here = std::thread::current().id();
    let by_this_thread = threads.lock().unwrap().iter().filter(|id| **id == here).count();
    assert!(by_this_thread <= INLINE_BATCHES_MAX, "{by_this_thread} batches ran on this thread");
    assert!(own >= by_this_thread);
    wait_until_empty(&server);
}

#[test]
fn the_next_request_takes_over_parked_batches() {
    let later = Later::default();
    let (answers, inbox) = mpsc::channel();
    let (server, told) = (later.clone(), answers.clone());
    let backend = ScriptedBackend::new(ExecutionPolicy::Inline, move |batch| {
        for request in batch {
            let number = int(&request, "IN");
            if number > 0 {
                send_to(&server, number - 1, &told);
            }
            reply_with(request, number);
        }
        Ok(())
    });
    let server = ServerSetup::new(INLINE, backend).without_timer().serve();
    later.set(Arc::downgrade(&server)).unwrap();
    let rounds = i32::try_from(INLINE_BATCHES_MAX).unwrap();
    send_to(&later, rounds + 9, &answers);
    let first: Vec<i32> = inbox.try_iter().collect();
    assert_eq!(first.len(), INLINE_BATCHES_MAX);
    assert_eq!(first.last(), Some(&10));
    send_to(&later, 0, &answers);
    let mut second: Vec<i32> = inbox.try_iter().collect();
    second.sort_unstable();
    assert_eq!(second, [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

/// Covers a late release that makes a batch possible while the only executing thread is busy with
/// another instance.
#[test]
fn a_thread_takes_over_batches_that_became_possible_while_it_executed() {
    let (kept, others) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let (blocked, is_blocked) = mpsc::channel();
    let (unblock, unblocked) = mpsc::channel::<()>();
    let unblocked = Mutex::new(unblocked);
    let (keep, ran) = (kept.clone(), others.clone());
    let backend = ScriptedBackend::new(ExecutionPolicy::Inline, move |batch| {
        for request in batch {
            match int(&request, "IN") {
                1 => keep.lock().unwrap().push(request),
                2 => {
                    blocked.send(()).unwrap();
                    let _ = unblocked.lock().unwrap().recv_timeout(LONG);
                    reply_with(request, 2);
                }
                number => {
                    ran.fetch_add(1, Ordering::Relaxed);
                    reply_with(request, number);
                }
            }
        }
        Ok(())
    });
    let server = ServerSetup::new(config(1, DIRECT, TWO_INSTANCES), backend).serve();
    let held = send(&server, step(1, "+", 1));
    let waits = send(&server, step(1, ".", 3));
    std::thread::scope(|scope| {
        let server = &server;
        let inside = scope.spawn(move || value(&send(server, step(2, "+.", 2))));
        is_blocked.recv_timeout(LONG).unwrap();
        let first = kept.lock().unwrap().remove(0);
        reply_with(first, 1);
        assert_eq!(value(&held), 1);
        assert_eq!(others.load(Ordering::Relaxed), 0, "the thread that released executed");
        unblock.send(()).unwrap();
        assert_eq!(inside.join().unwrap(), 2);
    });
    assert_eq!(value(&waits), 3);
    wait_until_empty(&server);
}

/// A wake-up that an instance waits for must not be held back until the instance is done, however
/// short its executions were.
#[test]
fn an_instance_may_wait_for_another_one_after_any_number_of_short_batches() {
    const WAITS: i32 = -1;
    const FAILED: i32 = -2;
    let later = Later::default();
    let server = later.clone();
    let backend = ScriptedBackend::new(ExecutionPolicy::Blocking, move |batch| {
        for request in batch {
            let mut number = int(&request, "IN");
            if number == WAITS {
                let (told, inbox) = mpsc::channel();
                send_to(&server, 1, &told);
                number = inbox.recv_timeout(LONG).unwrap_or(FAILED);
            }
            reply_with(request, number);
        }
        Ok(())
    });
    let server = ServerSetup::new(INLINE.replace("count: 1", "count: 2"), backend).serve();
    later.set(Arc::downgrade(&server)).unwrap();
    // This is often enough for the other instance's thread to sleep at least once.
    for _ in 0..32 {
        for number in 0..64 {
            assert_eq!(value(&send(&server, step(0, "", number))), number);
            wait_until(&server, "both are free", |dispatcher| {
                let is_free = |lane: &InstanceStatus| matches!(lane, InstanceStatus::Free { .. });
                dispatcher.lane_states().iter().all(is_free)
            });
        }
        assert_eq!(value(&send(&server, step(0, "", WAITS))), 1);
    }
    wait_until_empty(&server);
}
