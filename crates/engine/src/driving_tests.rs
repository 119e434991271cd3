//! How the dispatcher drives its lanes: the threads it starts, and the threads
//! that it borrows.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::thread::ThreadId;

use galatea_backend::{ExecutionPolicy, Instance, Refused};
use galatea_infer::{InferenceService, PendingRequest, Reply, ResponseSender};
use galatea_policy::{SchedulingMode, SchedulingSpec};

use crate::dispatcher::{Parts, ROUNDS_MAX, ReplyOrdering};
use crate::lane::Lane;
use crate::testing::Setup;
use crate::testing::sequences::{LONG, Scripted, answer, int, step, wait_until_empty};
use crate::timer::Timer;
use crate::{Dispatcher, LogSink, Server};

/// An instance that counts how many there are.
struct Counted(Arc<AtomicUsize>);

impl Instance for Counted {
    fn execute(&mut self, _: Vec<PendingRequest>) -> Result<(), Refused> {
        Ok(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn if_a_thread_can_not_be_started_none_is_left() {
    let count = Arc::new(AtomicUsize::new(3));
    let log = LogSink::new(|_, _, _| {});
    let lane = |name: &str| {
        let instance = Box::new(Counted(count.clone()));
        Lane::new(String::from(name), instance, ExecutionPolicy::Blocking, log.clone())
    };
    let mut lanes = vec![lane("a"), lane("b"), lane("c")];
    lanes[1].ask_too_much();
    let parts = Parts {
        scheduling: SchedulingSpec {
            max_batch_size: 0,
            mode: SchedulingMode::Default,
            hold_until_queued: 0,
            hold_until_backlogged: 0,
        },
        lanes,
        assembly: None,
        reply_order: ReplyOrdering::Free,
        log: log.clone(),
        timer: Timer::start().unwrap(),
    };
    let status = Dispatcher::start(parts).unwrap_err();
    assert!(status.message().contains("can't start a thread for b"), "{status}");
    // The first one's thread was joined, so its instance is gone already.
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

const INLINE: &str = "
    name: \"seq\" backend: \"fake\" max_batch_size: 1
    instance_group { kind: KIND_CPU count: 1 }
    input { name: \"IN\" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: \"OUT\" data_type: TYPE_INT32 dims: [ 1 ] }";

/// The server, for a backend that sends requests itself.
type Later = Arc<OnceLock<Weak<Server>>>;

fn send_to(server: &Later, number: i32, answers: &mpsc::Sender<i32>) {
    let server = server.get().unwrap().upgrade().unwrap();
    let answers = answers.clone();
    let sender = ResponseSender::new(Box::new(move |_: Reply| {
        let _ = answers.send(number);
    }));
    server.infer(step(0, "", number), sender);
}

#[test]
fn a_thread_that_brings_a_request_does_not_work_for_others_for_ever() {
    const COUNT: i32 = 1000;
    let later = Later::default();
    let (answers, inbox) = mpsc::channel();
    let threads: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
    let (server, told, ran) = (later.clone(), answers.clone(), threads.clone());
    // Each request is followed by another before it has run: the queue is never
    // empty, as if other clients kept filling it.
    let backend = Scripted::new(ExecutionPolicy::Inline, move |batch| {
        for request in batch {
            ran.lock().unwrap().push(std::thread::current().id());
            let number = int(&request, "IN");
            if number < COUNT {
                send_to(&server, number + 1, &told);
            }
            answer(request, number);
        }
        Ok(())
    });
    let server = Setup::new(INLINE, backend).serve();
    later.set(Arc::downgrade(&server)).unwrap();
    send_to(&later, 1, &answers);
    let own = threads.lock().unwrap().len();
    for number in 1..=COUNT {
        assert_eq!(inbox.recv_timeout(LONG).unwrap(), number);
    }
    let here = std::thread::current().id();
    let by_this_thread = threads.lock().unwrap().iter().filter(|id| **id == here).count();
    assert!(by_this_thread <= ROUNDS_MAX, "{by_this_thread} batches ran on this thread");
    assert!(own >= by_this_thread);
    wait_until_empty(&server);
}

#[test]
fn whoever_comes_next_takes_up_what_was_left() {
    let later = Later::default();
    let (answers, inbox) = mpsc::channel();
    let (server, told) = (later.clone(), answers.clone());
    let backend = Scripted::new(ExecutionPolicy::Inline, move |batch| {
        for request in batch {
            let number = int(&request, "IN");
            if number > 0 {
                send_to(&server, number - 1, &told);
            }
            answer(request, number);
        }
        Ok(())
    });
    let text = INLINE.replace("count: 1", "count: 3");
    let server = Setup::new(text, backend).serve();
    later.set(Arc::downgrade(&server)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..20).for_each(|_| send_to(&later, 20, &answers)));
        }
    });
    drop(answers);
    for _ in 0..8 * 20 * 21 {
        inbox.recv_timeout(LONG).unwrap();
    }
    wait_until_empty(&server);
}
