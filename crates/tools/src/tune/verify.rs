//! Verifies the best few candidates and the untuned configuration on the server itself.

use std::time::Duration;

use galatea_load::{
    LoadLevel, OpenLoopMeasurement, SampleRequest, poisson_arrivals, run_closed_loop, run_open_loop,
};
use serde_json::Value;

use super::objective::Objective;
use super::search::SimulatedCandidate;
use super::server::TunedServer;

/// The maximum number of connections.
const CONNECTIONS_MAX: usize = 512;

/// The factor that lowers a rate that is too high.
const STEP: f64 = 0.85;
const STEPS: usize = 8;

/// The time spent sending requests before the measurement starts.
const WARMUP: Duration = Duration::from_millis(300);

const SEED: u64 = 11;

/// The result measured on a server with this configuration, in terms of the objective.
#[derive(Clone, Debug)]
pub(super) struct CheckedCandidate {
    pub(super) found: SimulatedCandidate,
    /// Rows per second.
    pub(super) score: f64,
    /// The latency at the measured rate: the objective's percentile, or the median.
    pub(super) latency: Option<Duration>,
    /// True if this is the untuned configuration.
    pub(super) is_default: bool,
    /// The reason why the score is 0.
    pub(super) remark: Option<String>,
}

/// A score in requests per second and the corresponding latency.
#[derive(Clone, Debug, PartialEq)]
struct Score {
    rate: f64,
    latency: Option<Duration>,
    /// The reason why the rate is 0.
    remark: Option<String>,
}

impl Score {
    fn new(rate: f64, latency: Option<Duration>, why: impl FnOnce() -> String) -> Self {
        Self { rate, latency, remark: (rate <= 0.0).then(why) }
    }
}

/// The conditions under which candidates are verified.
pub(super) struct Verification<'a> {
    pub(super) server: &'a TunedServer,
    pub(super) objective: Objective,
    pub(super) sample: &'a SampleRequest,
    pub(super) rows: u32,
    pub(super) duration: Duration,
}

impl Verification<'_> {
    /// Verifies a configuration. `found` provides the initial rate.
    pub(super) fn verify(
        &self,
        found: SimulatedCandidate,
        config: &Value,
        is_default: bool,
    ) -> Result<CheckedCandidate, String> {
        self.server.load(config)?;
        let scored = match self.objective {
            Objective::Throughput => self.saturate(&found)?,
            Objective::Goodput { limit } => self.overload(found.rate, limit)?,
            Objective::Latency { share, limit } => {
                descend(found.rate / STEP, share, limit, |rate| self.send(rate))?
            }
        };
        let Score { rate, latency, remark } = scored;
        let score = rate * f64::from(self.rows);
        Ok(CheckedCandidate { found, score, latency, is_default, remark })
    }

    /// Keeps twice as many requests in flight as can be executed concurrently.
    fn saturate(&self, found: &SimulatedCandidate) -> Result<Score, String> {
        let batches = u64::from(found.candidate.resources.instances) * 2;
        let requests = u64::from(found.candidate.max_batch.max(1).div_ceil(self.rows.max(1)));
        let level = LoadLevel {
            target: &self.server.target,
            sample: self.sample,
            connections: (batches * requests).min(CONNECTIONS_MAX as u64),
            warmup: WARMUP,
            duration: self.duration,
        };
        let measured = run_closed_loop(level, || (), |_, _| ())?;
        let reason = || measured.failures.keys().next().map_or("no answer came", String::as_str);
        let why = || format!("no request was answered: {}", reason());
        Ok(Score::new(measured.responses_per_second(), measured.latency_quantile(0.5), why))
    }

    /// Sends more requests than can be served, and counts the responses that arrive in time.
    fn overload(&self, rate: f64, limit: Duration) -> Result<Score, String> {
        let measured = self.send(rate)?;
        #[expect(clippy::cast_precision_loss, reason = "a run has few responses")]
        let in_time = measured.responses_within(limit) as f64;
        let latency = measured.latency_quantile(0.5);
        let why = || format!("none of them came in time; half took {}", longer_than(latency));
        Ok(Score::new(in_time / measured.elapsed.max(self.duration).as_secs_f64(), latency, why))
    }

    fn send(&self, rate: f64) -> Result<OpenLoopMeasurement, String> {
        let (target, sample) = (&self.server.target, self.sample);
        run_open_loop(target, sample, poisson_arrivals(rate, WARMUP, SEED), CONNECTIONS_MAX)?;
        run_open_loop(
            target,
            sample,
            poisson_arrivals(rate, self.duration, SEED + 1),
            CONNECTIONS_MAX,
        )
    }
}

/// Lowers the rate until the latency limit is met; returns that rate and its latency.
fn descend(
    mut rate: f64,
    share: f64,
    limit: Duration,
    mut send: impl FnMut(f64) -> Result<OpenLoopMeasurement, String>,
) -> Result<Score, String> {
    let mut remark = String::from("the simulation finds no rate at which it is");
    for _ in 0..STEPS {
        if rate < 1.0 {
            break;
        }
        let measured = send(rate)?;
        let latency = measured.latency_quantile(share);
        if measured.failure_count() == 0 && latency.is_some_and(|latency| latency <= limit) {
            return Ok(Score::new(rate, latency, String::new));
        }
        let percent = share * 100.0;
        remark = format!("p{percent:.0} at {rate:.1} requests/s: {}", longer_than(latency));
        if let Some((reason, count)) = measured.failures.iter().next() {
            remark = format!("at {rate:.1} requests/s {count} failed: {reason}");
        }
        rate *= STEP;
    }
    Ok(Score::new(0.0, None, || format!("not within {limit:?} at any rate tried; {remark}")))
}

fn longer_than(latency: Option<Duration>) -> String {
    latency.map_or_else(
        || String::from("no answer"),
        |latency| format!("{:.3} ms", latency.as_secs_f64() * 1e3),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(20);

    /// A server that responds slowly above one rate and fails above another.
    fn server(slow: f64, broken: f64) -> impl FnMut(f64) -> Result<OpenLoopMeasurement, String> {
        move |rate| {
            let latency = if rate > slow { 2 * LIMIT } else { LIMIT };
            let mut measured = OpenLoopMeasurement {
                latencies: vec![latency; 10],
                ..OpenLoopMeasurement::default()
            };
            if rate > broken {
                measured.failures.insert(String::from("status 503"), 1);
            }
            Ok(measured)
        }
    }

    fn found(slow: f64, broken: f64) -> f64 {
        descend(100.0, 0.99, LIMIT, server(slow, broken)).unwrap().rate
    }

    #[test]
    fn the_rate_falls_until_the_latency_is_kept_without_failures() {
        assert!((found(100.0, 100.0) - 100.0).abs() < 1e-6);
        assert!((found(90.0, 100.0) - 85.0).abs() < 1e-6);
        assert!((found(100.0, 80.0) - 72.25).abs() < 1e-6);
        assert!(found(1.0, 100.0).abs() < 1e-6);
    }

    #[test]
    fn less_than_one_request_a_second_is_nothing() {
        let none = |_| -> Result<OpenLoopMeasurement, String> { unreachable!("nothing is sent") };
        let found = descend(0.5, 0.99, LIMIT, none).unwrap();
        assert!(
            found.rate <= 0.0 && found.remark.unwrap().contains("the simulation finds no rate")
        );
    }

    #[test]
    fn a_score_of_nothing_has_its_reason() {
        let remark =
            |slow, broken| descend(100.0, 0.99, LIMIT, server(slow, broken)).unwrap().remark;
        assert_eq!(remark(100.0, 100.0), None);
        let slow = remark(1.0, 100.0).unwrap();
        assert_eq!(slow, "not within 20ms at any rate tried; p99 at 32.1 requests/s: 40.000 ms");
        let broken = remark(1.0, 1.0).unwrap();
        assert!(broken.ends_with("at 32.1 requests/s 1 failed: status 503"), "{broken}");
    }
}
