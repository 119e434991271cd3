//! Metrics of whoever uses the library: families and their values.
//!
//! The functions take no server, so there is one registry for the process, as in
//! the original; every server's metrics show all of it. Families are known by name
//! and stay; what shares a family and has equal labels is one series, which is
//! shown as long as a metric object stands for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use galatea_infer::Status;

pub mod functions;

/// What the values of a family mean.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Observations, counted by size.
    Histogram,
}

/// A family as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct FamilySnapshot {
    /// Its name.
    pub name: String,
    /// What it means.
    pub help: String,
    /// What its values are.
    pub kind: Kind,
    /// Its series by their labels, sorted.
    pub series: Vec<(Vec<(String, String)>, Value)>,
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a counter or a gauge.
    Number(f64),
    /// Of a histogram.
    Histogram(Histogram),
}

/// Observations, counted by size.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The upper bounds, ascending; one more bucket takes what is larger.
    pub bounds: Vec<f64>,
    /// How many observations each bucket holds, without those before it.
    pub counts: Vec<u64>,
    /// The sum of all observations.
    pub sum: f64,
}

type Labels = Vec<(String, String)>;

struct Series(Mutex<Value>);

/// A family in the registry.
struct Family {
    name: String,
    help: String,
    kind: Kind,
    series: Mutex<BTreeMap<Labels, Weak<Series>>>,
}

#[derive(Default)]
struct Registry(Mutex<BTreeMap<String, Arc<Family>>>);

static REGISTRY: Registry = Registry(Mutex::new(BTreeMap::new()));

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every family that has a series, in the order of their names.
#[must_use]
pub fn snapshot() -> Vec<FamilySnapshot> {
    REGISTRY.snapshot()
}

impl Registry {
    fn snapshot(&self) -> Vec<FamilySnapshot> {
        let families: Vec<Arc<Family>> = lock(&self.0).values().cloned().collect();
        let snapshots = families.iter().map(|family| family.snapshot());
        snapshots.filter(|family| !family.series.is_empty()).collect()
    }

    /// The family of that name; a new one if there is none.
    fn family(&self, kind: Kind, name: &str, help: &str) -> Result<Arc<Family>, Status> {
        if !is_name(name, true) {
            return Err(Status::invalid_argument(format!(
                "'{name}' can't be the name of a metric family: only letters, digits, '_' and \
                 ':' make one, and no digit begins it"
            )));
        }
        let mut families = lock(&self.0);
        let family = families.entry(name.to_owned()).or_insert_with(|| {
            let (name, help) = (name.to_owned(), help.to_owned());
            Arc::new(Family { name, help, kind, series: Mutex::default() })
        });
        if family.kind != kind {
            return Err(Status::invalid_argument(format!(
                "there is a metric family '{name}' of another kind"
            )));
        }
        Ok(family.clone())
    }
}

fn is_name(name: &str, colon: bool) -> bool {
    let allowed = |c: char| c == '_' || c == ':' && colon || c.is_ascii_alphanumeric();
    name.chars().all(allowed) && name.chars().next().is_some_and(|c| !c.is_ascii_digit())
}

impl Family {
    fn snapshot(&self) -> FamilySnapshot {
        let series = lock(&self.series);
        let series = series.iter().filter_map(|(labels, series)| {
            let series = series.upgrade()?;
            let value = lock(&series.0).clone();
            Some((labels.clone(), value))
        });
        FamilySnapshot {
            name: self.name.clone(),
            help: self.help.clone(),
            kind: self.kind,
            series: series.collect(),
        }
    }

    /// The series with these labels; a new one if there is none.
    fn series(&self, labels: Labels, bounds: Option<&[f64]>) -> Result<Arc<Series>, Status> {
        let value = match (self.kind, bounds) {
            (Kind::Counter | Kind::Gauge, None) => Value::Number(0.0),
            (Kind::Histogram, Some(bounds)) => Value::Histogram(Histogram::new(bounds)),
            (Kind::Counter | Kind::Gauge, Some(_)) => {
                return Err(Status::invalid_argument("only a histogram takes arguments"));
            }
            (Kind::Histogram, None) => {
                return Err(Status::invalid_argument(
                    "a histogram needs arguments with its buckets",
                ));
            }
        };
        for (index, (name, _)) in labels.iter().enumerate() {
            // Two underscores begin the names that Prometheus keeps for itself, and
            // a histogram's buckets have a label of their own.
            let reserved = name.starts_with("__") || self.kind == Kind::Histogram && name == "le";
            let twice = labels.iter().take(index).any(|(other, _)| other == name);
            if !is_name(name, false) || reserved || twice {
                let text = format!("'{name}' can't be the name of a label");
                return Err(Status::invalid_argument(text));
            }
        }
        let mut all = lock(&self.series);
        all.retain(|_, series| series.strong_count() > 0);
        if let Some(series) = all.get(&labels).and_then(Weak::upgrade) {
            return Ok(series);
        }
        let series = Arc::new(Series(Mutex::new(value)));
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
        match &*lock(&self.0) {
            Value::Number(number) => Ok(*number),
            Value::Histogram(_) => Err(unsupported("histogram", "be read as one value")),
        }
    }

    fn increment(&self, kind: Kind, by: f64) -> Result<(), Status> {
        match &mut *lock(&self.0) {
            Value::Number(_) if kind == Kind::Counter && (by < 0.0 || by.is_nan()) => {
                Err(Status::invalid_argument(format!("a counter can't be incremented by {by}")))
            }
            Value::Number(number) => {
                *number += by;
                Ok(())
            }
            Value::Histogram(_) => Err(unsupported("histogram", "be incremented")),
        }
    }

    fn set(&self, kind: Kind, value: f64) -> Result<(), Status> {
        match (&mut *lock(&self.0), kind) {
            (Value::Number(number), Kind::Gauge) => {
                *number = value;
                Ok(())
            }
            (Value::Number(_), _) => Err(unsupported("counter", "be set")),
            (Value::Histogram(_), _) => Err(unsupported("histogram", "be set")),
        }
    }

    fn observe(&self, kind: Kind, value: f64) -> Result<(), Status> {
        match (&mut *lock(&self.0), kind) {
            (Value::Histogram(histogram), _) => {
                histogram.observe(value);
                Ok(())
            }
            (Value::Number(_), Kind::Counter) => Err(unsupported("counter", "observe")),
            (Value::Number(_), _) => Err(unsupported("gauge", "observe")),
        }
    }
}

fn unsupported(kind: &str, what: &str) -> Status {
    Status::unsupported(format!("a {kind} can't {what}"))
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
        let first = registry.family(Kind::Counter, "a_total", "help").unwrap();
        let second = registry.family(Kind::Counter, "a_total", "other help").unwrap();
        let one = first.series(labels(&[("x", "1")]), None).unwrap();
        let same = second.series(labels(&[("x", "1")]), None).unwrap();
        one.increment(Kind::Counter, 2.5).unwrap();
        assert_eq!(same.value().unwrap(), 2.5);
        let shown = registry.snapshot();
        assert_eq!(shown.len(), 1);
        assert_eq!(shown[0].series, [(labels(&[("x", "1")]), Value::Number(2.5))]);
        drop(one);
        assert_eq!(registry.snapshot().len(), 1);
        drop(same);
        assert!(registry.snapshot().is_empty());
        let again = first.series(labels(&[("x", "1")]), None).unwrap();
        assert_eq!(again.value().unwrap(), 0.0);
    }

    #[test]
    fn each_kind_refuses_what_it_is_not() {
        let registry = Registry::default();
        let code = |result: Result<(), Status>| result.unwrap_err().code();
        let counter =
            registry.family(Kind::Counter, "c", "").unwrap().series(vec![], None).unwrap();
        assert_eq!(code(counter.set(Kind::Counter, 1.0)), Code::Unsupported);
        assert_eq!(code(counter.observe(Kind::Counter, 1.0)), Code::Unsupported);
        assert_eq!(code(counter.increment(Kind::Counter, -1.0)), Code::InvalidArgument);
        let gauge = registry.family(Kind::Gauge, "g", "").unwrap().series(vec![], None).unwrap();
        assert_eq!(code(gauge.observe(Kind::Gauge, 1.0)), Code::Unsupported);
        gauge.set(Kind::Gauge, 3.0).unwrap();
        gauge.increment(Kind::Gauge, -5.0).unwrap();
        assert_eq!(gauge.value().unwrap(), -2.0);
        let family = registry.family(Kind::Histogram, "h", "").unwrap();
        assert!(family.series(vec![], None).is_err());
        let histogram = family.series(vec![], Some(&[1.0, 2.0])).unwrap();
        assert_eq!(code(histogram.value().map(drop)), Code::Unsupported);
        assert_eq!(code(histogram.increment(Kind::Histogram, 1.0)), Code::Unsupported);
        assert_eq!(code(histogram.set(Kind::Histogram, 1.0)), Code::Unsupported);
    }

    #[test]
    fn observations_are_counted_up_to_their_bucket() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 7.0].into_iter().for_each(|value| histogram.observe(value));
        assert_eq!(histogram.counts, [2, 1, 1]);
        assert_eq!(histogram.sum, 10.0);
    }

    #[test]
    fn names_that_prometheus_could_not_read_are_refused() {
        let registry = Registry::default();
        for name in ["", "1a", "a b", "a\n", "ä"] {
            assert!(registry.family(Kind::Gauge, name, "").is_err(), "{name}");
        }
        let family = registry.family(Kind::Gauge, "g:a", "").unwrap();
        for name in ["", "1a", "a:b", "__a"] {
            assert!(family.series(labels(&[(name, "")]), None).is_err(), "{name}");
        }
        assert!(family.series(labels(&[("a", "1"), ("a", "2")]), None).is_err());
        assert!(registry.family(Kind::Counter, "g:a", "").is_err());
    }
}
