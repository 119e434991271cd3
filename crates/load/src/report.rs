//! What happened to the requests.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Counts and latencies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    latencies: Vec<Duration>,
    refused: u64,
    disconnects: u64,
    /// Good requests that failed, by reason.
    failures: BTreeMap<String, u64>,
    /// What hostile requests got, by kind and result.
    hostile: BTreeMap<String, u64>,
}

/// How a good request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// With its own tensor.
    Well,
    /// With a refusal for lack of memory.
    Refused,
}

impl Report {
    pub(crate) fn good(&mut self, latency: Duration, served: Result<Served, String>) {
        match served {
            Ok(Served::Well) => self.latencies.push(latency),
            Ok(Served::Refused) => self.refused += 1,
            Err(reason) => *self.failures.entry(reason).or_default() += 1,
        }
    }

    pub(crate) fn hostile(&mut self, kind: &str, result: &str) {
        *self.hostile.entry(format!("{kind}: {result}")).or_default() += 1;
    }

    pub(crate) const fn disconnect(&mut self) {
        self.disconnects += 1;
    }

    /// The number of good requests that failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// The report as a JSON object on one line. Latencies are in milliseconds.
    pub(crate) fn to_json(&self) -> String {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let at = |thousandths: usize| {
            let index = sorted.len().saturating_sub(1) * thousandths / 1000;
            sorted.get(index).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
        };
        format!(
            "{{\"good\":{},\"failed\":{},\"refused\":{},\"disconnects\":{},\"p50_ms\":{:.3},\
             \"p99_ms\":{:.3},\"max_ms\":{:.3},\"failures\":{},\"hostile\":{}}}",
            sorted.len(),
            self.failed(),
            self.refused,
            self.disconnects,
            at(500),
            at(990),
            at(1000),
            object(&self.failures),
            object(&self.hostile),
        )
    }
}

fn object(counts: &BTreeMap<String, u64>) -> String {
    let mut text = String::from("{");
    for (index, (name, count)) in counts.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let name: String = name.chars().flat_map(escaped).collect();
        let _ = write!(text, "{comma}\"{name}\":{count}");
    }
    text.push('}');
    text
}

fn escaped(character: char) -> Vec<char> {
    match character {
        '"' | '\\' => vec!['\\', character],
        character if character.is_control() => vec![' '],
        character => vec![character],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_every_count() {
        let mut report = Report::default();
        for milliseconds in 1..=100 {
            report.good(Duration::from_millis(milliseconds), Ok(Served::Well));
        }
        report.good(Duration::ZERO, Ok(Served::Refused));
        report.good(Duration::ZERO, Err(String::from("a \"b\"")));
        report.hostile("kind", "400");
        report.disconnect();
        assert_eq!(report.failed(), 1);
        assert_eq!(
            report.to_json(),
            "{\"good\":100,\"failed\":1,\"refused\":1,\"disconnects\":1,\"p50_ms\":50.000,\
             \"p99_ms\":99.000,\"max_ms\":100.000,\"failures\":{\"a \\\"b\\\"\":1},\
             \"hostile\":{\"kind: 400\":1}}"
        );
    }
}
