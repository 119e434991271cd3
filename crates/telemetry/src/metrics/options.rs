//! The families to show, and the `--metrics-config` settings.

use std::time::Duration;

/// The families that the exporter shows.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricsOptions {
    /// True if durations are shown as counters. If false, request and execution counters also stay
    /// at 0, as in Triton.
    pub counter_latencies: bool,
    /// True if the time to the first response is recorded as a histogram.
    pub histogram_latencies: bool,
    /// True if durations are recorded as summaries.
    pub summary_latencies: bool,
    /// The quantiles of the summaries.
    pub summary_quantiles: Vec<f64>,
    /// True if durations and batch sizes are recorded as histograms that can be added up across
    /// servers. Triton has no such setting.
    pub galatea_histograms: bool,
    /// True if processor and memory use is shown.
    pub cpu: bool,
    /// True if GPU use is shown.
    pub gpu: bool,
    /// The interval setting for readings of the machine's gauges. Like Triton, the server reads
    /// twice per interval.
    pub interval: Duration,
}

impl Default for MetricsOptions {
    fn default() -> Self {
        Self {
            counter_latencies: true,
            histogram_latencies: false,
            summary_latencies: false,
            summary_quantiles: vec![0.5, 0.9, 0.95, 0.99, 0.999],
            galatea_histograms: false,
            cpu: true,
            gpu: true,
            interval: Duration::from_millis(2_000),
        }
    }
}

/// A note about an unusual setting that was accepted anyway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingWarning(pub String);

impl MetricsOptions {
    /// Applies a `--metrics-config SETTING=VALUE` setting.
    ///
    /// Triton accepts any setting. Here, a setting without an effect is accepted with a note for
    /// the log. As in Triton, a later setting can't undo an earlier one.
    pub fn set(&mut self, setting: &str, value: &str) -> Vec<SettingWarning> {
        let note = |text: &str| {
            vec![SettingWarning(format!("the metrics setting '{setting}={value}' {text}"))]
        };
        let is_switch = matches!(value, "true" | "false");
        match (setting, value) {
            ("counter_latencies", "false") => self.counter_latencies = false,
            ("histogram_latencies", "true") => self.histogram_latencies = true,
            ("summary_latencies", "true") => self.summary_latencies = true,
            ("galatea_histograms", "true") => self.galatea_histograms = true,
            (
                "counter_latencies"
                | "histogram_latencies"
                | "summary_latencies"
                | "galatea_histograms",
                _,
            ) => {
                if !is_switch {
                    return note("is neither true nor false; it changes nothing");
                }
            }
            ("summary_quantiles", _) => return self.set_quantiles(value),
            _ => return note("is unknown and changes nothing"),
        }
        Vec::new()
    }

    /// Parses `QUANTILE:ERROR,…`. As in Triton, invalid pairs are left out, and the quantiles stay
    /// unchanged if no pair is valid.
    fn set_quantiles(&mut self, value: &str) -> Vec<SettingWarning> {
        let mut notes = Vec::new();
        let mut quantiles = Vec::new();
        for pair in value.strip_suffix(',').unwrap_or(value).split(',') {
            let Some((quantile, error)) = pair.split_once(':') else {
                notes.push(SettingWarning(format!(
                    "Invalid option: [{pair}]. No ':' delimiter found. Expected format is \
                     <quantile>:<error>"
                )));
                continue;
            };
            match (leading_number(quantile), leading_number(error)) {
                (Some(quantile), Some(_)) => quantiles.push(quantile),
                _ => notes.push(SettingWarning(format!("Invalid option: [{pair}]. Error: stod"))),
            }
        }
        if !quantiles.is_empty() {
            self.summary_quantiles = quantiles;
        }
        notes
    }
}

/// The number at the start of a string. As in C++, the rest is ignored.
fn leading_number(text: &str) -> Option<f64> {
    let text = text.trim_start();
    let ends = text.char_indices().map(|(start, one)| start + one.len_utf8()).rev();
    ends.filter_map(|end| text.get(..end)?.parse().ok()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(settings: &[(&str, &str)], expected: &MetricsOptions, notes: &[&str]) {
        let mut options = MetricsOptions::default();
        let said = settings.iter().flat_map(|(setting, value)| options.set(setting, value));
        let said: Vec<String> = said.map(|SettingWarning(text)| text).collect();
        assert_eq!(said, notes);
        assert_eq!(&options, expected);
    }

    #[test]
    fn settings_turn_kinds_of_metrics_on_or_off() {
        let default = MetricsOptions::default;
        check(
            &[("counter_latencies", "false"), ("counter_latencies", "true")],
            &MetricsOptions { counter_latencies: false, ..default() },
            &[],
        );
        check(
            &[("summary_latencies", "true"), ("summary_latencies", "false")],
            &MetricsOptions { summary_latencies: true, ..default() },
            &[],
        );
        check(
            &[("histogram_latencies", "true"), ("galatea_histograms", "true")],
            &MetricsOptions { histogram_latencies: true, galatea_histograms: true, ..default() },
            &[],
        );
        check(
            &[("summary_latencies", "True"), ("colour", "red")],
            &default(),
            &[
                "the metrics setting 'summary_latencies=True' is neither true nor false; it \
                 changes nothing",
                "the metrics setting 'colour=red' is unknown and changes nothing",
            ],
        );
    }

    #[test]
    fn quantiles_are_read_as_triton_reads_them() {
        let quantiles = |value: &str, expected: &[f64], notes: &[&str]| {
            let summary_quantiles = expected.to_vec();
            let expected = MetricsOptions { summary_quantiles, ..MetricsOptions::default() };
            check(&[("summary_quantiles", value)], &expected, notes);
        };
        let default = [0.5, 0.9, 0.95, 0.99, 0.999];
        let lacks_colon = "Invalid option: [0.9]. No ':' delimiter found. Expected format is \
                           <quantile>:<error>";
        quantiles("0.5:0.05,0.99:0.001", &[0.5, 0.99], &[]);
        quantiles("0.5:0.05,", &[0.5], &[]);
        quantiles(" 1.5x:0y", &[1.5], &[]);
        quantiles("0.9,0.5:1", &[0.5], &[lacks_colon]);
        quantiles("0.9", &default, &[lacks_colon]);
        quantiles("x:1", &default, &["Invalid option: [x:1]. Error: stod"]);
        quantiles("1:", &default, &["Invalid option: [1:]. Error: stod"]);
    }
}
