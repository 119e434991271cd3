//! The server load, as reported by language models in their metrics.

use galatea_codec_http::OrcaLoadReport;
use galatea_telemetry::{CustomFamilySnapshot, SeriesValue};

/// The gauges of TensorRT-LLM's KV cache, distinguished by the label `kv_cache_block_type`.
const FAMILY: &str = "nv_trt_llm_kv_cache_block_metrics";

/// Builds the report from these families; `None` unless all three cache gauges are present. With
/// several models, the last one wins, as in Triton.
pub(crate) fn load_report(families: &[CustomFamilySnapshot]) -> Option<OrcaLoadReport> {
    let family = families.iter().find(|family| family.name == FAMILY)?;
    let gauge = |wanted: &str| {
        let is_wanted =
            |(name, value): &(String, String)| name == "kv_cache_block_type" && value == wanted;
        let mut series = family.series.iter().rev();
        let (_, value) = series.find(|(labels, _)| labels.iter().any(is_wanted))?;
        match value {
            SeriesValue::Number(number) => Some(*number).filter(|number| *number >= 0.0),
            SeriesValue::Histogram(_) => None,
        }
    };
    let (tokens, used, all) = (gauge("tokens_per")?, gauge("used")?, gauge("max")?);
    let kv_cache_utilization = if all > 0.0 { used / all } else { 0.0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let max_token_capacity = (all * tokens) as u64;
    Some(OrcaLoadReport { kv_cache_utilization, max_token_capacity })
}

#[cfg(test)]
mod tests {
    use galatea_telemetry::MetricKind;

    use super::*;

    #[track_caller]
    fn check(gauges: &[(&str, f64)], expected: Option<(f64, u64)>) {
        let label = |value: &str| (String::from("kv_cache_block_type"), String::from(value));
        let series = gauges.iter().map(|(kind, value)| {
            let model = (String::from("model"), String::from("m"));
            (vec![label(kind), model], SeriesValue::Number(*value))
        });
        let family = CustomFamilySnapshot {
            name: String::from(FAMILY),
            help: String::new(),
            kind: MetricKind::Gauge,
            series: series.collect(),
        };
        let report = load_report(&[family]);
        let found = report.map(|report| (report.kv_cache_utilization, report.max_token_capacity));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_report_needs_all_gauges() {
        let all = [("tokens_per", 64.0), ("used", 25.0), ("max", 100.0), ("free", 75.0)];
        check(&all, Some((0.25, 6400)));
        for (missing, _) in &all[..3] {
            let rest: Vec<_> = all.into_iter().filter(|(kind, _)| kind != missing).collect();
            check(&rest, None);
        }
        check(&[("tokens_per", -1.0), ("used", 1.0), ("max", 1.0)], None);
        check(&[("tokens_per", f64::NAN), ("used", 1.0), ("max", 1.0)], None);
        check(&[("tokens_per", 64.0), ("used", 0.0), ("max", 0.0)], Some((0.0, 0)));
        assert_eq!(load_report(&[]), None);
    }

    #[test]
    fn the_last_model_counts() {
        let first = [("tokens_per", 64.0), ("used", 1.0), ("max", 2.0)];
        let second = [("tokens_per", 32.0), ("used", 3.0), ("max", 4.0)];
        check(&[first, second].concat(), Some((0.75, 128)));
    }
}
