//! Tests of executions that are terminated, and of those that must not be.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, mpsc};

use galatea_backend::ExecutionPolicy;
use galatea_infer::{FailureReason, InferenceRequest, Status};
use galatea_stdx::testing::wait_until;

use super::*;
use crate::testing::sequences::{ScriptedBackend, error, int, reply_with, step, value};
use crate::testing::{LONG, ServerSetup, TestServer, send};

/// A flag that an instance checks during execution.
#[derive(Default)]
struct Flag {
    is_set: AtomicBool,
    terminations: AtomicU32,
}

impl ExecutionTerminator for Flag {
    fn terminate(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        self.terminations.fetch_add(1, Ordering::SeqCst);
    }

    fn reset(&self) {
        self.is_set.store(false, Ordering::SeqCst);
    }
}

/// The value of a request that executes until it is terminated.
const ENDLESS: i32 = 1;
/// The value of a request that executes until the test lets it continue.
const HELD: i32 = 2;

struct Stage {
    server: Arc<TestServer>,
    flag: Arc<Flag>,
    /// Receives the number of requests in each batch that begins.
    begun: mpsc::Receiver<usize>,
    go: mpsc::Sender<()>,
}

fn stage(batching: &str) -> Stage {
    let text = format!(
        "name: 'seq' backend: 'fake' max_batch_size: 2 {batching}
         input {{ name: 'IN' data_type: TYPE_INT32 dims: [ 1 ] }}
         output {{ name: 'OUT' data_type: TYPE_INT32 dims: [ 1 ] }}"
    );
    let flag = Arc::<Flag>::default();
    let ((begin, begun), (go, going)) = (mpsc::channel(), mpsc::channel::<()>());
    let going = Mutex::new(going);
    let executing = flag.clone();
    let backend = ScriptedBackend::new(ExecutionPolicy::Blocking, move |batch| {
        assert!(!executing.is_set.load(Ordering::SeqCst), "an earlier execution was told to end");
        begin.send(batch.len()).unwrap();
        match int(&batch[0], "IN") {
            ENDLESS => {
                let is_terminated = || executing.is_set.load(Ordering::SeqCst);
                wait_until("the execution is terminated", is_terminated);
                for request in batch {
                    request.fail(Status::cancelled("ended"), FailureReason::Canceled);
                }
            }
            number => {
                if number == HELD {
                    going.lock().unwrap().recv_timeout(LONG).unwrap();
                }
                batch.into_iter().for_each(|request| reply_with(request, number));
            }
        }
        Ok(())
    });
    let server = ServerSetup::new(text, backend.with_terminator(flag.clone())).serve();
    Stage { server, flag, begun, go }
}

fn cancellable(value: i32) -> (InferenceRequest, CancelToken) {
    let token = CancelToken::new();
    (InferenceRequest { cancel: token.clone(), ..step(0, "", value) }, token)
}

const ONE_INSTANCE: &str = "instance_group { kind: KIND_CPU count: 1 }";

/// Waits as long as another server needs to terminate three executions one after the other. An
/// execution that has begun before is checked several times in the meantime.
fn wait_for_checks() {
    let other = stage(ONE_INSTANCE);
    for _ in 0..3 {
        let (request, token) = cancellable(ENDLESS);
        let endless = send(&other.server, request);
        other.begun.recv_timeout(LONG).unwrap();
        token.cancel();
        assert_eq!(error(&endless).message(), "ended");
    }
}

#[test]
fn an_execution_without_clients_ends_and_later_ones_do_not() {
    let stage = stage(ONE_INSTANCE);
    for number in 1..=3 {
        let (request, token) = cancellable(ENDLESS);
        let endless = send(&stage.server, request);
        stage.begun.recv_timeout(LONG).unwrap();
        let next = send(&stage.server, step(0, "", 7));
        token.cancel();
        assert_eq!(error(&endless).message(), "ended");
        assert_eq!(value(&next), 7);
        stage.begun.recv_timeout(LONG).unwrap();
        assert_eq!(stage.flag.terminations.load(Ordering::SeqCst), number);
    }
}

#[test]
fn a_batch_goes_on_while_one_of_its_clients_waits() {
    let stage = stage(&format!("{ONE_INSTANCE} dynamic_batching {{ }}"));
    let held = send(&stage.server, step(0, "", HELD));
    stage.begun.recv_timeout(LONG).unwrap();
    let ((first, one), (second, two)) = (cancellable(ENDLESS), cancellable(ENDLESS));
    let pair = [send(&stage.server, first), send(&stage.server, second)];
    stage.go.send(()).unwrap();
    assert_eq!(value(&held), HELD);
    assert_eq!(stage.begun.recv_timeout(LONG).unwrap(), 2);
    one.cancel();
    wait_for_checks();
    assert!(pair[0].try_recv().is_err());
    assert_eq!(stage.flag.terminations.load(Ordering::SeqCst), 0);
    two.cancel();
    pair.iter().for_each(|request| assert_eq!(error(request).message(), "ended"));
}

#[test]
fn requests_that_can_not_be_cancelled_are_not_ended() {
    let stage = stage(ONE_INSTANCE);
    let held = send(&stage.server, step(0, "", HELD));
    stage.begun.recv_timeout(LONG).unwrap();
    wait_for_checks();
    assert!(held.try_recv().is_err());
    stage.go.send(()).unwrap();
    assert_eq!(value(&held), HELD);
    assert_eq!(stage.flag.terminations.load(Ordering::SeqCst), 0);
}
