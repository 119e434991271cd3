//! Encodes readings as server-sent events.
//!
//! The page's script `page/model.js` reads this format. Times are microseconds since the recording
//! began unless a name says otherwise.

use std::time::Duration;

use bytes::Bytes;
use galatea_control::{
    ActivityReading, DurationStatistic, ExecutionInterval, GenerationReading, InferenceStatistics,
    InstanceActivity, ModelMeasurements, ModelStatistics, VersionActivity,
};
use galatea_gate::ledger::MemoryLedger;
use galatea_infer::FailureReason;
use serde_json::{Map, Value, json};

use crate::history::{History, distribution};

/// The first event that a watcher receives.
pub(crate) fn hello(allows_model_control: bool, period: Duration) -> Bytes {
    event(
        "hello",
        &json!({
            "model_control": allows_model_control,
            "period_ms": u64::try_from(period.as_millis()).unwrap_or(u64::MAX),
        }),
    )
}

/// The last fifteen minutes, for a new watcher.
pub(crate) fn history(history: &History) -> Bytes {
    event("history", &history.all())
}

/// The samples of the last five seconds.
pub(crate) fn latest_history(history: &History) -> Bytes {
    event("sample", &history.last())
}

/// The number of events that the watcher has missed.
pub(crate) fn lost(count: u64) -> Bytes {
    event("lost", &json!({ "events": count }))
}

/// The state of the server, and the activity of its instances since the last frame. `generation`
/// has the models that have generated text.
pub(crate) fn encode(
    reading: &ActivityReading,
    ledger: &MemoryLedger,
    gpus: &Value,
    generation: &[GenerationReading],
) -> Bytes {
    let measured = reading.versions.iter().find_map(|one| distribution(&one.statistics));
    event(
        "frame",
        &json!({
            "at_us": micros(reading.at),
            "memory": {
                "held": ledger.held(),
                "limit": ledger.limit(),
                "refused": ledger.refusals(),
                "connection_peak": ledger.account_peak(),
            },
            "gpus": gpus,
            "latency_bounds_s": measured.map(|latency| &latency.bounds),
            "models": reading
                .versions
                .iter()
                .map(|one| version(one, generation))
                .collect::<Vec<_>>(),
            "omitted_models": reading.omitted,
        }),
    )
}

/// Encodes an event. JSON has no line breaks outside strings and escapes those inside them.
fn event(name: &str, data: &Value) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

fn version(version: &VersionActivity, generation: &[GenerationReading]) -> Value {
    let statistics = &version.statistics;
    let generation = generation.iter().find(|one| *one.model == *statistics.name);
    let queue = &version.queue;
    json!({
        "name": &*statistics.name,
        "namespace": statistics.namespace.as_deref(),
        "version": statistics.version.to_string(),
        "platform": version.platform,
        "max_batch_size": version.max_batch_size,
        "last_inference_ms": statistics.last_inference_ms,
        "inferences": statistics.inference_count,
        "executions": statistics.execution_count,
        "stages": stages(&statistics.inference),
        "latency": distribution(statistics).map(|latency| &latency.counts),
        "failures": failures(statistics),
        "closed": counts(statistics.measurements.counts_by_reason(ModelMeasurements::CLOSED_BATCHES)),
        "unexecuted": counts(statistics.measurements.counts_by_reason(ModelMeasurements::UNEXECUTED)),
        "batches": statistics
            .batches
            .iter()
            .map(|batch| json!([batch.batch_size, batch.compute_infer.count]))
            .collect::<Vec<_>>(),
        "held_bytes": statistics.held_bytes,
        "memory": statistics
            .memory
            .iter()
            .map(|usage| json!([usage.kind.name(), usage.id, usage.byte_size]))
            .collect::<Vec<_>>(),
        "queue": {
            "waiting": queue.waiting,
            "oldest_us": micros(queue.oldest),
            "waits_for": queue.waits_for,
        },
        "sequences": version.sequences.map(|sequences| json!({
            "taken_slots": sequences.taken_slots,
            "free_slots": sequences.free_slots,
            "backlog": sequences.backlog,
        })),
        "instances": version.instances.iter().map(instance).collect::<Vec<_>>(),
        "generation": generation.map(tokens),
    })
}

/// Encodes the numbers of tokens, and the times to the first token as counts by bound.
fn tokens(generation: &GenerationReading) -> Value {
    json!({
        "tokens": generation.tokens,
        "prompt_tokens": generation.prompt_tokens,
        "first_bounds_s": generation.first_token.bounds,
        "first": generation.first_token.counts,
    })
}

/// Encodes each stage as its number of requests and its total nanoseconds.
fn stages(stages: &InferenceStatistics) -> Value {
    let pair = |one: DurationStatistic| json!([one.count, one.ns]);
    json!({
        "success": pair(stages.success),
        "fail": pair(stages.fail),
        "queue": pair(stages.queue),
        "input": pair(stages.compute_input),
        "infer": pair(stages.compute_infer),
        "output": pair(stages.compute_output),
        "cache_hit": pair(stages.cache_hit),
        "cache_miss": pair(stages.cache_miss),
    })
}

fn failures(statistics: &ModelStatistics) -> Value {
    let labels = FailureReason::ALL.iter().map(|reason| reason.label().to_ascii_lowercase());
    let counted = labels.zip(statistics.failures).map(|(label, count)| (label, json!(count)));
    Value::Object(counted.collect::<Map<_, _>>())
}

/// Encodes the counts in order. The position of a reason is its bit in the reasons of executions.
fn counts(counts: &[(&str, u64)]) -> Value {
    counts.iter().map(|(reason, count)| json!([reason, count])).collect()
}

fn instance(instance: &InstanceActivity) -> Value {
    json!({
        "name": instance.name,
        "current": instance.current.as_ref().map(execution),
        "ended": instance.ended.iter().map(execution).collect::<Vec<_>>(),
        "lost": instance.lost,
    })
}

/// Encodes the beginning, end, number, batch size, busy time, waiting time, and the reasons as
/// bits.
fn execution(execution: &ExecutionInterval) -> Value {
    json!([
        micros(execution.begin),
        micros(execution.end),
        execution.count,
        execution.batch_size,
        micros(execution.busy),
        micros(execution.waited),
        execution.reasons.bits(),
    ])
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use galatea_control::{BatchCloseReasons, HistogramReading, QueueActivity};

    use super::*;

    fn data(event: &Bytes, name: &str) -> Value {
        let text = std::str::from_utf8(event).unwrap();
        let data = text.strip_prefix(&format!("event: {name}\ndata: ")).unwrap();
        let line = data.strip_suffix("\n\n").unwrap();
        assert!(!line.contains('\n'), "an event has one line of data: {line}");
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn names_and_texts_stay_on_one_line() {
        let statistics =
            ModelStatistics { name: "a\r\n\ndata: <b>\"".into(), ..Default::default() };
        let version = VersionActivity { statistics, ..Default::default() };
        let reading = ActivityReading { versions: vec![version], ..Default::default() };
        let frame = data(&encode(&reading, &MemoryLedger::new(None), &json!([]), &[]), "frame");
        assert_eq!(frame["models"][0]["name"], "a\r\n\ndata: <b>\"");
        assert_eq!(frame["memory"]["limit"], Value::Null);
    }

    #[test]
    fn executions_have_their_reasons() {
        let execution = ExecutionInterval {
            begin: Duration::from_millis(1),
            end: Duration::from_millis(3),
            count: 2,
            batch_size: 5,
            busy: Duration::from_micros(1_500),
            waited: Duration::from_micros(7),
            reasons: BatchCloseReasons::only(0).union(BatchCloseReasons::only(3)),
        };
        let instance = InstanceActivity {
            name: "m_0_0".into(),
            current: Some(execution),
            ended: vec![execution],
            lost: 4,
        };
        let queue = QueueActivity {
            waiting: 3,
            oldest: Duration::from_millis(2),
            waits_for: Some("instance"),
        };
        let version = VersionActivity { instances: vec![instance], queue, ..Default::default() };
        let reading = ActivityReading { versions: vec![version], omitted: 1, ..Default::default() };
        let frame = data(&encode(&reading, &MemoryLedger::new(Some(10)), &json!([]), &[]), "frame");
        let shown = json!([1_000, 3_000, 2, 5, 1_500, 7, 0b1001]);
        let expected = json!({ "name": "m_0_0", "current": shown, "ended": [shown], "lost": 4 });
        let model = &frame["models"][0];
        assert_eq!(model["instances"][0], expected);
        let queue = json!({ "waiting": 3, "oldest_us": 2_000, "waits_for": "instance" });
        assert_eq!(model["queue"], queue);
        assert_eq!((&frame["omitted_models"], &frame["memory"]["limit"]), (&json!(1), &json!(10)));
    }

    #[test]
    fn only_the_model_that_generates_text_has_tokens() {
        let named = |name: &str| VersionActivity {
            statistics: ModelStatistics { name: name.into(), ..Default::default() },
            ..Default::default()
        };
        let first_token =
            HistogramReading { bounds: vec![0.1, 0.5], counts: vec![4, 1, 0], sum: 0.6 };
        let generation = GenerationReading {
            model: String::from("llm"),
            first_token,
            between_tokens: HistogramReading::default(),
            tokens: 70,
            prompt_tokens: 9,
        };
        let versions = vec![named("mlp"), named("llm")];
        let reading = ActivityReading { versions, ..Default::default() };
        let event = encode(&reading, &MemoryLedger::new(None), &json!([]), &[generation]);
        let frame = data(&event, "frame");
        assert_eq!(frame["models"][0]["generation"], Value::Null);
        let tokens = json!({
            "tokens": 70, "prompt_tokens": 9, "first_bounds_s": [0.1, 0.5], "first": [4, 1, 0],
        });
        assert_eq!(frame["models"][1]["generation"], tokens);
    }

    #[test]
    fn failures_are_named() {
        let statistics = ModelStatistics { failures: [1, 2, 3, 4], ..Default::default() };
        let expected = json!({ "rejected": 1, "canceled": 2, "backend": 3, "other": 4 });
        assert_eq!(failures(&statistics), expected);
    }

    #[test]
    fn a_greeting_says_what_is_allowed() {
        let hello = data(&hello(true, Duration::from_millis(500)), "hello");
        assert_eq!(hello, json!({ "model_control": true, "period_ms": 500 }));
        assert_eq!(data(&lost(3), "lost"), json!({ "events": 3 }));
    }
}
