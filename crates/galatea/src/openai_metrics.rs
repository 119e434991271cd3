//! Metrics of the OpenAI endpoint.

use galatea_control::{GenerationReading, HistogramReading};
use galatea_http::OpenAiMeters;
use galatea_telemetry::{CustomFamilySnapshot, MetricKind, SeriesValue};

/// Returns the metrics of the endpoint.
pub(crate) fn families(meters: &OpenAiMeters) -> Vec<CustomFamilySnapshot> {
    let speeds = meters.read();
    if speeds.is_empty() {
        return Vec::new();
    }
    let family =
        |name: &str, help: &str, kind, value: &dyn Fn(&GenerationReading) -> SeriesValue| {
            let labels =
                |speed: &GenerationReading| vec![(String::from("model"), speed.model.clone())];
            CustomFamilySnapshot {
                name: name.to_owned(),
                help: help.to_owned(),
                kind,
                series: speeds.iter().map(|speed| (labels(speed), value(speed))).collect(),
            }
        };
    let histogram = |reading: &HistogramReading| SeriesValue::Histogram(reading.clone());
    vec![
        family(
            "galatea_openai_first_token_seconds",
            "Seconds from the arrival of a request to the first token of its stream",
            MetricKind::Histogram,
            &|speed| histogram(&speed.first_token),
        ),
        family(
            "galatea_openai_between_tokens_seconds",
            "Seconds between the tokens of a stream",
            MetricKind::Histogram,
            &|speed| histogram(&speed.between_tokens),
        ),
        family(
            "galatea_openai_tokens_total",
            "Tokens that were generated, or responses of models that don't count tokens",
            MetricKind::Counter,
            // This is exact below 2^53 tokens.
            &|speed| SeriesValue::Number(speed.tokens as f64),
        ),
        family(
            "galatea_openai_prompt_tokens_total",
            "Tokens in prompts, documents and texts to embed, for models that count them",
            MetricKind::Counter,
            &|speed| SeriesValue::Number(speed.prompt_tokens as f64),
        ),
    ]
}
