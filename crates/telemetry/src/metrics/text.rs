//! Prometheus' text format.

use std::fmt::Display;

/// What a family's values mean.
#[derive(Copy, Clone, Debug)]
pub(super) enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Observations, counted by size.
    Histogram,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The labels of a series, already in their printed form.
#[derive(Clone, Debug)]
pub(super) struct Labels(Vec<(String, String)>);

impl Labels {
    /// Labels in the order in which they are printed, which is that of their
    /// names' bytes: tags, which begin with an underscore, come first.
    pub(super) fn new(mut labels: Vec<(String, String)>) -> Self {
        labels.sort();
        labels.dedup_by(|a, b| a.0 == b.0);
        Self(labels)
    }

    /// The same labels and one more.
    pub(super) fn with(&self, name: &str, value: &str) -> Self {
        let mut labels = self.0.clone();
        labels.push((name.to_owned(), value.to_owned()));
        Self::new(labels)
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

/// The text as it grows, family by family.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    text: String,
}

impl Exposition {
    /// A family with one value per set of labels; left out if it has none.
    pub(super) fn family<V: Display>(
        &mut self,
        name: &str,
        help: &str,
        kind: Kind,
        series: impl IntoIterator<Item = (Labels, V)>,
    ) {
        let mut series = series.into_iter().peekable();
        if series.peek().is_none() {
            return;
        }
        self.head(name, help, kind);
        for (labels, value) in series {
            self.line(name, &labels, value);
        }
    }

    /// A gauge with a single value and no labels.
    pub(super) fn single(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help, Kind::Gauge);
        self.text.push_str(&format!("{name} {value}\n"));
    }

    /// All that was written.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// A line of a family whose head was written.
    pub(super) fn line(&mut self, name: &str, labels: &Labels, value: impl Display) {
        self.text.push_str(&format!("{name}{} {value}\n", labels.render()));
    }

    /// What comes before a family's lines.
    pub(super) fn head(&mut self, name: &str, help: &str, kind: Kind) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.name()));
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
    fn a_family_without_series_is_left_out() {
        let mut text = Exposition::default();
        text.family("a", "nothing", Kind::Counter, Vec::<(Labels, u64)>::new());
        text.single("b", "something", 1.5);
        assert_eq!(text.into_text(), "# HELP b something\n# TYPE b gauge\nb 1.5\n");
    }
}
