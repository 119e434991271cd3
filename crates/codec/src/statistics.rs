//! Encodes statistics as JSON.

use galatea_control::{
    BatchStatistics, DurationStatistic, InferenceStatistics, ModelStatistics, ResponseStatistics,
};
use galatea_infer::MemoryUsage;

use crate::json::{push_json_array, push_json_i64, push_json_string, push_json_u64};

/// Encodes the statistics of model versions.
#[must_use]
pub fn encode_statistics_json(models: &[ModelStatistics]) -> Vec<u8> {
    let mut json = Vec::with_capacity(1024);
    json.extend_from_slice(b"{\"model_stats\":");
    push_json_array(&mut json, models, push_model);
    json.push(b'}');
    json
}

fn push_model(json: &mut Vec<u8>, model: &ModelStatistics) {
    json.extend_from_slice(b"{\"name\":");
    push_json_string(json, model.name.as_bytes());
    json.extend_from_slice(b",\"version\":\"");
    push_json_i64(json, model.version);
    json.extend_from_slice(b"\",\"last_inference\":");
    push_json_u64(json, model.last_inference_ms);
    json.extend_from_slice(b",\"inference_count\":");
    push_json_u64(json, model.inference_count);
    json.extend_from_slice(b",\"execution_count\":");
    push_json_u64(json, model.execution_count);
    json.extend_from_slice(b",\"inference_stats\":");
    push_inference(json, &model.inference);
    json.extend_from_slice(b",\"response_stats\":{");
    for (index, responses) in model.responses.iter().enumerate() {
        json.extend_from_slice(if index == 0 { b"\"" } else { b",\"" });
        push_json_u64(json, u64::try_from(index).unwrap_or(u64::MAX));
        json.extend_from_slice(b"\":");
        push_responses(json, responses);
    }
    json.extend_from_slice(b"},\"batch_stats\":");
    push_json_array(json, &model.batches, push_batch);
    json.extend_from_slice(b",\"memory_usage\":");
    push_json_array(json, &model.memory, push_memory);
    json.push(b'}');
}

fn push_memory(json: &mut Vec<u8>, usage: &MemoryUsage) {
    json.extend_from_slice(b"{\"type\":");
    push_json_string(json, usage.kind.name().as_bytes());
    json.extend_from_slice(b",\"id\":");
    push_json_i64(json, usage.id);
    json.extend_from_slice(b",\"byte_size\":");
    push_json_u64(json, usage.byte_size);
    json.push(b'}');
}

fn push_inference(json: &mut Vec<u8>, statistics: &InferenceStatistics) {
    let stages: [(&[u8], &DurationStatistic); 8] = [
        (b"{\"success\":", &statistics.success),
        (b",\"fail\":", &statistics.fail),
        (b",\"queue\":", &statistics.queue),
        (b",\"compute_input\":", &statistics.compute_input),
        (b",\"compute_infer\":", &statistics.compute_infer),
        (b",\"compute_output\":", &statistics.compute_output),
        (b",\"cache_hit\":", &statistics.cache_hit),
        (b",\"cache_miss\":", &statistics.cache_miss),
    ];
    push_durations(json, &stages);
}

fn push_responses(json: &mut Vec<u8>, responses: &ResponseStatistics) {
    let stages: [(&[u8], &DurationStatistic); 6] = [
        (b"{\"compute_infer\":", &responses.compute_infer),
        (b",\"compute_output\":", &responses.compute_output),
        (b",\"success\":", &responses.success),
        (b",\"fail\":", &responses.fail),
        (b",\"empty_response\":", &responses.empty_response),
        (b",\"cancel\":", &responses.cancel),
    ];
    push_durations(json, &stages);
}

fn push_batch(json: &mut Vec<u8>, batch: &BatchStatistics) {
    json.extend_from_slice(b"{\"batch_size\":");
    push_json_u64(json, batch.batch_size);
    let stages: [(&[u8], &DurationStatistic); 3] = [
        (b",\"compute_input\":", &batch.compute_input),
        (b",\"compute_infer\":", &batch.compute_infer),
        (b",\"compute_output\":", &batch.compute_output),
    ];
    push_durations(json, &stages);
}

/// Appends each duration after its label and closes the object.
fn push_durations(json: &mut Vec<u8>, stages: &[(&[u8], &DurationStatistic)]) {
    for (label, duration) in stages {
        json.extend_from_slice(label);
        json.extend_from_slice(b"{\"count\":");
        push_json_u64(json, duration.count);
        json.extend_from_slice(b",\"ns\":");
        push_json_u64(json, duration.ns);
        json.push(b'}');
    }
    json.push(b'}');
}
