//! The best few on the server itself, and the configuration as it is without tuning.

use std::time::Duration;

use galatea_load::{Level, Sample, TimedMeasurement, poisson, run_level, run_timed};
use serde_json::Value;

use super::objective::Objective;
use super::search::Found;
use super::server::TunedServer;

/// The most connections.
const CONNECTIONS_MAX: usize = 512;

/// How much a rate is lowered when it is too high.
const STEP: f64 = 0.85;
const STEPS: usize = 8;

/// How long requests come before they count.
const WARMUP: Duration = Duration::from_millis(300);

const SEED: u64 = 11;

/// What a server did with a configuration, by the objective.
#[derive(Clone, Debug)]
pub(super) struct Verified {
    pub(super) found: Found,
    /// Rows per second.
    pub(super) score: f64,
    /// The latency at that rate that the objective is about, or the median.
    pub(super) latency: Option<Duration>,
    /// Whether it is the configuration without tuning.
    pub(super) is_default: bool,
}

/// How candidates are checked.
pub(super) struct Verification<'a> {
    pub(super) server: &'a TunedServer,
    pub(super) objective: Objective,
    pub(super) sample: &'a Sample,
    pub(super) rows: u32,
    pub(super) duration: Duration,
}

impl Verification<'_> {
    /// Checks a configuration. `found` says at which rate to begin.
    pub(super) fn verify(
        &self,
        found: Found,
        config: &Value,
        is_default: bool,
    ) -> Result<Verified, String> {
        self.server.load(config)?;
        let (score, latency) = match self.objective {
            Objective::Throughput => self.saturate(&found)?,
            Objective::Goodput { limit } => self.overload(found.rate, limit)?,
            Objective::Latency { share, limit } => {
                descend(found.rate / STEP, share, limit, |rate| self.send(rate))?
            }
        };
        let score = score * f64::from(self.rows);
        Ok(Verified { found, score, latency, is_default })
    }

    /// Always twice as many requests as can be executed at a time.
    fn saturate(&self, found: &Found) -> Result<(f64, Option<Duration>), String> {
        let batches = u64::from(found.candidate.resources.instances) * 2;
        let requests = u64::from(found.candidate.max_batch.max(1).div_ceil(self.rows.max(1)));
        let level = Level {
            target: &self.server.target,
            sample: self.sample,
            connections: (batches * requests).min(CONNECTIONS_MAX as u64),
            warmup: WARMUP,
            duration: self.duration,
        };
        let measured = run_level(level, || (), |_, _| ())?;
        Ok((measured.rate(), measured.latency(0.5)))
    }

    /// More requests than can be served: those answered in time count.
    fn overload(&self, rate: f64, limit: Duration) -> Result<(f64, Option<Duration>), String> {
        let measured = self.send(rate)?;
        #[expect(clippy::cast_precision_loss, reason = "a run has few responses")]
        let in_time = measured.within(limit) as f64;
        Ok((in_time / measured.elapsed.max(self.duration).as_secs_f64(), measured.latency(0.5)))
    }

    fn send(&self, rate: f64) -> Result<TimedMeasurement, String> {
        let (target, sample) = (&self.server.target, self.sample);
        run_timed(target, sample, poisson(rate, WARMUP, SEED), CONNECTIONS_MAX)?;
        run_timed(target, sample, poisson(rate, self.duration, SEED + 1), CONNECTIONS_MAX)
    }
}

/// The first rate from this one downwards at which the latency is kept, with that latency.
fn descend(
    mut rate: f64,
    share: f64,
    limit: Duration,
    mut send: impl FnMut(f64) -> Result<TimedMeasurement, String>,
) -> Result<(f64, Option<Duration>), String> {
    for _ in 0..STEPS {
        if rate < 1.0 {
            break;
        }
        let measured = send(rate)?;
        let latency = measured.latency(share);
        if measured.failed() == 0 && latency.is_some_and(|latency| latency <= limit) {
            return Ok((rate, latency));
        }
        rate *= STEP;
    }
    Ok((0.0, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(20);

    /// A server that answers slowly above a rate, and breaks above another one.
    fn server(slow: f64, broken: f64) -> impl FnMut(f64) -> Result<TimedMeasurement, String> {
        move |rate| {
            let latency = if rate > slow { 2 * LIMIT } else { LIMIT };
            let mut measured =
                TimedMeasurement { latencies: vec![latency; 10], ..TimedMeasurement::default() };
            if rate > broken {
                measured.failures.insert(String::from("status 503"), 1);
            }
            Ok(measured)
        }
    }

    fn found(slow: f64, broken: f64) -> f64 {
        descend(100.0, 0.99, LIMIT, server(slow, broken)).unwrap().0
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
        let none = |_| -> Result<TimedMeasurement, String> { unreachable!("nothing is sent") };
        assert_eq!(descend(0.5, 0.99, LIMIT, none), Ok((0.0, None)));
    }
}
