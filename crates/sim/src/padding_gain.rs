//! Compares padded batches with executions one by one under the same load: batches must gain enough
//! where they pay off and lose nothing where they don't.
//!
//! A text of mean length takes 6 ms, like MiniLM on one core. A share of this time is fixed for
//! each execution, and the rest is proportional to the number of padded elements. Only the fixed
//! share can be saved.

use galatea_policy::{DynamicBatcherSpec, PaddingSpec, SchedulingMode, SchedulingSpec};
use galatea_simulate::{
    Arrival, ClosedLoopClients, Execution, Report, simulate_clients, simulate_open_loop,
};

use crate::check::{Check, ensure};
use crate::random::Random;

const MAX_ROWS: u32 = 32;

/// The duration of executing a text of mean length alone.
const TEXT_NS: f64 = 6e6;

/// The lengths of texts, in tokens.
const LENGTHS: std::ops::RangeInclusive<u32> = 5..=256;

/// The bounds that no seed exceeds. In such a short load, single batches make a difference. The
/// test of the entire grid has tighter bounds.
const P99_MAX: f64 = 1.15;
const RATE_MIN: f64 = 0.97;

/// The bound on the rate if half of an execution is fixed and 64 texts are in flight.
const PAYING_RATE_MIN: f64 = 1.25;

/// The way in which requests arrive.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum ArrivalPattern {
    /// A number of clients, each of which sends a text when it has received the previous response.
    InFlight(u32),
    /// Requests arrive independently of each other, at this share of the rate that executions one
    /// by one reach.
    Rate(f64),
}

impl ArrivalPattern {
    /// Patterns with 1 to 64 texts in flight, and with rates from half of the capacity to above it.
    pub const ALL: [ArrivalPattern; 9] = [
        ArrivalPattern::InFlight(1),
        ArrivalPattern::InFlight(4),
        ArrivalPattern::InFlight(16),
        ArrivalPattern::InFlight(64),
        ArrivalPattern::Rate(0.5),
        ArrivalPattern::Rate(0.7),
        ArrivalPattern::Rate(0.9),
        ArrivalPattern::Rate(1.0),
        ArrivalPattern::Rate(1.1),
    ];
}

/// A load and its execution costs.
#[derive(Copy, Clone, Debug)]
pub struct PaddingExperiment {
    /// The way in which requests arrive.
    pub load: ArrivalPattern,
    /// The share of a text's execution time that doesn't depend on its length.
    pub fixed: f64,
    /// The variation of durations, as a share of the duration in each direction.
    pub noise: f64,
    /// The number of requests.
    pub requests: usize,
    /// The seed of the texts, their arrivals and the noise.
    pub seed: u64,
}

/// The results of a cell.
#[derive(Clone, Debug)]
pub struct PaddingComparison {
    /// The result with padded batches.
    pub padded: Report,
    /// The result with a separate execution for each request, in arrival order.
    pub one_by_one: Report,
}

impl PaddingComparison {
    /// Returns the response rate, relative to that of executions one by one.
    pub fn throughput_ratio(&self) -> f64 {
        self.padded.throughput() / self.one_by_one.throughput()
    }

    /// Returns the latency that this share of the responses doesn't exceed, relative to that of
    /// executions one by one.
    pub fn latency_ratio(&self, share: f64) -> f64 {
        self.padded.quantile_ns(share) as f64 / self.one_by_one.quantile_ns(share).max(1) as f64
    }
}

impl PaddingExperiment {
    /// Runs the load both ways.
    pub fn run(&self) -> PaddingComparison {
        let mut random = Random::new(self.seed);
        let lengths: Vec<u32> = (0..self.requests).map(|_| some_length(&mut random)).collect();
        let all: f64 = lengths.iter().copied().map(f64::from).sum();
        let costs = SimulatedCosts { fixed: self.fixed, mean: all / lengths.len().max(1) as f64 };
        let padding = Some(PaddingSpec { budget: u64::MAX });
        let dynamic = DynamicBatcherSpec { padding, ..DynamicBatcherSpec::default() };
        let run = |mode| self.simulate(mode, &lengths, costs);
        let padded = run(SchedulingMode::Dynamic(dynamic));
        PaddingComparison { padded, one_by_one: run(SchedulingMode::Default) }
    }

    fn simulate(&self, mode: SchedulingMode, lengths: &[u32], costs: SimulatedCosts) -> Report {
        let spec = SchedulingSpec {
            max_batch_size: MAX_ROWS,
            mode,
            hold_until_queued: 0,
            hold_until_backlogged: 0,
        };
        let mut noise = Random::new(self.seed ^ 0xD07A);
        let duration_ns = |execution: Execution| {
            let varied = 1.0 + self.noise * (2.0 * noise.unit() - 1.0);
            (costs.of(execution) * varied) as u64
        };
        let mut random = Random::new(self.seed ^ 0xA441);
        let mut now = 0.0;
        let arrivals: Vec<Arrival> = (lengths.iter())
            .map(|length| {
                if let ArrivalPattern::Rate(share) = self.load {
                    now += -random.unit().ln() * TEXT_NS / share;
                }
                Arrival { length: *length, ..Arrival::at(now as u64) }
            })
            .collect();
        match self.load {
            ArrivalPattern::InFlight(count) => {
                let clients = ClosedLoopClients::new(count, Vec::new());
                simulate_clients(&spec, 1, &arrivals, &clients, duration_ns)
            }
            ArrivalPattern::Rate(_) => simulate_open_loop(&spec, 1, &arrivals, duration_ns),
        }
    }
}

/// The execution durations.
#[derive(Copy, Clone)]
struct SimulatedCosts {
    fixed: f64,
    /// The mean text length.
    mean: f64,
}

impl SimulatedCosts {
    fn of(self, execution: Execution) -> f64 {
        let elements = f64::from(execution.rows) * f64::from(execution.length);
        TEXT_NS * (self.fixed + (1.0 - self.fixed) * elements / self.mean)
    }
}

/// Draws a text length: 33 tokens on average, and rarely much longer.
fn some_length(random: &mut Random) -> u32 {
    let normal: f64 = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
    let length = (3.24 + 0.75 * normal).exp();
    (length as u32).clamp(*LENGTHS.start(), *LENGTHS.end())
}

/// Runs a short load of this seed in which batches gain either nothing or much.
///
/// # Errors
///
/// Returns an error if padding lowers the rate, delays slow responses, or gains far less than it
/// could.
pub(crate) fn check_padding_gain(seed: u64) -> Check {
    let mut random = Random::new(seed ^ 0x6A15);
    let cell = PaddingExperiment {
        load: random.pick(&ArrivalPattern::ALL),
        fixed: random.pick(&[0.0, 0.02]),
        noise: 0.05,
        requests: 2_000,
        seed,
    };
    if random.percent(50) {
        let cell = PaddingExperiment { load: ArrivalPattern::InFlight(64), fixed: 0.5, ..cell };
        let rate = cell.run().throughput_ratio();
        let is_fast = rate >= PAYING_RATE_MIN;
        ensure!(is_fast, "padding: {rate:.3} of the rate one by one at {cell:?}");
        return Ok(());
    }
    let result = cell.run();
    let (rate, p99) = (result.throughput_ratio(), result.latency_ratio(0.99));
    let (is_fast, is_prompt) = (rate >= RATE_MIN, p99 <= P99_MAX);
    ensure!(is_fast, "padding: {rate:.3} of the rate one by one at {cell:?}");
    ensure!(is_prompt, "padding: {p99:.3} of the p99 one by one at {cell:?}");
    Ok(())
}
