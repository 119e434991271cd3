use galatea_explain::{
    BatchFacts, DetailLevel, Milestone, QueueSnapshot, RequestFacts, STEPS_MAX, WaitReason,
};

use super::*;

const MS: u64 = 1_000_000;

/// Facts about a request that passed these marks after these numbers of milliseconds.
fn facts(marks: &[(Milestone, u64)]) -> RequestFacts {
    let mut facts = RequestFacts::default();
    (facts.model, facts.version) = (String::from("m"), 1);
    for (mark, ms) in marks {
        facts.set_milestone(*mark, ms * MS);
    }
    facts
}

/// A request queued after 1 ms, executed for 5 ms starting at `closed`, with a response 3 ms later.
fn executed(closed: u64) -> RequestFacts {
    let after = |ms: u64| closed + ms;
    facts(&[
        (Milestone::Received, 0),
        (Milestone::Arrived, 0),
        (Milestone::Queued, 1),
        (Milestone::Closed, closed),
        (Milestone::Started, closed),
        (Milestone::InputsReady, after(1)),
        (Milestone::Computed, after(4)),
        (Milestone::Ended, after(5)),
        (Milestone::Answered, after(5)),
        (Milestone::Delivered, after(5)),
        (Milestone::TakenUp, after(6)),
        (Milestone::Encoded, after(8)),
    ])
}

#[track_caller]
fn check_cause(facts: &RequestFacts, expected: &str) {
    let verdict = LatencyVerdict::for_request(facts, DetailLevel::Schedule);
    assert_eq!(format!("{} {}", verdict.cause.name(), verdict.ns / MS), expected, "{facts:?}");
}

/// A request that waited in its queue for 100 ms for this reason.
fn waited(wait: WaitReason) -> RequestFacts {
    let mut facts = executed(101);
    facts.waits.add(wait, 100 * MS);
    facts
}

#[test]
fn each_wait_has_a_cause() {
    for (wait, expected) in [
        (WaitReason::Instance, "too_few_instances 100"),
        (WaitReason::Shape, "shape_split 100"),
        (WaitReason::BatchDelay, "queue_delay 100"),
        (WaitReason::Window, "deadline_window 100"),
        (WaitReason::Permit, "rate_limiter 100"),
        (WaitReason::Slot, "sequence_slot 100"),
        (WaitReason::Predecessor, "sequence_order 100"),
        (WaitReason::Hold, "hold 100"),
    ] {
        check_cause(&waited(wait), expected);
        // A client that may not see other clients' work learns only that it waited.
        assert_eq!(
            LatencyVerdict::for_request(&waited(wait), DetailLevel::Own).cause,
            LatencyCause::Queue
        );
    }
    check_cause(&executed(101), "queue 100");
}

#[test]
fn the_first_execution_after_a_load_is_cold() {
    let batch = BatchFacts {
        requests: 1,
        rows: 1,
        padding_rows: 0,
        closed: "instance_idle",
        is_first: true,
    };
    let mut first = executed(2);
    check_cause(&first, "execution 5");
    first.batch = Some(batch);
    check_cause(&first, "cold_load 5");
    first.is_warm = true;
    check_cause(&first, "execution 5");
    // A request that waits for a cold instance waits for the load.
    let mut behind = waited(WaitReason::Instance);
    behind.queued =
        Some(QueueSnapshot { behind_first: true, instances: 1, ..QueueSnapshot::default() });
    check_cause(&behind, "cold_load 100");
    behind.queued = Some(QueueSnapshot { instances: 0, ..QueueSnapshot::default() });
    check_cause(&behind, "cold_load 100");
    behind.is_warm = true;
    check_cause(&behind, "too_few_instances 100");
}

#[test]
fn rows_of_padding_are_no_execution() {
    let mut padded = executed(2);
    let batch =
        BatchFacts { requests: 1, rows: 4, padding_rows: 3, closed: "delay", is_first: false };
    padded.batch = Some(batch);
    check_cause(&padded, "padding 3");
    let mut long = facts(&[(Milestone::Started, 0), (Milestone::Answered, 100)]);
    long.batch = Some(batch);
    check_cause(&long, "padding 75");
}

#[test]
fn threads_that_are_not_free_are_named() {
    let marks = [(Milestone::Closed, 1), (Milestone::Started, 50), (Milestone::Answered, 60)];
    check_cause(&facts(&marks), "thread_starvation 49");
    let marks = [
        (Milestone::Started, 1),
        (Milestone::Answered, 2),
        (Milestone::Delivered, 2),
        (Milestone::TakenUp, 40),
    ];
    check_cause(&facts(&marks), "thread_starvation 39");
}

#[test]
fn a_body_takes_as_long_as_its_client_unless_it_is_large() {
    let mut slow = facts(&[(Milestone::Received, 300), (Milestone::Arrived, 301)]);
    check_cause(&slow, "slow_client 300");
    slow.input_bytes = 10 << 20;
    check_cause(&slow, "slow_client 300");
    slow.input_bytes = 100 << 20;
    check_cause(&slow, "large_copy 301");
    let quick = facts(&[(Milestone::Received, 1), (Milestone::Arrived, 1)]);
    check_cause(&quick, "coding 1");
}

#[test]
fn moving_large_tensors_is_a_copy() {
    let mut large =
        facts(&[(Milestone::Received, 1), (Milestone::Arrived, 30), (Milestone::Answered, 31)]);
    check_cause(&large, "coding 30");
    large.input_bytes = 64 << 20;
    check_cause(&large, "large_copy 31");
    let mut shared = facts(&[(Milestone::Arrived, 1), (Milestone::Queued, 31)]);
    check_cause(&shared, "admission 30");
    shared.input_bytes = 64 << 20;
    check_cause(&shared, "large_copy 31");
    let mut output = executed(2);
    output.output_bytes = 64 << 20;
    check_cause(&output, "execution 4");
    let mut encoded = facts(&[(Milestone::TakenUp, 1), (Milestone::Encoded, 40)]);
    check_cause(&encoded, "coding 39");
    encoded.output_bytes = 64 << 20;
    check_cause(&encoded, "large_copy 39");
}

#[test]
fn an_ensemble_is_explained_by_its_longest_step() {
    let mut ensemble = executed(2);
    ensemble.steps = vec![executed(2), waited(WaitReason::Permit)];
    ensemble.steps[0].model = String::from("short");
    ensemble.steps[1].model = String::from("long");
    let verdict = LatencyVerdict::for_request(&ensemble, DetailLevel::Schedule);
    assert_eq!((verdict.cause, verdict.step), (LatencyCause::RateLimiter, Some("long")));
    // Time spent around the steps counts if it is longer.
    let mut waiting = waited(WaitReason::BatchDelay);
    waiting.steps = ensemble.steps;
    let verdict = LatencyVerdict::for_request(&waiting, DetailLevel::Schedule);
    assert_eq!((verdict.cause, verdict.step), (LatencyCause::QueueDelay, None));
}

#[test]
fn causes_have_names_of_their_own() {
    let names: std::collections::BTreeSet<_> =
        LatencyCause::ALL.iter().map(|cause| cause.name()).collect();
    assert_eq!(names.len(), LatencyCause::ALL.len());
    for (place, cause) in LatencyCause::ALL.into_iter().enumerate() {
        assert_eq!(cause as usize, place);
    }
}

#[test]
fn texts_are_headers() {
    let mut told = waited(WaitReason::BatchDelay);
    told.model = String::from("größe \"1\"\n");
    told.queued = Some(QueueSnapshot {
        requests_ahead: 3,
        instances: 2,
        busy: 1,
        ..QueueSnapshot::default()
    });
    told.batch = Some(BatchFacts {
        requests: 4,
        rows: 8,
        padding_rows: 0,
        closed: "delay",
        is_first: false,
    });
    let expected = "{\"model\":\"gr\\u00f6\\u00dfe \\\"1\\\"\\u000a\",\"version\":\"1\",\
        \"total_us\":109000,\
        \"cause\":{\"name\":\"queue_delay\",\"us\":100000,\
        \"words\":\"the batch waited to grow, up to its delay\"},\
        \"stages_us\":{\"receive\":0,\"decode\":0,\"admit\":1000,\"queue\":100000,\
        \"hand_over\":0,\"input\":1000,\"compute\":3000,\"output\":1000,\"respond\":0,\
        \"reply\":1000,\"encode\":2000},\
        \"waits_us\":{\"batch_delay\":100000},\
        \"ahead\":{\"requests\":3,\"instances\":2,\"busy\":1,\"running_us\":0},\
        \"batch\":{\"requests\":4,\"rows\":8,\"closed\":\"delay\"}}";
    assert_eq!(text::json(&told, DetailLevel::Schedule), expected);
    let own = text::json(&told, DetailLevel::Own);
    for hidden in ["waits_us", "ahead", "batch", "delay"] {
        assert!(!own.contains(hidden), "{own}");
    }
    assert_eq!(
        text::server_timing(
            &facts(&[(Milestone::Received, 1), (Milestone::Started, 4)]),
            DetailLevel::Schedule
        ),
        "receive;dur=1.000, hand_over;dur=3.000, total;dur=4.000, \
         cause;dur=3.000;desc=\"thread_starvation\""
    );
}

#[test]
fn long_explanations_leave_steps_out() {
    let mut ensemble = executed(2);
    ensemble.steps = vec![executed(2); STEPS_MAX];
    let json = text::json(&ensemble, DetailLevel::Schedule);
    assert!(json.len() <= 4096 && json.contains("\"steps_omitted\":"), "{}", json.len());
    assert_eq!(json.matches('{').count(), json.matches('}').count());
    ensemble.model = "\u{1}".repeat(256);
    ensemble.steps.iter_mut().for_each(|step| step.model.clone_from(&ensemble.model));
    let json = text::json(&ensemble, DetailLevel::Schedule);
    assert!(json.len() <= 4096 && json.is_ascii(), "{}", json.len());
}

#[test]
fn the_cause_of_all_requests_is_their_longest_wait() {
    let mut waits = WaitTimes::default();
    waits.add(WaitReason::Permit, 5);
    assert_eq!(main_cause_of_model(&waits, 5), (LatencyCause::Execution, 5));
    assert_eq!(main_cause_of_model(&waits, 4), (LatencyCause::RateLimiter, 5));
    waits.add(WaitReason::Instance, 6);
    assert_eq!(main_cause_of_model(&waits, 4), (LatencyCause::TooFewInstances, 6));
}
