//! The Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// The kind of a family's values.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Observations, counted by size.
    Histogram,
    /// Quantiles of observations.
    Summary,
}

impl MetricKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
        }
    }
}

/// A series' labels, already in their printed form.
#[derive(Clone, Debug)]
pub(super) struct Labels(Vec<(String, String)>);

impl Labels {
    /// Sorts labels into printing order, by the bytes of their names: tags, which begin with an
    /// underscore, come first.
    pub(super) fn new(mut labels: Vec<(String, String)>) -> Self {
        labels.sort();
        labels.dedup_by(|a, b| a.0 == b.0);
        Self(labels)
    }

    /// Adds a label at its sorted position.
    pub(super) fn with(&self, name: &str, value: &str) -> Self {
        let mut labels = self.0.clone();
        labels.push((name.to_owned(), value.to_owned()));
        Self::new(labels)
    }

    /// Adds a label at the end, for a bucket's bound or a quantile's fraction.
    pub(super) fn and_last(&self, name: &str, value: &str) -> Self {
        let mut labels = self.0.clone();
        labels.push((name.to_owned(), value.to_owned()));
        Self(labels)
    }

    fn render(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let pairs: Vec<String> =
            self.0.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
        format!("{{{}}}", pairs.join(","))
    }
}

/// A number as Triton prints it: with 16 digits, without trailing zeros.
pub(super) struct Number(pub(super) f64);

/// The number of printed digits.
const DIGITS: i32 = 16;

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_nan() {
            return f.write_str("Nan");
        }
        if self.0.is_infinite() {
            return f.write_str(if self.0 > 0.0 { "+Inf" } else { "-Inf" });
        }
        let rounded = format!("{:.15e}", self.0);
        let (digits, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
        let exponent: i32 = exponent.parse().unwrap_or_default();
        if (-4..DIGITS).contains(&exponent) {
            let decimals = usize::try_from(DIGITS - 1 - exponent).unwrap_or_default();
            return f.write_str(without_zeros(&format!("{:.decimals$}", self.0)));
        }
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(f, "{}e{sign}{:02}", without_zeros(digits), exponent.unsigned_abs())
    }
}

fn without_zeros(digits: &str) -> &str {
    match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    }
}

/// The text of all families. All series with the same name form one block.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    families: Vec<Family>,
    by_name: BTreeMap<String, usize>,
}

/// A family's block. Several sources may add series to it.
#[derive(Debug)]
pub(super) struct Family {
    kind: MetricKind,
    text: String,
    /// The range that earlier sources wrote.
    earlier: std::ops::Range<usize>,
}

impl Exposition {
    /// Writes a family with one value per label set; a family without values is left out.
    pub(super) fn family<V: Display>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricKind,
        series: impl IntoIterator<Item = (Labels, V)>,
    ) {
        let mut series = series.into_iter().peekable();
        if series.peek().is_none() {
            return;
        }
        let Some(family) = self.begin(name, help, kind) else { return };
        for (labels, value) in series {
            family.line(name, &labels, value);
        }
    }

    /// Writes a gauge with a single value and no labels.
    pub(super) fn single(&mut self, name: &str, help: &str, value: impl Display) {
        if let Some(family) = self.begin(name, help, MetricKind::Gauge) {
            family.line(name, &Labels::new(Vec::new()), value);
        }
    }

    /// The whole text.
    pub(super) fn into_text(self) -> String {
        self.families.into_iter().map(|family| family.text).collect()
    }

    /// Begins the block of a family, with the help text of its first source. Returns `None` if the
    /// family already exists with a different kind: a name has only one kind.
    pub(super) fn begin(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricKind,
    ) -> Option<&mut Family> {
        if let Some(&known) = self.by_name.get(name) {
            let family = self.families.get_mut(known).filter(|family| family.kind == kind)?;
            family.earlier.end = family.text.len();
            return Some(family);
        }
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let text = format!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.name());
        let earlier = text.len()..text.len();
        self.by_name.insert(name.to_owned(), self.families.len());
        self.families.push(Family { kind, text, earlier });
        self.families.last_mut()
    }
}

impl Family {
    /// Adds a value, unless an earlier source has added the same series.
    pub(super) fn line(&mut self, name: &str, labels: &Labels, value: impl Display) {
        let series = format!("{name}{} ", labels.render());
        let mut earlier = self.text.get(self.earlier.clone()).unwrap_or_default().lines();
        if !earlier.any(|line| line.starts_with(&series)) {
            self.text.push_str(&format!("{series}{value}\n"));
        }
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_sorted_by_bytes_and_escaped() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let labels = Labels::new(vec![
            pair("version", "1"),
            pair("model", "a\"b\\c\nd"),
            pair("_owner", "x"),
            pair("_Zone", "y"),
        ]);
        let expected = r#"{_Zone="y",_owner="x",model="a\"b\\c\nd",reason="OTHER",version="1"}"#;
        assert_eq!(labels.with("reason", "OTHER").render(), expected);
    }

    #[test]
    fn numbers_have_sixteen_digits_as_in_triton() {
        for (number, expected) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (100.0, "100"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (0.1 + 0.2, "0.3"),
            (1.0 / 3.0, "0.3333333333333333"),
            (1e15, "1000000000000000"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (9_007_199_254_740_991.0, "9007199254740991"),
            (-2.5, "-2.5"),
            (f64::NAN, "Nan"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(Number(number).to_string(), expected);
        }
    }

    #[test]
    fn a_family_without_series_is_left_out() {
        let mut text = Exposition::default();
        text.family("a", "nothing", MetricKind::Counter, Vec::<(Labels, u64)>::new());
        text.single("b", "something", 1.5);
        assert_eq!(text.into_text(), "# HELP b something\n# TYPE b gauge\nb 1.5\n");
    }

    #[test]
    fn equal_names_share_a_block_and_equal_labels_a_series() {
        let mut text = Exposition::default();
        let series = |model: &str, value: u64| {
            [(Labels::new(vec![("model".to_owned(), model.to_owned())]), value)]
        };
        text.family("a", "ours", MetricKind::Counter, series("x", 1));
        text.family("b", "between", MetricKind::Counter, series("x", 2));
        text.family("a", "theirs", MetricKind::Counter, series("y", 3));
        text.family("a", "theirs", MetricKind::Counter, series("x", 4));
        text.family("a", "theirs", MetricKind::Gauge, series("z", 5));
        let expected = "# HELP a ours\n# TYPE a counter\na{model=\"x\"} 1\na{model=\"y\"} 3\n\
                        # HELP b between\n# TYPE b counter\nb{model=\"x\"} 2\n";
        assert_eq!(text.into_text(), expected);
    }
}
