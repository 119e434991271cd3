//! The results of the requests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// Counts and latencies.
#[derive(Debug)]
pub(crate) struct Report {
    start: Instant,
    /// The file to which each latency is written when it is measured.
    samples: Option<BufWriter<File>>,
    latencies: Vec<Duration>,
    /// The delays that the load generator itself causes, in an open loop.
    late: Vec<Duration>,
    refused: u64,
    disconnects: u64,
    /// Failed good requests by reason.
    failures: BTreeMap<String, u64>,
    /// The responses to hostile requests, by kind and result.
    hostile: BTreeMap<String, u64>,
}

/// The result of a good request that got a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GoodRequestOutcome {
    /// The response contains the request's tensor.
    Well,
    /// The server refused the request, for lack of memory or time.
    Refused,
}

impl Report {
    /// Makes a report, which writes latencies to the `samples` file if specified.
    pub(crate) fn new(samples: Option<&Path>) -> io::Result<Self> {
        let samples = samples.map(File::create).transpose()?.map(BufWriter::new);
        Ok(Self {
            start: Instant::now(),
            samples,
            latencies: Vec::new(),
            late: Vec::new(),
            refused: 0,
            disconnects: 0,
            failures: BTreeMap::new(),
            hostile: BTreeMap::new(),
        })
    }

    /// Counts a good request that began at this time.
    pub(crate) fn good(&mut self, begin: Instant, served: Result<GoodRequestOutcome, String>) {
        let latency = begin.elapsed();
        match served {
            Ok(GoodRequestOutcome::Well) => {
                self.latencies.push(latency);
                self.sample(begin, latency);
            }
            Ok(GoodRequestOutcome::Refused) => self.refused += 1,
            Err(reason) => *self.failures.entry(reason).or_default() += 1,
        }
    }

    /// Writes a latency. A full disk stops the samples, not the load.
    fn sample(&mut self, begin: Instant, latency: Duration) {
        let since = begin.saturating_duration_since(self.start).as_secs_f32();
        let milliseconds = latency.as_secs_f32() * 1e3;
        let pair = [since.to_le_bytes(), milliseconds.to_le_bytes()].concat();
        if self.samples.as_mut().is_some_and(|samples| samples.write_all(&pair).is_err()) {
            self.samples = None;
        }
    }

    /// Counts an arrival that the generator noticed late by this much time.
    pub(crate) fn late(&mut self, by: Duration) {
        self.late.push(by);
    }

    pub(crate) fn hostile(&mut self, kind: &str, result: &str) {
        *self.hostile.entry(format!("{kind}: {result}")).or_default() += 1;
    }

    pub(crate) const fn disconnect(&mut self) {
        self.disconnects += 1;
    }

    /// The number of failed good requests.
    pub(crate) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// The report as a JSON object on one line. Latencies are in milliseconds.
    pub(crate) fn to_json(&self) -> String {
        let latencies = Percentiles::of(&self.latencies);
        let mut text = format!(
            "{{\"good\":{},\"failed\":{},\"refused\":{},\"disconnects\":{},\"p50_ms\":{:.3},\
             \"p99_ms\":{:.3},\"p999_ms\":{:.3},\"max_ms\":{:.3},",
            self.latencies.len(),
            self.failed(),
            self.refused,
            self.disconnects,
            latencies.at(500),
            latencies.at(990),
            latencies.at(999),
            latencies.at(1000),
        );
        if !self.late.is_empty() {
            let late = Percentiles::of(&self.late).at(990);
            let _ = write!(text, "\"arrivals\":{},\"late_p99_ms\":{late:.3},", self.late.len());
        }
        let (failures, hostile) = (object(&self.failures), object(&self.hostile));
        let _ = write!(text, "\"failures\":{failures},\"hostile\":{hostile}}}");
        text
    }
}

/// Sorted times.
struct Percentiles(Vec<Duration>);

impl Percentiles {
    fn of(times: &[Duration]) -> Self {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        Self(sorted)
    }

    /// The percentile in milliseconds.
    fn at(&self, thousandths: usize) -> f64 {
        let index = self.0.len().saturating_sub(1) * thousandths / 1000;
        self.0.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e3)
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
    fn percentiles_are_by_rank() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        let percentiles = Percentiles::of(&times);
        assert_eq!([500, 990, 1000].map(|rank| percentiles.at(rank)), [50.0, 99.0, 100.0]);
        assert_eq!(Percentiles::of(&[]).at(990), 0.0);
    }

    #[test]
    fn the_report_has_every_count() {
        let mut report = Report::new(None).unwrap();
        report.latencies.push(Duration::from_millis(7));
        report.late(Duration::from_millis(2));
        report.good(Instant::now(), Ok(GoodRequestOutcome::Refused));
        report.good(Instant::now(), Err(String::from("a \"b\"")));
        report.hostile("kind", "400");
        report.disconnect();
        assert_eq!(report.failed(), 1);
        assert_eq!(
            report.to_json(),
            "{\"good\":1,\"failed\":1,\"refused\":1,\"disconnects\":1,\"p50_ms\":7.000,\
             \"p99_ms\":7.000,\"p999_ms\":7.000,\"max_ms\":7.000,\"arrivals\":1,\
             \"late_p99_ms\":2.000,\"failures\":{\"a \\\"b\\\"\":1},\
             \"hostile\":{\"kind: 400\":1}}"
        );
    }

    #[test]
    fn samples_are_written() {
        let file = std::env::temp_dir().join(format!("samples-{}", std::process::id()));
        let mut report = Report::new(Some(&file)).unwrap();
        report.good(Instant::now(), Ok(GoodRequestOutcome::Well));
        report.good(Instant::now(), Err(String::from("no")));
        drop(report);
        assert_eq!(std::fs::read(&file).unwrap().len(), 8);
        std::fs::remove_file(file).unwrap();
    }
}
