//! The models in memory over the last fifteen minutes, if models are loaded on demand.

use std::collections::VecDeque;
use std::time::Duration;

use galatea_control::{ResidencyChange, ResidencyReading};
use serde_json::{Value, json};

/// The maximum number of changes that a page receives.
const CHANGES_MAX: usize = 1024;

/// The changes of the last fifteen minutes, and the memory at the last sample.
#[derive(Debug, Default)]
pub(crate) struct ResidencySeries {
    changes: VecDeque<ResidencyChange>,
    /// The last sample, with the changes since the sample before it.
    last: ResidencyReading,
}

impl ResidencySeries {
    /// Adds a sample, and drops changes that are older than `kept` or too many.
    pub(crate) fn add(&mut self, reading: ResidencyReading, kept: Duration) {
        self.changes.extend(reading.changes.iter().cloned());
        let oldest = reading.at.saturating_sub(kept);
        let surplus = self.changes.len().saturating_sub(CHANGES_MAX);
        let is_old = |change: &&ResidencyChange| change.at < oldest;
        let old = self.changes.iter().take_while(is_old).count();
        self.changes.drain(..surplus.max(old));
        self.last = reading;
    }

    /// The number of the first change that the series doesn't have.
    pub(crate) fn next_change(&self) -> u64 {
        self.changes.back().map_or(0, |change| change.number.saturating_add(1))
    }

    /// Returns all changes.
    pub(crate) fn all(&self) -> Value {
        self.encoded(self.changes.iter())
    }

    /// Returns the changes of the last sample.
    pub(crate) fn last(&self) -> Value {
        self.encoded(self.last.changes.iter())
    }

    fn encoded<'a>(&self, changes: impl Iterator<Item = &'a ResidencyChange>) -> Value {
        json!({
            "at_ms": millis(self.last.at),
            "limit": self.last.limit_bytes,
            "used": self.last.used_bytes,
            "changes_max": CHANGES_MAX,
            "changes": changes.map(change).collect::<Vec<_>>(),
        })
    }
}

/// Encodes the time, the model, the kind, the bytes, and the reason.
fn change(change: &ResidencyChange) -> Value {
    let ResidencyChange { at, model, kind, bytes, reason, .. } = change;
    json!([millis(*at), model, kind.name(), bytes, reason])
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use galatea_control::ResidencyChangeKind;

    use super::*;

    const KEPT: Duration = Duration::from_secs(900);

    fn reading(at_secs: u64, numbers: std::ops::Range<u64>) -> ResidencyReading {
        let at = Duration::from_secs(at_secs);
        let change = |number| ResidencyChange {
            number,
            at,
            model: String::from("a"),
            kind: ResidencyChangeKind::Loaded,
            bytes: number,
            reason: String::from("r"),
        };
        let changes = numbers.map(change).collect();
        ResidencyReading { at, limit_bytes: 9, used_bytes: 5, changes }
    }

    fn numbers(value: &Value) -> Vec<u64> {
        let changes = value["changes"].as_array().unwrap();
        changes.iter().map(|change| change[3].as_u64().unwrap()).collect()
    }

    #[test]
    fn pages_get_all_changes_and_then_the_latest() {
        let mut series = ResidencySeries::default();
        assert_eq!(series.next_change(), 0);
        series.add(reading(5, 0..2), KEPT);
        series.add(reading(10, 2..3), KEPT);
        assert_eq!(series.next_change(), 3);
        assert_eq!((numbers(&series.all()), numbers(&series.last())), (vec![0, 1, 2], vec![2]));
        let last = series.last();
        assert_eq!((&last["at_ms"], &last["limit"]), (&json!(10_000), &json!(9)));
        assert_eq!(last["changes"][0], json!([10_000, "a", "loaded", 2, "r"]));
    }

    #[test]
    fn old_and_surplus_changes_are_dropped() {
        let mut series = ResidencySeries::default();
        series.add(reading(5, 0..2), KEPT);
        series.add(reading(905, 2..3), KEPT);
        assert_eq!(numbers(&series.all()), [0, 1, 2]);
        series.add(reading(906, 3..4), KEPT);
        assert_eq!(numbers(&series.all()), [2, 3]);
        series.add(reading(907, 4..2_000), KEPT);
        assert_eq!(numbers(&series.all()).len(), CHANGES_MAX);
        assert_eq!(series.next_change(), 2_000);
    }
}
