//! Metric families kept by C code, such as backends.

use galatea_control::HistogramReading;

use super::distributions::histogram;
use super::text::{Exposition, Labels, MetricKind, Number};

/// A family's current state.
#[derive(Clone, Debug, PartialEq)]
pub struct CustomFamilySnapshot {
    /// The family's name, which must be a valid Prometheus name.
    pub name: String,
    /// The help text, which explains the values.
    pub help: String,
    /// The kind of the values.
    pub kind: MetricKind,
    /// The family's series by label.
    pub series: Vec<(Vec<(String, String)>, SeriesValue)>,
}

/// A series value.
#[derive(Clone, Debug, PartialEq)]
pub enum SeriesValue {
    /// A counter or gauge value.
    Number(f64),
    /// A histogram value.
    Histogram(HistogramReading),
}

/// Writes a family. Its series join the server's own family with that name, if one exists. Nothing
/// is written if the family has no series, or if the server's family has a different kind.
pub(super) fn render(text: &mut Exposition, family: &CustomFamilySnapshot) {
    if family.series.is_empty() {
        return;
    }
    let name = &family.name;
    let Some(block) = text.begin(name, &family.help, family.kind) else { return };
    for (labels, value) in &family.series {
        let labels = Labels::new(labels.clone());
        match value {
            SeriesValue::Number(value) => block.line(name, &labels, Number(*value)),
            SeriesValue::Histogram(value) => histogram(block, name, &labels, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: MetricKind, value: SeriesValue, labels: &[(&str, &str)], expected: &str) {
        let own = |(name, value): &(&str, &str)| (String::from(*name), String::from(*value));
        let family = CustomFamilySnapshot {
            name: String::from("f"),
            help: String::from("one\ntwo"),
            kind,
            series: vec![(labels.iter().map(own).collect(), value)],
        };
        let mut text = Exposition::default();
        render(&mut text, &family);
        assert_eq!(text.into_text(), expected);
    }

    #[test]
    fn numbers_are_spelled_as_prometheus_reads_them() {
        let head = "# HELP f one\\ntwo\n# TYPE f gauge\n";
        for (value, shown) in [
            (1.0, "1"),
            (-0.25, "-0.25"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "Nan"),
        ] {
            let expected = format!("{head}f {shown}\n");
            check(MetricKind::Gauge, SeriesValue::Number(value), &[], &expected);
        }
    }

    #[test]
    fn buckets_are_cumulative() {
        let value = HistogramReading { bounds: vec![0.5, 2.0], counts: vec![1, 2, 3], sum: 9.5 };
        let expected = "# HELP f one\\ntwo\n# TYPE f histogram\nf_count{m=\"a\"} 6\n\
                        f_sum{m=\"a\"} 9.5\nf_bucket{m=\"a\",le=\"0.5\"} 1\n\
                        f_bucket{m=\"a\",le=\"2\"} 3\nf_bucket{m=\"a\",le=\"+Inf\"} 6\n";
        check(MetricKind::Histogram, SeriesValue::Histogram(value), &[("m", "a")], expected);
    }

    #[test]
    fn a_family_without_series_is_left_out() {
        let mut text = Exposition::default();
        let (name, help) = (String::from("f"), String::new());
        let kind = MetricKind::Counter;
        render(&mut text, &CustomFamilySnapshot { name, help, kind, series: Vec::new() });
        assert_eq!(text.into_text(), "");
    }
}
