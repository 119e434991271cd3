//! Tests of replies in request order, with instances that finish in any order.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use galatea_infer::{
    AccessPass, CancelToken, Code, Deadline, Finality, InferenceRequest, InferenceService,
    PendingRequest, Reply, ResponseSender, ResponseSink, Status,
};

use crate::testing::TestServer;
use crate::testing::sequences::{
    BLOCKING, ONE_INSTANCE, ScriptedBackend, TWO_INSTANCES, add, config, int, reply_with, response,
    step, wait_until, wait_until_empty, zero_times,
};
use crate::testing::{LONG, ServerSetup};

/// The configuration of a model whose instances execute one request at a time.
fn dynamic(more: &str) -> String {
    format!(
        "name: \"seq\" backend: \"fake\" max_batch_size: 1 {TWO_INSTANCES}
         input {{ name: \"IN\" data_type: TYPE_INT32 dims: [ 1 ] }}
         output {{ name: \"OUT\" data_type: TYPE_INT32 dims: [ 1 ] }}
         dynamic_batching {{ preserve_ordering: true {more} }}"
    )
}

/// A journal of events that tests can wait for.
#[derive(Default)]
struct Journal {
    lines: Mutex<Vec<String>>,
    changed: Condvar,
}

impl Journal {
    fn write(&self, line: String) {
        self.lines.lock().unwrap().push(line);
        self.changed.notify_all();
    }

    #[track_caller]
    fn wait_for(&self, line: &str) {
        let lines = self.lines.lock().unwrap();
        let waited =
            self.changed.wait_timeout_while(lines, LONG, |lines| !lines.iter().any(|l| l == line));
        let (lines, timeout) = waited.unwrap();
        assert!(!timeout.timed_out(), "no '{line}' in {lines:?}");
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

/// Requests that wait in their instance until the test lets them continue.
#[derive(Default)]
struct Rooms {
    open: Mutex<HashMap<i32, bool>>,
    changed: Condvar,
}

impl Rooms {
    fn open(&self, number: i32) {
        self.open.lock().unwrap().insert(number, true);
        self.changed.notify_all();
    }

    fn wait(&self, number: i32) {
        let open = self.open.lock().unwrap();
        let is_closed = |open: &mut HashMap<i32, bool>| !open.contains_key(&number);
        drop(self.changed.wait_timeout_while(open, LONG, is_closed).unwrap());
    }
}

/// A backend whose requests wait in their rooms and then run `act`.
fn rooms(
    journal: &Arc<Journal>,
    act: impl Fn(PendingRequest) + Send + Sync + 'static,
) -> (Arc<Rooms>, ScriptedBackend) {
    let rooms = Arc::new(Rooms::default());
    let (journal, inside) = (journal.clone(), rooms.clone());
    let backend = ScriptedBackend::new(BLOCKING, move |batch| {
        for request in batch {
            let number = int(&request, "IN");
            journal.write(format!("{number} runs"));
            inside.wait(number);
            act(request);
            journal.write(format!("{number} is done"));
        }
        Ok(())
    });
    (rooms, backend)
}

/// Sends a request whose replies go to the journal.
fn send(server: &TestServer, journal: &Arc<Journal>, request: InferenceRequest) {
    let number = int(&PendingRequest::new_padding(request.clone()), "IN");
    let sink = JournalSink { number, journal: journal.clone() };
    server.infer(AccessPass::in_process(), Box::new(request), ResponseSender::new(Box::new(sink)));
}

/// A sink that writes a request's replies to the journal.
struct JournalSink {
    number: i32,
    journal: Arc<Journal>,
}

impl ResponseSink for JournalSink {
    fn deliver(&mut self, reply: Reply) {
        let number = self.number;
        self.journal.write(match reply {
            Reply::Finished => format!("{number} ends"),
            Reply::Response { result: Err(status), .. } => {
                format!("{number} fails {:?}", status.code())
            }
            Reply::Response { result: Ok(_), finality: Finality::More } => {
                format!("{number} continues")
            }
            Reply::Response { result: Ok(_), finality: Finality::Final | Finality::EndApart } => {
                format!("{number} answered")
            }
        });
    }

    fn refuse(&mut self, status: Status) {
        self.journal.write(format!("{} is refused {:?}", self.number, status.code()));
    }
}

/// The journal's lines about replies.
fn replies(journal: &Journal) -> Vec<String> {
    let lines = journal.lines().into_iter();
    lines.filter(|line| !line.ends_with("runs") && !line.ends_with("is done")).collect()
}

fn done(request: PendingRequest) {
    let number = int(&request, "IN");
    reply_with(request, number);
}

#[test]
fn a_reply_waits_for_the_replies_of_earlier_requests() {
    let journal = Arc::new(Journal::default());
    let (rooms, backend) = rooms(&journal, done);
    let server = ServerSetup::new(dynamic(""), backend).serve();
    for number in 1..=3 {
        send(&server, &journal, step(0, "", number));
    }
    journal.wait_for("1 runs");
    journal.wait_for("2 runs");
    rooms.open(2);
    journal.wait_for("2 is done");
    rooms.open(3);
    journal.wait_for("3 is done");
    assert!(replies(&journal).is_empty());
    rooms.open(1);
    journal.wait_for("3 answered");
    assert_eq!(replies(&journal), ["1 answered", "2 answered", "3 answered"]);
    wait_until_empty(&server);
}

#[test]
fn a_request_that_fails_in_the_queue_fails_at_once_and_holds_up_no_reply() {
    let journal = Arc::new(Journal::default());
    let (rooms, backend) = rooms(&journal, done);
    let policy = "default_queue_policy { max_queue_size: 2 }";
    let server = ServerSetup::new(dynamic(policy), backend).serve();
    for number in 1..=2 {
        send(&server, &journal, step(0, "", number));
        journal.wait_for(&format!("{number} runs"));
    }
    let token = CancelToken::new();
    send(&server, &journal, InferenceRequest { cancel: token.clone(), ..step(0, "", 3) });
    send(&server, &journal, step(0, "", 4));
    send(&server, &journal, step(0, "", 5));
    assert_eq!(replies(&journal), ["5 is refused Unavailable"]);
    token.cancel();
    assert_eq!(replies(&journal), ["5 is refused Unavailable", "3 fails Cancelled"]);
    for number in [2, 4, 1] {
        rooms.open(number);
        journal.wait_for(&format!("{number} is done"));
    }
    journal.wait_for("4 answered");
    assert_eq!(replies(&journal)[2..], ["1 answered", "2 answered", "4 answered"]);
    wait_until_empty(&server);
}

#[test]
fn replies_keep_the_order_although_deadlines_decide_what_runs() {
    let journal = Arc::new(Journal::default());
    let (rooms, backend) = rooms(&journal, done);
    let objective = "parameters { key: 'latency_objective_us' value { string_value: '0' } }";
    let config = dynamic("").replace(TWO_INSTANCES, ONE_INSTANCE) + objective;
    let server = ServerSetup::new(config, backend).serve();
    send(&server, &journal, step(0, "", 1));
    journal.wait_for("1 runs");
    send(&server, &journal, step(0, "", 2));
    let deadline = Deadline::within(Instant::now(), Duration::from_hours(1));
    send(&server, &journal, InferenceRequest { deadline, ..step(0, "", 3) });
    rooms.open(1);
    journal.wait_for("3 runs");
    rooms.open(3);
    journal.wait_for("2 runs");
    assert_eq!(replies(&journal), ["1 answered"]);
    rooms.open(2);
    journal.wait_for("3 answered");
    assert_eq!(replies(&journal), ["1 answered", "2 answered", "3 answered"]);
    wait_until_empty(&server);
}

#[test]
fn what_is_too_late_fails_at_once_and_says_when_to_try_again() {
    let (failed, failure) = std::sync::mpsc::channel();
    let backend = ScriptedBackend::new(BLOCKING, |batch| {
        batch.into_iter().for_each(done);
        Ok(())
    });
    let objective = "parameters { key: 'latency_objective_us' value { string_value: '0' } }";
    let server = ServerSetup::new(dynamic("") + objective, backend).serve();
    let request = InferenceRequest { deadline: Deadline::At(Instant::now()), ..step(0, "", 1) };
    let sender = ResponseSender::new(Box::new(move |reply: Reply| {
        let Reply::Response { result, .. } = reply else { return };
        let _ = failed.send(result.map(|_| ()));
    }));
    server.infer(AccessPass::in_process(), Box::new(request), sender);
    let status = failure.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.retry_after_ms().is_some());
    let expected =
        "the request to model 'seq' would be answered too late: its deadline is 0.000 ms";
    assert!(status.message().contains(expected), "{status}");
}

#[test]
fn errors_and_dropped_requests_keep_the_order() {
    let journal = Arc::new(Journal::default());
    let (rooms, backend) = rooms(&journal, |request| match int(&request, "IN") {
        2 => drop(request),
        3 => panic!("planned"),
        _ => done(request),
    });
    let server = ServerSetup::new(dynamic(""), backend).serve();
    for number in 1..=4 {
        send(&server, &journal, step(0, "", number));
    }
    for number in [2, 3, 4] {
        rooms.open(number);
    }
    journal.wait_for("4 is done");
    assert!(replies(&journal).is_empty());
    rooms.open(1);
    journal.wait_for("4 answered");
    let expected = ["1 answered", "2 fails Internal", "3 fails Internal", "4 answered"];
    assert_eq!(replies(&journal), expected);
    wait_until_empty(&server);
}

#[test]
fn a_decoupled_request_streams_while_it_is_first_in_order() {
    let journal = Arc::new(Journal::default());
    let between = Arc::new(Rooms::default());
    let inside = between.clone();
    let (rooms, backend) = rooms(&journal, move |mut request| {
        let number = int(&request, "IN");
        let partial = response(&request, number);
        request.respond_nonfinal(Ok(partial.clone()));
        inside.wait(number);
        request.respond_nonfinal(Ok(partial));
        request.finish_without_response(&zero_times());
    });
    let text = format!("{} model_transaction_policy {{ decoupled: true }}", dynamic(""));
    let server = ServerSetup::new(text, backend).serve();
    send(&server, &journal, step(0, "", 1));
    send(&server, &journal, step(0, "", 2));
    rooms.open(2);
    between.open(2);
    journal.wait_for("2 is done");
    rooms.open(1);
    journal.wait_for("1 continues");
    assert_eq!(replies(&journal), ["1 continues"]);
    between.open(1);
    journal.wait_for("2 ends");
    let expected = ["1 continues", "1 continues", "1 ends", "2 continues", "2 continues", "2 ends"];
    assert_eq!(replies(&journal), expected);
    wait_until_empty(&server);
}

#[test]
fn a_waiting_reply_leaves_at_the_latest_when_the_model_is_destroyed() {
    let journal = Arc::new(Journal::default());
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = kept.clone();
    let (rooms, backend) = rooms(&journal, move |mut request| {
        if int(&request, "IN") == 1 {
            keep.lock().unwrap().push(request.take_responder().unwrap());
        } else {
            done(request);
        }
    });
    let text = format!("{} model_transaction_policy {{ decoupled: true }}", dynamic(""));
    let server = ServerSetup::new(text, backend).serve();
    for number in [1, 2] {
        rooms.open(number);
        send(&server, &journal, step(0, "", number));
        journal.wait_for(&format!("{number} is done"));
    }
    assert!(replies(&journal).is_empty());
    assert_eq!(server.unload_all(LONG), 0);
    drop(server);
    assert_eq!(replies(&journal), ["2 answered"]);
    kept.lock().unwrap().clear();
    assert_eq!(replies(&journal)[1..], ["1 fails Internal"]);
}

#[test]
fn a_sink_that_panics_loses_only_its_own_reply() {
    let journal = Arc::new(Journal::default());
    let (rooms, backend) = rooms(&journal, done);
    let server = ServerSetup::new(dynamic(""), backend).serve();
    let sender = ResponseSender::new(Box::new(|_: Reply| panic!("planned")));
    server.infer(AccessPass::in_process(), Box::new(step(0, "", 1)), sender);
    send(&server, &journal, step(0, "", 2));
    rooms.open(2);
    journal.wait_for("2 is done");
    rooms.open(1);
    journal.wait_for("2 answered");
    rooms.open(3);
    send(&server, &journal, step(0, "", 3));
    journal.wait_for("3 answered");
    assert_eq!(replies(&journal), ["2 answered", "3 answered"]);
}

#[test]
fn a_broken_scheduler_fails_queued_requests_while_earlier_ones_execute() {
    let journal = Arc::new(Journal::default());
    let (rooms, backend) = rooms(&journal, done);
    let server = ServerSetup::new(dynamic(""), backend).serve();
    for number in 1..=3 {
        send(&server, &journal, step(0, "", number));
    }
    journal.wait_for("2 runs");
    let model = server.model("seq");
    model.dispatcher.break_scheduler();
    assert_eq!(replies(&journal), ["3 fails Internal"]);
    rooms.open(2);
    rooms.open(1);
    journal.wait_for("2 answered");
    assert_eq!(replies(&journal)[1..], ["1 answered", "2 answered"]);
}

const ORDERED_OLDEST: &str = "oldest { max_candidate_sequences: 1 preserve_ordering: true } \
                              max_sequence_idle_microseconds: 600000000";

#[test]
fn replies_of_sequences_leave_in_the_order_of_requests() {
    let journal = Arc::new(Journal::default());
    let (rooms, backend) = rooms(&journal, add);
    let server = ServerSetup::new(config(1, ORDERED_OLDEST, TWO_INSTANCES), backend).serve();
    send(&server, &journal, step(1, "+", 1));
    send(&server, &journal, step(2, "+", 2));
    journal.wait_for("1 runs");
    journal.wait_for("2 runs");
    // The queued request of a sequence with a slot also precedes later requests.
    send(&server, &journal, step(1, "", 3));
    send(&server, &journal, step(2, "", 4));
    for number in [2, 4] {
        rooms.open(number);
        journal.wait_for(&format!("{number} is done"));
    }
    rooms.open(1);
    journal.wait_for("2 answered");
    assert_eq!(replies(&journal), ["1 answered", "2 answered"]);
    rooms.open(3);
    journal.wait_for("4 answered");
    assert_eq!(replies(&journal)[2..], ["3 answered", "4 answered"]);
}

#[test]
fn a_sequence_without_a_slot_holds_up_no_reply() {
    let journal = Arc::new(Journal::default());
    let (rooms, backend) = rooms(&journal, add);
    let server = ServerSetup::new(config(1, ORDERED_OLDEST, ONE_INSTANCE), backend).serve();
    for number in [1, 2, 3, 4, 5] {
        rooms.open(number);
    }
    send(&server, &journal, step(1, "+", 1));
    journal.wait_for("1 answered");
    // The slot becomes free when the first sequence ends. The client ends it only after it has
    // received its replies, so those replies must not wait for this one.
    send(&server, &journal, step(2, "+", 2));
    send(&server, &journal, step(2, "", 3));
    send(&server, &journal, step(1, "", 4));
    journal.wait_for("4 answered");
    send(&server, &journal, step(1, ".", 5));
    journal.wait_for("3 answered");
    let expected = ["1 answered", "4 answered", "5 answered", "2 answered", "3 answered"];
    assert_eq!(replies(&journal), expected);
}

#[test]
fn a_cancelled_request_of_a_sequence_with_a_slot_holds_up_no_reply() {
    let journal = Arc::new(Journal::default());
    let (rooms, backend) = rooms(&journal, add);
    let server = ServerSetup::new(config(1, ORDERED_OLDEST, TWO_INSTANCES), backend).serve();
    send(&server, &journal, step(1, "+", 1));
    journal.wait_for("1 runs");
    let token = CancelToken::new();
    send(&server, &journal, InferenceRequest { cancel: token.clone(), ..step(1, "", 2) });
    send(&server, &journal, step(2, "+.", 3));
    rooms.open(3);
    journal.wait_for("3 is done");
    token.cancel();
    journal.wait_for("2 fails Cancelled");
    assert_eq!(replies(&journal), ["2 fails Cancelled"]);
    rooms.open(1);
    journal.wait_for("3 answered");
    assert_eq!(replies(&journal)[1..], ["1 answered", "3 answered"]);
    wait_until_empty(&server);
}

/// Two sequences on two instances. The second request of the first sequence is next in order, but
/// can't be executed, because its predecessor has been answered but not released. The other
/// sequence's request has been executed.
fn stuck(cancel: &CancelToken) -> (Arc<Journal>, Arc<TestServer>, Arc<Mutex<Vec<PendingRequest>>>) {
    let journal = Arc::new(Journal::default());
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = kept.clone();
    let (rooms, backend) = rooms(&journal, move |mut request| {
        if int(&request, "IN") != 1 {
            return add(request);
        }
        let result = Ok(response(&request, 1));
        let responder = request.take_responder().unwrap();
        keep.lock().unwrap().push(request);
        responder.complete(result, &zero_times());
    });
    let server = ServerSetup::new(config(1, ORDERED_OLDEST, TWO_INSTANCES), backend).serve();
    rooms.open(1);
    send(&server, &journal, step(1, "+", 1));
    journal.wait_for("1 answered");
    journal.wait_for("1 is done");
    send(&server, &journal, InferenceRequest { cancel: cancel.clone(), ..step(1, "", 2) });
    rooms.open(3);
    send(&server, &journal, step(2, "+.", 3));
    journal.wait_for("3 is done");
    assert_eq!(replies(&journal), ["1 answered"]);
    (journal, server, kept)
}

#[test]
fn a_reply_that_waits_for_a_cancelled_request_leaves() {
    let token = CancelToken::new();
    let (journal, server, kept) = stuck(&token);
    token.cancel();
    // The effects of the event may be performed by the thread of an instance that has just
    // finished.
    journal.wait_for("3 answered");
    assert_eq!(replies(&journal)[1..], ["2 fails Cancelled", "3 answered"]);
    kept.lock().unwrap().clear();
    wait_until_empty(&server);
}

#[test]
fn a_reply_that_waits_for_a_dropped_request_leaves() {
    let (journal, server, kept) = stuck(&CancelToken::new());
    let model = server.model("seq");
    model.dispatcher.break_scheduler();
    // The request is dropped, and errors for dropped requests are not ordered. The effects of the
    // event may be performed by the thread of an instance that has just finished.
    journal.wait_for("2 fails Internal");
    journal.wait_for("3 answered");
    let mut left = replies(&journal)[1..].to_vec();
    left.sort_unstable();
    assert_eq!(left, ["2 fails Internal", "3 answered"]);
    kept.lock().unwrap().clear();
}

#[test]
fn replies_of_many_concurrent_instances_are_in_order() {
    let instances = "instance_group { kind: KIND_CPU count: 8 }";
    let text = dynamic("").replace(TWO_INSTANCES, instances);
    let backend = ScriptedBackend::new(BLOCKING, |batch| {
        for request in batch {
            for _ in 0..int(&request, "IN") % 7 {
                // sleep: varies the order in which the instances finish
                thread::yield_now();
            }
            done(request);
        }
        Ok(())
    });
    let server = ServerSetup::new(text, backend).serve();
    let journal = Arc::new(Journal::default());
    const COUNT: i32 = 2000;
    for number in 0..COUNT {
        send(&server, &journal, step(0, "", number));
    }
    journal.wait_for(&format!("{} answered", COUNT - 1));
    let expected: Vec<String> = (0..COUNT).map(|number| format!("{number} answered")).collect();
    assert_eq!(replies(&journal), expected);
    wait_until_empty(&server);
    wait_until(&server, "no reply waits", |dispatcher| dispatcher.replies_waiting() == 0);
}
