//! Custom metrics of plug-ins, or of the program that uses the library.
//!
//! The functions don't take a server, so there is one registry per process, as in Triton, and every
//! server's metrics include the whole registry. Families are identified by name and are never
//! removed. A series is identified by its family and labels, and is reported for as long as a
//! metric object refers to it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use galatea_infer::Status;
use galatea_stdx::Lock;

pub mod functions;
mod owned;

pub use owned::{Metric, MetricFamily};

/// A family's kind.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only increases.
    Counter,
    /// A value that increases and decreases.
    Gauge,
    /// Observations, counted in buckets.
    Histogram,
}

/// A snapshot of a family.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricFamilySnapshot {
    /// The family's name.
    pub name: String,
    /// The family's description.
    pub help: String,
    /// The kind of the family's values.
    pub kind: MetricKind,
    /// The family's series and their labels, sorted.
    pub series: Vec<(Vec<(String, String)>, MetricValue)>,
}

/// A series' value.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricValue {
    /// The value of a counter or a gauge.
    Number(f64),
    /// The value of a histogram.
    Histogram(Histogram),
}

/// Observations, counted in buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The upper bounds in ascending order. One additional bucket counts larger observations.
    pub bounds: Vec<f64>,
    /// The number of observations in each bucket, non-cumulative.
    pub counts: Vec<u64>,
    /// The sum of all observations.
    pub sum: f64,
}

type Labels = Vec<(String, String)>;

struct Series(Lock<MetricValue>);

/// A registered family.
struct Family {
    name: String,
    help: String,
    kind: MetricKind,
    series: Lock<BTreeMap<Labels, Weak<Series>>>,
}

#[derive(Default)]
struct Registry(Lock<BTreeMap<String, Arc<Family>>>);

static REGISTRY: Registry = Registry(Lock::new(BTreeMap::new()));

/// All families that have at least one series, sorted by name.
#[must_use]
pub fn metric_families_snapshot() -> Vec<MetricFamilySnapshot> {
    REGISTRY.snapshot()
}

impl Registry {
    fn snapshot(&self) -> Vec<MetricFamilySnapshot> {
        let families: Vec<Arc<Family>> = self.0.lock("list families").values().cloned().collect();
        let snapshots = families.iter().map(|family| family.snapshot());
        snapshots.filter(|family| !family.series.is_empty()).collect()
    }

    /// Returns the family with this name, creating it if necessary.
    fn family(&self, kind: MetricKind, name: &str, help: &str) -> Result<Arc<Family>, Status> {
        if !is_name(name, true) {
            return Err(Status::invalid_argument("Invalid metric name"));
        }
        let mut families = self.0.lock("find a family");
        let family = families.entry(name.to_owned()).or_insert_with(|| {
            let (name, help) = (name.to_owned(), help.to_owned());
            Arc::new(Family { name, help, kind, series: Lock::default() })
        });
        if family.kind != kind {
            let text = "Family name already exists with different type";
            return Err(Status::invalid_argument(text));
        }
        Ok(family.clone())
    }
}

fn is_name(name: &str, colon: bool) -> bool {
    let allowed = |c: char| c == '_' || c == ':' && colon || c.is_ascii_alphanumeric();
    name.chars().all(allowed) && name.chars().next().is_some_and(|c| !c.is_ascii_digit())
}

impl Family {
    fn snapshot(&self) -> MetricFamilySnapshot {
        let series = self.series.lock("copy the series");
        let series = series.iter().filter_map(|(labels, series)| {
            let series = series.upgrade()?;
            let value = series.0.lock("copy a value").clone();
            Some((labels.clone(), value))
        });
        MetricFamilySnapshot {
            name: self.name.clone(),
            help: self.help.clone(),
            kind: self.kind,
            series: series.collect(),
        }
    }

    /// Returns the series with these labels, creating it if necessary.
    fn series(&self, labels: Labels, bounds: Option<&[f64]>) -> Result<Arc<Series>, Status> {
        let value = match (self.kind, bounds) {
            (MetricKind::Counter | MetricKind::Gauge, None) => MetricValue::Number(0.0),
            (MetricKind::Histogram, Some(bounds)) => MetricValue::Histogram(Histogram::new(bounds)),
            (MetricKind::Counter, Some(_)) => return Err(unexpected_arguments("counter")),
            (MetricKind::Gauge, Some(_)) => return Err(unexpected_arguments("gauge")),
            (MetricKind::Histogram, None) => {
                let text = "Bucket boundaries not found in Metric args.";
                return Err(Status::invalid_argument(text));
            }
        };
        for (index, (name, _)) in labels.iter().enumerate() {
            // Prometheus reserves names that begin with two underscores, and histogram buckets use
            // the label `le`.
            let reserved =
                name.starts_with("__") || self.kind == MetricKind::Histogram && name == "le";
            let twice = labels.iter().take(index).any(|(other, _)| other == name);
            if !is_name(name, false) || reserved || twice {
                return Err(Status::invalid_argument("Invalid label name"));
            }
        }
        let mut all = self.series.lock("find a series");
        all.retain(|_, series| series.strong_count() > 0);
        if let Some(series) = all.get(&labels).and_then(Weak::upgrade) {
            return Ok(series);
        }
        let series = Arc::new(Series(Lock::new(value)));
        all.insert(labels, Arc::downgrade(&series));
        Ok(series)
    }
}

impl Histogram {
    fn new(bounds: &[f64]) -> Self {
        Self { bounds: bounds.to_vec(), counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn observe(&mut self, value: f64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound);
        let bucket = bucket.unwrap_or(self.bounds.len());
        if let Some(count) = self.counts.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
        self.sum += value;
    }
}

impl Series {
    fn value(&self) -> Result<f64, Status> {
        match &*self.0.lock("read a value") {
            MetricValue::Number(number) => Ok(*number),
            MetricValue::Histogram(_) => Err(unsupported(MetricKind::Histogram, "Value")),
        }
    }

    fn increment(&self, kind: MetricKind, by: f64) -> Result<(), Status> {
        match &mut *self.0.lock("increment a value") {
            MetricValue::Number(_) if kind == MetricKind::Counter && by < 0.0 => {
                Err(Status::invalid_argument(
                    "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by \
                     non-negative values.",
                ))
            }
            MetricValue::Number(number) => {
                *number += by;
                Ok(())
            }
            MetricValue::Histogram(_) => Err(unsupported(MetricKind::Histogram, "Increment")),
        }
    }

    fn set(&self, kind: MetricKind, value: f64) -> Result<(), Status> {
        match (&mut *self.0.lock("set a value"), kind) {
            (MetricValue::Number(number), MetricKind::Gauge) => {
                *number = value;
                Ok(())
            }
            (MetricValue::Number(_) | MetricValue::Histogram(_), kind) => {
                Err(unsupported(kind, "Set"))
            }
        }
    }

    fn observe(&self, kind: MetricKind, value: f64) -> Result<(), Status> {
        match (&mut *self.0.lock("observe a value"), kind) {
            (MetricValue::Histogram(histogram), _) => {
                histogram.observe(value);
                Ok(())
            }
            (MetricValue::Number(_), kind) => Err(unsupported(kind, "Observe")),
        }
    }
}

/// The error for an unsupported operation, with Triton's message.
fn unsupported(kind: MetricKind, what: &str) -> Status {
    let name = match kind {
        MetricKind::Counter => "COUNTER",
        MetricKind::Gauge => "GAUGE",
        MetricKind::Histogram => "HISTOGRAM",
    };
    Status::unsupported(format!("TRITONSERVER_METRIC_KIND_{name} does not support {what}"))
}

fn unexpected_arguments(kind: &str) -> Status {
    Status::invalid_argument(format!("Unexpected args found in {kind} Metric constructor."))
}

#[cfg(test)]
mod tests {
    use galatea_infer::Code;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(name, value)| (String::from(*name), String::from(*value))).collect()
    }

    #[test]
    fn equal_names_are_one_family_and_equal_labels_one_series() {
        let registry = Registry::default();
        let first = registry.family(MetricKind::Counter, "a_total", "help").unwrap();
        let second = registry.family(MetricKind::Counter, "a_total", "other help").unwrap();
        let one = first.series(labels(&[("x", "1")]), None).unwrap();
        let same = second.series(labels(&[("x", "1")]), None).unwrap();
        one.increment(MetricKind::Counter, 2.5).unwrap();
        assert_eq!(same.value().unwrap(), 2.5);
        let snapshot = registry.snapshot();
        assert_eq!(snapshot.len(), 1);
        assert_eq!(snapshot[0].series, [(labels(&[("x", "1")]), MetricValue::Number(2.5))]);
        drop(one);
        assert_eq!(registry.snapshot().len(), 1);
        drop(same);
        assert!(registry.snapshot().is_empty());
        let again = first.series(labels(&[("x", "1")]), None).unwrap();
        assert_eq!(again.value().unwrap(), 0.0);
    }

    #[test]
    fn each_kind_refuses_operations_of_other_kinds() {
        let registry = Registry::default();
        let code = |result: Result<(), Status>| result.unwrap_err().code();
        let counter =
            registry.family(MetricKind::Counter, "c", "").unwrap().series(vec![], None).unwrap();
        assert_eq!(code(counter.set(MetricKind::Counter, 1.0)), Code::Unsupported);
        assert_eq!(code(counter.observe(MetricKind::Counter, 1.0)), Code::Unsupported);
        assert_eq!(code(counter.increment(MetricKind::Counter, -1.0)), Code::InvalidArgument);
        let gauge =
            registry.family(MetricKind::Gauge, "g", "").unwrap().series(vec![], None).unwrap();
        assert_eq!(code(gauge.observe(MetricKind::Gauge, 1.0)), Code::Unsupported);
        gauge.set(MetricKind::Gauge, 3.0).unwrap();
        gauge.increment(MetricKind::Gauge, -5.0).unwrap();
        assert_eq!(gauge.value().unwrap(), -2.0);
        let family = registry.family(MetricKind::Histogram, "h", "").unwrap();
        assert!(family.series(vec![], None).is_err());
        let histogram = family.series(vec![], Some(&[1.0, 2.0])).unwrap();
        assert_eq!(code(histogram.value().map(drop)), Code::Unsupported);
        assert_eq!(code(histogram.increment(MetricKind::Histogram, 1.0)), Code::Unsupported);
        assert_eq!(code(histogram.set(MetricKind::Histogram, 1.0)), Code::Unsupported);
    }

    #[test]
    fn an_observation_is_counted_in_its_bucket() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 7.0].into_iter().for_each(|value| histogram.observe(value));
        assert_eq!(histogram.counts, [2, 1, 1]);
        assert_eq!(histogram.sum, 10.0);
    }

    #[test]
    fn names_that_prometheus_could_not_read_are_refused() {
        let registry = Registry::default();
        for name in ["", "1a", "a b", "a\n", "ä"] {
            assert!(registry.family(MetricKind::Gauge, name, "").is_err(), "{name}");
        }
        let family = registry.family(MetricKind::Gauge, "g:a", "").unwrap();
        for name in ["", "1a", "a:b", "__a"] {
            assert!(family.series(labels(&[(name, "")]), None).is_err(), "{name}");
        }
        assert!(family.series(labels(&[("a", "1"), ("a", "2")]), None).is_err());
        assert!(registry.family(MetricKind::Counter, "g:a", "").is_err());
    }
}
