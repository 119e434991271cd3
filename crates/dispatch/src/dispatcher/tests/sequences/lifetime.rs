//! Tests of how sequences begin, continue and end.

use std::sync::{Arc, Mutex};

use galatea_backend::{ExecutionPolicy, RefusedBatch};
use galatea_infer::{CancelToken, Code, InferenceRequest, PendingRequest, Status};
use galatea_policy::InstanceStatus;
use serde_json::Value;

use crate::testing::sequences::{
    BLOCKING, DIRECT, Gate, OLDEST, ONE_INSTANCE, ScriptedBackend, TWO_INSTANCES, add, bytes,
    config, error, int, log, response, step, value, wait_until, wait_until_empty, zero_times,
};
use crate::testing::{LONG, ServerSetup, send};

#[test]
fn states_pass_from_request_to_request_within_a_sequence() {
    for policy in [ExecutionPolicy::Inline, ExecutionPolicy::Blocking] {
        for batching in [DIRECT, OLDEST] {
            let text = config(4, batching, ONE_INSTANCE);
            let server = ServerSetup::new(text, ScriptedBackend::summing(policy)).serve();
            for round in 0..3 {
                let sums = [(1, "+"), (2, ""), (3, "."), (4, "+.")]
                    .map(|(number, flags)| value(&send(&server, step(5, flags, number))));
                assert_eq!(sums, [1, 3, 6, 4], "round {round}");
            }
            wait_until_empty(&server);
        }
    }
}

#[test]
fn queued_requests_of_a_sequence_are_executed_in_order() {
    let (gate, backend) = Gate::with_backend(add);
    let server = ServerSetup::new(config(4, DIRECT, ONE_INSTANCE), backend).serve();
    let inboxes: Vec<_> = [(1, "+"), (2, ""), (3, ""), (4, ".")]
        .into_iter()
        .map(|(number, flags)| send(&server, step(5, flags, number)))
        .collect();
    gate.check_and_open(&["1 1 0 5 1 0"]);
    gate.check_and_open(&["0 1 0 5 2 1"]);
    gate.check_and_open(&["0 1 0 5 3 3"]);
    gate.check_and_open(&["0 1 1 5 4 6"]);
    assert_eq!(inboxes.iter().map(value).collect::<Vec<_>>(), [1, 3, 6, 10]);
    wait_until_empty(&server);
}

#[test]
// row: SEQ-04
fn a_start_on_an_open_sequence_begins_a_new_one_and_is_logged() {
    let (log, lines) = log();
    let text = config(4, DIRECT, ONE_INSTANCE);
    let server = ServerSetup::new(text, ScriptedBackend::summing(BLOCKING)).log(log).serve();
    let sum = |flags, number| value(&send(&server, step(5, flags, number)));
    assert_eq!([sum("+", 1), sum("", 2), sum("+", 10), sum(".", 5)], [1, 3, 10, 15]);
    let lines = lines.lock().unwrap();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("sequence 5 of model 'seq' starts anew"), "{lines:?}");
}

#[test]
fn a_correlation_id_may_be_reused_before_its_sequence_was_executed() {
    let (gate, backend) = Gate::with_backend(add);
    let (log, lines) = log();
    let server = ServerSetup::new(config(1, DIRECT, ONE_INSTANCE), backend).log(log).serve();
    let inboxes: Vec<_> = [("+", 1), (".", 2), ("+", 10), (".", 20)]
        .into_iter()
        .map(|(flags, number)| send(&server, step(5, flags, number)))
        .collect();
    gate.check_and_open(&["1 1 0 5 1 0"]);
    gate.check_and_open(&["0 1 1 5 2 1"]);
    gate.check_and_open(&["1 1 0 5 10 0"]);
    gate.check_and_open(&["0 1 1 5 20 10"]);
    assert_eq!(inboxes.iter().map(value).collect::<Vec<_>>(), [1, 3, 10, 30]);
    assert!(lines.lock().unwrap().is_empty(), "that is no conflict");
    wait_until_empty(&server);
}

#[test]
fn an_idle_sequence_ends() {
    let batching = "direct { } max_sequence_idle_microseconds: 1000";
    let text = config(4, batching, ONE_INSTANCE);
    let server = ServerSetup::new(text, ScriptedBackend::summing(BLOCKING)).serve();
    assert_eq!(value(&send(&server, step(5, "+", 1))), 1);
    wait_until_empty(&server);
    let status = error(&send(&server, step(5, "", 2)));
    assert!(status.message().contains("must specify the START flag"), "{status}");
    assert_eq!(value(&send(&server, step(5, "+.", 3))), 3);
    wait_until_empty(&server);
}

/// Replies to each request and keeps it.
fn keeping() -> (ScriptedBackend, Arc<Mutex<Vec<PendingRequest>>>) {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = kept.clone();
    let backend = ScriptedBackend::new(BLOCKING, move |batch| {
        for mut request in batch.into_iter().filter(|request| !request.is_padding()) {
            let sum = int(&request, "SUM_IN") + int(&request, "IN");
            let shape = request.request().input("SUM_IN").unwrap().shape.clone();
            request.update_state("SUM_OUT", shape, bytes(sum)).unwrap();
            let result = Ok(response(&request, sum));
            let responder = request.take_responder().unwrap();
            keep.lock().unwrap().push(request);
            responder.complete(result, &zero_times());
        }
        Ok(())
    });
    (backend, kept)
}

#[test]
fn a_late_release_delays_only_its_own_sequence() {
    for batching in [DIRECT, OLDEST] {
        let (backend, kept) = keeping();
        let server = ServerSetup::new(config(4, batching, ONE_INSTANCE), backend).serve();
        assert_eq!(value(&send(&server, step(1, "+", 1))), 1);
        let waits = send(&server, step(1, ".", 2));
        // The instance is free, so another sequence is executed.
        assert_eq!(value(&send(&server, step(2, "+", 7))), 7);
        assert!(waits.try_recv().is_err(), "{batching}");
        let first = kept.lock().unwrap().remove(0);
        drop(first);
        assert_eq!(value(&waits), 3);
        kept.lock().unwrap().clear();
        assert_eq!(value(&send(&server, step(2, ".", 1))), 8);
        kept.lock().unwrap().clear();
        wait_until_empty(&server);
    }
}

#[test]
fn a_request_may_arrive_before_the_idle_timeout_of_its_sequence_is_noticed() {
    let batching = "direct { } max_sequence_idle_microseconds: 1";
    let (backend, kept) = keeping();
    let server =
        ServerSetup::new(config(4, batching, ONE_INSTANCE), backend).without_timer().serve();
    let instance_is_free = || {
        wait_until(&server, "a free instance", |dispatcher| {
            let lanes = dispatcher.lane_states();
            matches!(lanes[0], InstanceStatus::Free { .. })
        });
    };
    for round in 0..3 {
        // This is the last event before time passes.
        assert_eq!(value(&send(&server, step(1, "+", 7))), 7);
        instance_is_free();
        kept.lock().unwrap().clear();
        // A new sequence, whose time also runs out while its request is held.
        assert_eq!(value(&send(&server, step(1, "+", round))), round);
        assert_eq!(value(&send(&server, step(2, "+.", 5))), 5);
        let goes_on = error(&send(&server, step(1, ".", 1)));
        assert!(goes_on.message().contains("must specify the START flag"), "{goes_on}");
        instance_is_free();
        kept.lock().unwrap().clear();
    }
    wait_until_empty(&server);
}

#[test]
fn the_last_request_of_a_sequence_may_be_released_after_the_next_sequence_has_begun() {
    let (backend, kept) = keeping();
    let server = ServerSetup::new(config(1, DIRECT, ONE_INSTANCE), backend).serve();
    assert_eq!(value(&send(&server, step(1, "+.", 1))), 1);
    // The same correlation ID occupies the same slot, while the first request has not been
    // released.
    assert_eq!(value(&send(&server, step(1, "+", 10))), 10);
    let mut held = std::mem::take(&mut *kept.lock().unwrap());
    drop(held.remove(1));
    drop(held.remove(0));
    assert_eq!(value(&send(&server, step(1, ".", 5))), 15);
    kept.lock().unwrap().clear();
    wait_until_empty(&server);
}

#[test]
// row: IMP-11
fn a_refusing_or_panicking_backend_leaves_the_state_unchanged() {
    let backend = ScriptedBackend::new(BLOCKING, |batch| {
        match batch[0].request().id.as_str() {
            "refuse" => {
                let status = Status::unavailable("not today");
                return Err(RefusedBatch { requests: batch, status });
            }
            "panic" => panic!("planned"),
            _ => batch.into_iter().for_each(add),
        }
        Ok(())
    });
    let server = ServerSetup::new(config(4, DIRECT, ONE_INSTANCE), backend).serve();
    let ask = |id: &str, flags, number| {
        let request = InferenceRequest { id: id.into(), ..step(5, flags, number) };
        send(&server, request)
    };
    assert_eq!(value(&ask("", "+", 1)), 1);
    assert_eq!(error(&ask("refuse", "", 2)).code(), Code::Unavailable);
    assert_eq!(error(&ask("panic", "", 4)).code(), Code::Internal);
    assert_eq!(value(&ask("", ".", 8)), 9);
    wait_until_empty(&server);
}

#[test]
fn a_cancelled_request_fails_the_later_requests_of_its_sequence() {
    let (gate, backend) = Gate::with_backend(add);
    let server = ServerSetup::new(config(4, DIRECT, ONE_INSTANCE), backend).serve();
    let running = send(&server, step(5, "+", 1));
    assert_eq!(gate.batch(), ["1 1 0 5 1 0"]);
    let token = CancelToken::new();
    let waits = send(&server, step(5, "", 2));
    let cancelled = send(&server, InferenceRequest { cancel: token.clone(), ..step(5, "", 3) });
    let behind = send(&server, step(5, "", 4));
    token.cancel();
    assert_eq!(error(&cancelled).code(), Code::Cancelled);
    assert_eq!(error(&behind).code(), Code::Cancelled);
    let unknown = error(&send(&server, step(5, ".", 5)));
    assert!(unknown.message().contains("must specify the START flag"), "{unknown}");
    gate.open();
    gate.check_and_open(&["0 1 0 5 2 1"]);
    assert_eq!((value(&running), value(&waits)), (1, 3));
    wait_until_empty(&server);
}

#[test]
fn cancelling_an_executing_request_changes_nothing() {
    let (gate, backend) = Gate::with_backend(add);
    let server = ServerSetup::new(config(4, DIRECT, ONE_INSTANCE), backend).serve();
    let token = CancelToken::new();
    let running = send(&server, InferenceRequest { cancel: token.clone(), ..step(5, "+", 1) });
    gate.batch();
    token.cancel();
    gate.open();
    assert_eq!(value(&running), 1);
    let next = send(&server, step(5, ".", 2));
    gate.check_and_open(&["0 1 1 5 2 1"]);
    assert_eq!(value(&next), 3);
    wait_until_empty(&server);
}

#[test]
fn a_sequence_in_the_backlog_times_out_as_a_whole() {
    let (gate, backend) = Gate::with_backend(add);
    let server = ServerSetup::new(config(1, DIRECT, ONE_INSTANCE), backend).serve();
    let first = send(&server, step(1, "+", 1));
    gate.batch();
    let waits = send(&server, step(2, "+", 1));
    let hurries = InferenceRequest { timeout_microseconds: 1_000, ..step(2, "", 2) };
    let hurries = send(&server, hurries);
    for inbox in [&waits, &hurries] {
        let status = error(inbox);
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.message(), "timeout of the corresponding sequence has been expired");
    }
    gate.open();
    assert_eq!(value(&first), 1);
    // A timeout applies only in the backlog.
    let hurries = InferenceRequest { timeout_microseconds: 1, ..step(1, ".", 2) };
    let hurries = send(&server, hurries);
    gate.check_and_open(&["0 1 1 1 2 1"]);
    assert_eq!(value(&hurries), 3);
    assert_eq!(server.statistics(None, None).unwrap()[0].failures, [2, 0, 0, 0]);
    wait_until_empty(&server);
}

#[test]
fn a_drain_ends_open_sequences_behind_their_queued_requests() {
    let (gate, backend) = Gate::with_backend(add);
    let server = ServerSetup::new(config(4, DIRECT, ONE_INSTANCE), backend).serve();
    let dispatcher = server.model("seq").dispatcher.clone();
    let first = send(&server, step(5, "+", 1));
    gate.batch();
    let second = send(&server, step(5, "", 2));
    let third = send(&server, step(5, "", 3));
    dispatcher.drain();
    for sent in [step(6, "+", 1), step(5, "", 4)] {
        let refused = error(&send(&server, sent));
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(refused.message().contains("has stopped accepting new"), "{refused:?}");
    }
    for _ in 0..3 {
        gate.open();
    }
    assert_eq!((value(&first), value(&second), value(&third)), (1, 3, 6));
    assert_eq!(server.unload_all(LONG), 0);
    assert_eq!(dispatcher.counts(), (0, 0, 0));
}

#[test]
fn a_drain_does_not_wait_for_idle_sequences() {
    let (gate, backend) = Gate::with_backend(add);
    let settings = "max_sequence_idle_microseconds: 3600000000 direct { }";
    let server = ServerSetup::new(config(1, settings, ONE_INSTANCE), backend).serve();
    let silent = send(&server, step(5, "+", 1));
    gate.batch();
    gate.open();
    assert_eq!(value(&silent), 1);
    let backlog = [send(&server, step(6, "+", 2)), send(&server, step(6, "", 3))];
    for _ in 0..2 {
        gate.open();
    }
    assert_eq!(server.unload_all(LONG), 0);
    assert_eq!(backlog.map(|inbox| value(&inbox)), [2, 5]);
}

#[test]
fn a_broken_scheduler_fails_queued_requests_and_takes_executing_ones_back() {
    let (gate, backend) = Gate::with_backend(add);
    let server = ServerSetup::new(config(4, DIRECT, ONE_INSTANCE), backend).serve();
    let running = send(&server, step(5, "+", 1));
    gate.batch();
    let waits = send(&server, step(5, "", 2));
    let model = server.model("seq");
    model.dispatcher.break_scheduler();
    assert_eq!(error(&waits).code(), Code::Internal);
    assert_eq!(error(&send(&server, step(6, "+", 2))).code(), Code::Internal);
    gate.open();
    assert_eq!(value(&running), 1);
    assert_eq!(server.unload_all(LONG), 0);
    assert_eq!(model.dispatcher.counts(), (0, 0, 0));
}

#[test]
fn the_status_says_what_slots_and_backlog_wait_for() {
    let (gate, backend) = Gate::with_backend(add);
    let text = config(1, DIRECT, TWO_INSTANCES);
    let server = ServerSetup::new(text, backend).serve();
    let rests = send(&server, step(1, "+", 1));
    gate.check_and_open(&["1 1 0 1 1 0"]);
    value(&rests);
    let runs = send(&server, step(2, "+", 1));
    gate.batch();
    let waits = send(&server, step(2, "", 1));
    let mut named = step(3, "+", 1);
    named.timeout_microseconds = 3_600_000_000;
    let backlogged = send(&server, named);
    // The status is complete once the first request's lane is free.
    wait_until(&server, "a free instance", |dispatcher| {
        let lanes = dispatcher.lane_states();
        lanes.iter().any(|lane| matches!(lane, InstanceStatus::Free { .. }))
    });
    let model = server.model("seq");
    let mut status: Value =
        serde_json::from_str(&model.report_json("scheduler", None).unwrap()).unwrap();
    let backlog = status["sequences"]["backlog"][0]["waits_for"].take();
    assert!(backlog["remaining_us"].as_u64().unwrap() <= 3_600_000_000, "{backlog}");
    let slots = status["sequences"]["slots"].take();
    assert!(slots[0]["waits_for"]["remaining_us"].is_u64(), "{slots}");
    let brief: Vec<_> = slots.as_array().unwrap().iter().map(brief).collect();
    assert_eq!(brief, ["seq_0_0/0 waits for request", "seq_0_1/0 waits for execution"]);
    assert!(status["sequences"]["backlog"][0]["sequence"].is_u64());
    let shown = model.report_json("scheduler", None).unwrap();
    assert!(!shown.contains("correlation"), "{shown}");
    assert_eq!(status["sequences"]["free_slots"], 0);
    let instances = status["instances"].as_array().unwrap();
    let states: Vec<_> = instances.iter().map(|one| one["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["free", "busy"]);
    gate.open();
    gate.check_and_open(&["0 1 0 2 1 1"]);
    assert_eq!((value(&runs), value(&waits)), (1, 2));
    drop(backlogged);
}

fn brief(slot: &Value) -> String {
    let text = |value: &Value| String::from(value.as_str().unwrap());
    format!(
        "{}/{} waits for {}",
        text(&slot["instance"]),
        slot["slot"],
        text(&slot["waits_for"]["reason"])
    )
}

#[test]
fn requests_can_be_held_until_slots_and_backlog_are_filled() {
    let (gate, backend) = Gate::with_backend(add);
    let text = config(2, DIRECT, ONE_INSTANCE);
    let server = ServerSetup::new(text, backend).hold(2, 2).serve();
    let held =
        [(1, "+."), (2, "+."), (3, "+")].map(|(id, flags)| send(&server, step(id, flags, 1)));
    let model = server.model("seq");
    assert!(matches!(model.dispatcher.lane_states()[0], InstanceStatus::Free { .. }));
    let last = send(&server, step(3, ".", 1));
    gate.check_and_open(&["1 1 1 1 1 0", "1 1 1 2 1 0"]);
    gate.check_and_open(&["1 1 0 3 1 0"]);
    gate.check_and_open(&["0 1 1 3 1 1"]);
    assert_eq!(held.iter().chain([&last]).map(value).collect::<Vec<_>>(), [1, 1, 1, 2]);
    wait_until_empty(&server);
}
