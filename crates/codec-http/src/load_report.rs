//! The load report that clients request with a header (Open Request Cost Aggregation).

use super::json::push_json_f64;

/// The format of a report.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OrcaLoadReportFormat {
    /// A list of names and values.
    Text,
    /// A JSON object.
    Json,
}

impl OrcaLoadReportFormat {
    /// Parses the format from the header `endpoint-load-metrics-format`. As in Triton, only these
    /// two spellings are known.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        match value {
            b"text" => Some(Self::Text),
            b"json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// The load of a language model's key-value cache.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct OrcaLoadReport {
    /// The fraction of the cache's blocks that are in use, from 0 to 1.
    pub kv_cache_utilization: f64,
    /// The maximum number of tokens in the cache.
    pub max_token_capacity: u64,
}

impl OrcaLoadReport {
    /// The value of the header `endpoint-load-metrics`.
    #[must_use]
    pub fn encode(&self, format: OrcaLoadReportFormat) -> String {
        let Self { kv_cache_utilization, max_token_capacity } = self;
        match format {
            OrcaLoadReportFormat::Text => format!(
                "TEXT named_metrics.kv_cache_utilization={kv_cache_utilization:.6}, \
                 named_metrics.max_token_capacity={max_token_capacity}"
            ),
            OrcaLoadReportFormat::Json => {
                let mut share = Vec::new();
                push_json_f64(&mut share, *kv_cache_utilization);
                format!(
                    "JSON {{\"named_metrics\":{{\"kv_cache_utilization\":{},\
                     \"max_token_capacity\":{max_token_capacity}}}}}",
                    String::from_utf8_lossy(&share)
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_spelled_as_in_triton() {
        let report = OrcaLoadReport { kv_cache_utilization: 0.25, max_token_capacity: 6400 };
        let encoded =
            |name: &[u8]| OrcaLoadReportFormat::parse(name).map(|form| report.encode(form));
        let text = "TEXT named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=6400";
        assert_eq!(encoded(b"text").as_deref(), Some(text));
        let json =
            r#"JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":6400}}"#;
        assert_eq!(encoded(b"json").as_deref(), Some(json));
        assert_eq!(encoded(b"JSON"), None);
        assert_eq!(encoded(b""), None);
    }
}
