//! Iterative sequences: requests that are rescheduled until their backend is done.

use std::sync::{Arc, Mutex, mpsc};

use galatea_backend::ExecutionPolicy;
use galatea_infer::{
    AccessPass, CancelToken, Code, CorrelationId, InferenceRequest, InferenceService,
    PendingRequest, Reply, ResponseSender,
};

use crate::testing::sequences::{
    BLOCKING, Gate, ONE_INSTANCE, ScriptedBackend, bytes, config, error, int, reply_with, response,
    row, step, value, wait_until_empty,
};
use crate::testing::{LONG, ServerSetup, send};

const ITERATIVE_DIRECT: &str =
    "direct { } iterative_sequence: true max_sequence_idle_microseconds: 600000000";
const ITERATIVE_OLDEST: &str = "oldest { max_candidate_sequences: 4 } iterative_sequence: true \
                                max_sequence_idle_microseconds: 600000000";

/// Counts in the state, and replies when the count equals the input.
fn count(request: PendingRequest) {
    count_and(request, |_, _| {});
}

fn count_and(mut request: PendingRequest, each: impl Fn(&mut PendingRequest, i32)) {
    assert_eq!(request.request().inputs.len(), 6, "one of the client's, four controls, one state");
    let count = int(&request, "SUM_IN") + 1;
    let shape = request.request().input("SUM_IN").unwrap().shape.clone();
    request.update_state("SUM_OUT", shape, bytes(count)).unwrap();
    each(&mut request, count);
    if count == int(&request, "IN") {
        reply_with(request, count);
    } else {
        request.reschedule().unwrap();
    }
}

fn counting(policy: ExecutionPolicy) -> ScriptedBackend {
    ScriptedBackend::new(policy, |batch| {
        batch.into_iter().filter(|request| !request.is_padding()).for_each(count);
        Ok(())
    })
}

#[test]
fn a_request_is_rescheduled_until_its_backend_is_done() {
    for policy in [ExecutionPolicy::Inline, BLOCKING] {
        for batching in [ITERATIVE_DIRECT, ITERATIVE_OLDEST] {
            let text = config(4, batching, ONE_INSTANCE);
            let server = ServerSetup::new(text, counting(policy)).serve();
            let inboxes: Vec<_> = (1..=20).map(|count| send(&server, step(0, "", count))).collect();
            let counts: Vec<i32> = inboxes.iter().map(value).collect();
            assert_eq!(counts, (1..=20).collect::<Vec<_>>());
            wait_until_empty(&server);
        }
    }
}

#[test]
fn new_requests_join_the_batch_and_finished_ones_leave() {
    let (gate, backend) = Gate::with_backend(count);
    let server = ServerSetup::new(config(4, ITERATIVE_OLDEST, ONE_INSTANCE), backend).serve();
    let long = send(&server, step(0, "", 3));
    assert_eq!(gate.batch(), ["1 1 0 1 3 0"]);
    let short = send(&server, step(0, "", 2));
    gate.open();
    // The requests come in the order in which they became eligible: the new request has waited
    // longer.
    gate.check_and_open(&["1 1 0 2 2 0", "0 1 0 1 3 1"]);
    let mut rows = gate.batch();
    rows.sort();
    assert_eq!(rows, ["0 1 0 1 3 2", "0 1 0 2 2 1"]);
    gate.open();
    assert_eq!((value(&long), value(&short)), (3, 2));
    wait_until_empty(&server);
}

#[test]
fn equal_correlation_ids_of_clients_are_separate_sequences() {
    let (seen, sees) = mpsc::channel();
    let backend = ScriptedBackend::new(BLOCKING, move |batch| {
        for request in batch.into_iter().filter(|request| !request.is_padding()) {
            seen.send(row(&request)).unwrap();
            assert_eq!(request.sequence().unwrap().correlation_id, CorrelationId::Number(77));
            count(request);
        }
        Ok(())
    });
    let server = ServerSetup::new(config(1, ITERATIVE_DIRECT, ONE_INSTANCE), backend).serve();
    // Neither request continues or ends the other's sequence, regardless of its flags.
    let first = send(&server, step(77, "", 2));
    let second = send(&server, step(77, "+.", 1));
    assert_eq!((value(&first), value(&second)), (2, 1));
    let rows: Vec<String> = sees.try_iter().collect();
    assert_eq!(rows, ["1 1 0 77 2 0", "0 1 0 77 2 1", "1 1 0 77 1 0"]);
    wait_until_empty(&server);
}

#[test]
fn decoupled_responses_come_from_every_iteration() {
    let backend = ScriptedBackend::new(BLOCKING, |batch| {
        for request in batch.into_iter().filter(|request| !request.is_padding()) {
            count_and(request, |request, count| {
                let partial = response(request, -count);
                request.respond_nonfinal(Ok(partial));
            });
        }
        Ok(())
    });
    let text = config(4, ITERATIVE_DIRECT, ONE_INSTANCE);
    let text = format!("{text} model_transaction_policy {{ decoupled: true }}");
    let server = ServerSetup::new(text, backend).serve();
    let (replies, inbox) = mpsc::channel();
    let sender = ResponseSender::new(Box::new(move |reply: Reply| {
        let Reply::Response { result, finality } = reply else { return };
        let data = result.unwrap().outputs[0].data.host_bytes().unwrap().clone();
        let value = i32::from_le_bytes(*data.first_chunk().unwrap());
        replies.send(format!("{value} {finality:?}")).unwrap();
    }));
    server.infer(AccessPass::in_process(), Box::new(step(0, "", 3)), sender);
    let got: Vec<String> = inbox.iter().collect();
    assert_eq!(got, ["-1 More", "-2 More", "-3 More", "3 Final"]);
    wait_until_empty(&server);
}

#[test]
fn a_cancellation_takes_effect_between_two_iterations() {
    let (gate, backend) = Gate::with_backend(count);
    let server = ServerSetup::new(config(4, ITERATIVE_DIRECT, ONE_INSTANCE), backend).serve();
    let token = CancelToken::new();
    let cancelled = send(&server, InferenceRequest { cancel: token.clone(), ..step(0, "", 9) });
    let other = send(&server, step(0, "", 3));
    assert_eq!(gate.batch(), ["1 1 0 1 9 0"]);
    gate.open();
    assert_eq!(gate.batch(), ["0 1 0 1 9 1", "1 1 0 2 3 0"]);
    token.cancel();
    assert!(cancelled.try_recv().is_err(), "it runs still");
    gate.open();
    assert_eq!(error(&cancelled).code(), Code::Cancelled);
    gate.check_and_open(&["padding", "0 1 0 2 3 1"]);
    gate.check_and_open(&["padding", "0 1 0 2 3 2"]);
    assert_eq!(value(&other), 3);
    wait_until_empty(&server);
}

#[test]
fn only_iterative_sequences_are_rescheduled() {
    let refused = Arc::new(Mutex::new(Vec::new()));
    let told = refused.clone();
    let backend = ScriptedBackend::new(BLOCKING, move |batch| {
        for request in batch {
            let (request, status) = request.reschedule().unwrap_err();
            told.lock().unwrap().push(status.code());
            reply_with(*request, 1);
        }
        Ok(())
    });
    let text = config(4, crate::testing::sequences::DIRECT, ONE_INSTANCE);
    let server = ServerSetup::new(text, backend).serve();
    assert_eq!(value(&send(&server, step(1, "+.", 1))), 1);
    assert_eq!(*refused.lock().unwrap(), [Code::InvalidArgument]);
    wait_until_empty(&server);
}

#[test]
fn a_drain_lets_requests_finish_their_iterations() {
    let (gate, backend) = Gate::with_backend(count);
    let server = ServerSetup::new(config(4, ITERATIVE_DIRECT, ONE_INSTANCE), backend).serve();
    let request = send(&server, step(0, "", 3));
    gate.batch();
    let dispatcher = server.model("seq").dispatcher.clone();
    dispatcher.drain();
    for _ in 0..3 {
        gate.open();
    }
    assert_eq!(value(&request), 3);
    assert_eq!(server.unload_all(LONG), 0);
    assert_eq!(dispatcher.counts(), (0, 0, 0));
}
