//! The search: each candidate is simulated with the measured costs.

use std::time::Duration;

use galatea_load::{InputShapes, poisson_arrivals};
use galatea_simulate::{Arrival, Report, simulate_open_loop};
use serde_json::Value;

use super::candidate::{Candidate, has_objective, has_preferred_sizes};
use super::measure::MeasuredResources;
use super::objective::Objective;
use crate::simulate::{DeriveScheduling, SimulatedScheduler};

/// The number of requests in a simulation.
const REQUESTS: f64 = 3_000.0;

/// The factor by which the load exceeds capacity for goodput objectives.
pub(super) const OVERLOAD: f64 = 1.3;

/// The number of bisection steps used to find the highest rate.
const HALVINGS: usize = 10;

/// The delays to try, in microseconds.
const DELAYS_US: [u64; 6] = [0, 100, 500, 1_000, 2_000, 5_000];

const SEED: u64 = 7;

/// A candidate with its simulation results.
#[derive(Clone, Debug)]
pub(super) struct SimulatedCandidate {
    pub(super) candidate: Candidate,
    /// The rows per second, counted according to the objective.
    pub(super) score: f64,
    /// The request rate that produced this score; 0 means saturation.
    pub(super) rate: f64,
}

/// The parameters for comparing candidates.
pub(super) struct Search<'a> {
    pub(super) objective: Objective,
    pub(super) scheduling_of: DeriveScheduling,
    /// The number of rows per request.
    pub(super) rows: u32,
    /// The input shapes of one row.
    pub(super) shapes: &'a InputShapes,
    /// The model's configuration.
    pub(super) config: &'a Value,
    /// The highest request rate that any candidate can serve, once known.
    pub(super) capacity: f64,
}

impl Search<'_> {
    /// The candidates with these instances and threads.
    pub(super) fn candidates(&self, measured: &MeasuredResources) -> Vec<Candidate> {
        let limit_us = self.objective.limit().map_or(u128::MAX, |limit| limit.as_micros());
        let resources = measured.resources;
        let mut all = Vec::new();
        for (max_batch, _) in &measured.curve {
            let mut add = |delay_us, objective_us| {
                all.push(Candidate { resources, max_batch: *max_batch, delay_us, objective_us });
            };
            add(0, None);
            if *max_batch <= self.rows {
                continue;
            }
            // Under saturation, no request waits for a delay.
            let is_timed = has_objective(self.config);
            if matches!(self.objective, Objective::Latency { .. }) && !is_timed {
                let delays = DELAYS_US.iter().filter(|delay| **delay > 0);
                delays
                    .filter(|delay| u128::from(**delay) < limit_us)
                    .for_each(|delay| add(*delay, None));
            }
            if let Objective::Goodput { limit } = self.objective
                && !has_preferred_sizes(self.config)
            {
                add(0, u64::try_from(limit.as_micros()).ok());
            }
        }
        all.retain(|one| one.max_batch >= self.rows);
        all
    }

    /// Simulates a candidate.
    pub(super) fn evaluate(
        &self,
        candidate: Candidate,
        measured: &MeasuredResources,
    ) -> Result<SimulatedCandidate, String> {
        self.evaluate_config(candidate, &candidate.apply(self.config), measured)
    }

    /// Simulates a configuration.
    pub(super) fn evaluate_config(
        &self,
        candidate: Candidate,
        config: &Value,
        measured: &MeasuredResources,
    ) -> Result<SimulatedCandidate, String> {
        let configured = self.configured(&config.to_string())?;
        let rows = f64::from(self.rows);
        let run = |rate: f64| self.run(&configured, measured, rate);
        let saturated = run(f64::INFINITY).throughput();
        let (score, rate) = match self.objective {
            Objective::Throughput => (saturated, 0.0),
            Objective::Goodput { .. } => {
                let rate = self.capacity.max(saturated) * OVERLOAD;
                (run(rate).goodput(), rate)
            }
            Objective::Latency { share, limit } => {
                let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
                let meets = |rate: f64| run(rate).quantile_ns(share) <= limit_ns;
                let rate = highest(saturated, meets);
                (rate, rate)
            }
        };
        Ok(SimulatedCandidate { candidate, score: score * rows, rate })
    }

    fn configured(&self, config: &str) -> Result<SimulatedScheduler, String> {
        SimulatedScheduler::of_json("a configuration to try", config, self.scheduling_of)
    }

    /// The requests per second that a candidate serves under saturation.
    pub(super) fn saturated(
        &self,
        candidate: Candidate,
        measured: &MeasuredResources,
    ) -> Result<f64, String> {
        let config = candidate.apply(self.config).to_string();
        let configured = self.configured(&config)?;
        Ok(self.run(&configured, measured, f64::INFINITY).throughput())
    }

    fn run(
        &self,
        configured: &SimulatedScheduler,
        measured: &MeasuredResources,
        rate: f64,
    ) -> Report {
        let deadline_ns =
            self.objective.limit().and_then(|limit| u64::try_from(limit.as_nanos()).ok());
        let times = if rate.is_finite() {
            poisson_arrivals(rate, Duration::from_secs_f64((REQUESTS / rate).min(1e6)), SEED)
        } else {
            vec![Duration::ZERO; REQUESTS as usize]
        };
        let padded_length = configured.padded_length(self.shapes);
        let arrival = |time: &Duration| Arrival {
            rows: self.rows,
            padded_length,
            deadline_ns: deadline_ns.filter(|_| rate.is_finite()).unwrap_or(u64::MAX),
            ..Arrival::at(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        let arrivals: Vec<Arrival> = times.iter().map(arrival).collect();
        let mut costs = measured.costs.clone();
        simulate_open_loop(&configured.scheduling, configured.instances, &arrivals, |one| {
            costs.draw(one)
        })
    }
}

/// The highest acceptable rate up to `most`; 0 if no rate is acceptable.
fn highest(most: f64, is_allowed: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if middle > 0.0 && is_allowed(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use galatea_simulate::ExecutionTimeSampler;
    use galatea_traffic::RecordedExecution;
    use serde_json::json;

    use super::super::candidate::Resources;
    use super::*;

    /// Costs of 2 ms plus 0.5 ms per row, so full batches of eight process 1333 rows per second.
    fn measured() -> MeasuredResources {
        let one = |rows: u32| RecordedExecution {
            rows,
            busy: 1,
            duration_ns: 2_000_000 + 500_000 * u64::from(rows),
            ..RecordedExecution::default()
        };
        let sizes = [1, 2, 4, 8];
        let costs = ExecutionTimeSampler::new(&sizes.map(one)).unwrap();
        let curve = sizes.iter().map(|rows| (*rows, 0)).collect();
        let resources = Resources { instances: 1, threads: None };
        MeasuredResources { resources, costs, curve, remarks: Vec::new() }
    }

    fn best(objective: &str) -> SimulatedCandidate {
        best_of(objective, &config(1, &json!({})), &InputShapes::new())
    }

    fn config(dimension: i64, parameters: &Value) -> Value {
        json!({
            "name": "m", "backend": "identity", "max_batch_size": 8, "parameters": parameters,
            "input": [{ "name": "x", "data_type": "TYPE_FP32", "dims": [dimension] }],
            "output": [{ "name": "y", "data_type": "TYPE_FP32", "dims": [dimension] }],
        })
    }

    fn best_of(objective: &str, config: &Value, shapes: &InputShapes) -> SimulatedCandidate {
        let objective = Objective::parse(objective).unwrap();
        let scheduling_of = galatea_dispatch::scheduling_spec_of;
        let capacity = 1333.0;
        let search = Search { objective, scheduling_of, rows: 1, shapes, config, capacity };
        let measured = measured();
        let found = search.candidates(&measured).into_iter();
        let mut found: Vec<SimulatedCandidate> =
            found.map(|one| search.evaluate(one, &measured).unwrap()).collect();
        found.sort_by(|one, other| other.score.total_cmp(&one.score));
        found.swap_remove(0)
    }

    #[test]
    fn throughput_wants_the_largest_batches() {
        let found = best("throughput");
        assert_eq!(found.candidate.max_batch, 8);
        assert!((1300.0..=1334.0).contains(&found.score), "{found:?}");
    }

    #[test]
    fn a_tight_latency_allows_less_than_a_wide_one() {
        let (tight, wide, none) = (best("p99<6ms"), best("p99<50ms"), best("p99<1ms"));
        assert!(none.score < 1.0, "{none:?}");
        assert!((100.0..900.0).contains(&tight.score), "{tight:?}");
        assert!((1000.0..1334.0).contains(&wide.score), "{wide:?}");
        assert_eq!(wide.candidate.max_batch, 8);
    }

    #[test]
    fn goodput_under_overload_wants_deadlines() {
        let found = best("goodput<20ms");
        assert_eq!(found.candidate.objective_us, Some(20_000));
        assert!(found.score > 1000.0, "{found:?}");
    }

    /// A model whose requests are padded: the budget has room for four requests of length 16.
    #[test]
    fn an_objective_and_padding_go_together() {
        let value = |text: &str| json!({ "string_value": text });
        let parameters = json!({ "batch_padding": value("x=0"), "batch_padding_outputs": value("y=1"),
                                 "batch_padding_budget": value("64") });
        let shapes = InputShapes::from([(String::from("x"), vec![16])]);
        let found = best_of("goodput<20ms", &config(-1, &parameters), &shapes);
        assert_eq!(found.candidate.objective_us, Some(20_000));
        // Batches of four process 1,000 rows per second.
        assert!((900.0..=1_001.0).contains(&found.score), "{found:?}");
        let short = best_of("goodput<20ms", &config(-1, &parameters), &InputShapes::new());
        assert!(short.score > 1_200.0, "{short:?}");
    }
}
