//! In-time responses per second: compares the deadline batcher with the dynamic batcher at every
//! setting that a person could tune by hand, under the same load.

use galatea_policy::{
    DeadlineBatcherSpec, DynamicBatcherSpec, QueuePolicy, SchedulingMode, SchedulingSpec,
};
use galatea_simulate::{Arrival, Execution, Report, simulate_open_loop};

use crate::check::{Check, ensure};
use crate::random::Random;

const MAX_ROWS: u32 = 16;
const NS_PER_US: f64 = 1e3;

/// The bounds that no seed exceeds. In such a short load, the time to learn execution costs is
/// noticeable. The tests of entire loads have tighter bounds.
const RATIO_MIN: f64 = 0.72;
const LATE_MAX: u64 = 20;
/// The bound for late responses if a full batch leaves no time for another one.
const LATE_MAX_TIGHT: u64 = 80;

/// The cost of an execution.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum CostCurve {
    /// 4 ms plus 0.25 ms per row: mostly fixed, as on a GPU.
    MostlyFixed,
    /// 2 ms plus 0.5 ms per row.
    Mixed,
    /// 0.3 ms plus 1 ms per row: batches save little, as on a CPU.
    MostlyByRow,
}

impl CostCurve {
    /// All cost curves.
    pub const ALL: [CostCurve; 3] =
        [CostCurve::MostlyFixed, CostCurve::Mixed, CostCurve::MostlyByRow];

    /// Returns the fixed time per execution and the time per row, in microseconds.
    pub const fn fixed_and_per_row_us(self) -> (u32, u32) {
        match self {
            CostCurve::MostlyFixed => (4_000, 250),
            CostCurve::Mixed => (2_000, 500),
            CostCurve::MostlyByRow => (300, 1_000),
        }
    }

    fn duration_ns(self, rows: u32) -> f64 {
        let (fixed, row) = self.fixed_and_per_row_us();
        (f64::from(fixed) + f64::from(row) * f64::from(rows)) * NS_PER_US
    }
}

/// The law by which requests arrive.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ArrivalLaw {
    /// Requests arrive independently of each other.
    Poisson,
    /// Requests arrive by a two-state Markov process, with half the rate or three times the rate.
    Bursts,
    /// The rate rises and falls as in a day with two peaks.
    Day,
}

impl ArrivalLaw {
    /// All arrival laws.
    pub const ALL: [ArrivalLaw; 3] = [ArrivalLaw::Poisson, ArrivalLaw::Bursts, ArrivalLaw::Day];
}

/// A load with its execution costs and deadlines.
#[derive(Copy, Clone, Debug)]
pub struct GoodputExperiment {
    /// The cost of executions.
    pub curve: CostCurve,
    /// The law by which requests arrive.
    pub law: ArrivalLaw,
    /// The rate, as a share of the throughput of full batches.
    pub load: f64,
    /// The deadline of each request, as a multiple of the duration of a full batch.
    pub objective: f64,
    /// The number of instances, each with its own processor.
    pub instances: u32,
    /// The number of requests.
    pub requests: usize,
    /// The variation of durations, as a share of the duration in each direction.
    pub noise: f64,
    /// The time by which each execution exceeds the curve, in microseconds.
    pub overhead_us: u32,
    /// The seed of the arrivals and the noise.
    pub seed: u64,
}

/// The results of a cell.
#[derive(Clone, Debug)]
pub struct GoodputComparison {
    /// The result of the deadline batcher.
    pub deadlines: Report,
    /// The result of the best setting of the dynamic batcher.
    pub best: Report,
    /// The best setting; `None` if the dynamic batcher is best without one.
    pub best_setting: Option<DynamicBatcherSpec>,
    /// The result of the dynamic batcher without settings.
    pub first_come: Report,
    /// The throughput of full batches, in responses per second.
    pub capacity: f64,
}

impl GoodputComparison {
    /// Returns the goodput as a share of that of the best setting.
    pub fn ratio(&self) -> f64 {
        self.deadlines.in_time as f64 / self.best.in_time.max(1) as f64
    }

    /// Returns the best setting, as text.
    pub fn best_setting_text(&self) -> String {
        let Some(setting) = &self.best_setting else { return String::from("none") };
        format!(
            "delay {} µs, preferred {:?}, time-out {} µs",
            setting.max_queue_delay_ns / 1000,
            setting.preferred_batch_sizes,
            setting.default_queue_policy.default_timeout_ns / 1000
        )
    }
}

impl GoodputExperiment {
    /// Runs the load with the deadline batcher and with every setting of the dynamic one.
    pub fn run(&self) -> GoodputComparison {
        self.run_against(|_| true)
    }

    /// Runs the load with the deadline batcher and with the included settings of the dynamic one.
    pub fn run_against(&self, includes: impl Fn(&DynamicBatcherSpec) -> bool) -> GoodputComparison {
        let (capacity, objective_ns) = (self.capacity(), self.deadline_ns());
        let arrivals = self.arrivals();
        let run = |mode| self.simulate(mode, &arrivals);
        let queue = DynamicBatcherSpec::default();
        let deadlines = run(SchedulingMode::Deadline(DeadlineBatcherSpec { objective_ns, queue }));
        let first_come = run(SchedulingMode::Dynamic(DynamicBatcherSpec::default()));
        let (mut best, mut best_setting) = (first_come.clone(), None);
        for setting in hand_tuned(objective_ns).into_iter().filter(includes) {
            let report = run(SchedulingMode::Dynamic(setting.clone()));
            if report.in_time > best.in_time {
                best = report;
                best_setting = Some(setting);
            }
        }
        GoodputComparison { deadlines, best, best_setting, first_come, capacity }
    }

    fn simulate(&self, mode: SchedulingMode, arrivals: &[Arrival]) -> Report {
        let spec = SchedulingSpec {
            max_batch_size: MAX_ROWS,
            mode,
            hold_until_queued: 0,
            hold_until_backlogged: 0,
        };
        let mut random = Random::new(self.seed ^ 0xD07A);
        simulate_open_loop(&spec, self.instances, arrivals, |execution: Execution| {
            let varied = 1.0 + self.noise * (2.0 * random.unit() - 1.0);
            let overhead_ns = f64::from(self.overhead_us) * NS_PER_US;
            (self.curve.duration_ns(execution.rows) * varied + overhead_ns) as u64
        })
    }

    /// Returns the throughput of full batches, in responses per second.
    fn capacity(&self) -> f64 {
        let full_ns = self.curve.duration_ns(MAX_ROWS);
        f64::from(self.instances) * f64::from(MAX_ROWS) * 1e9 / full_ns
    }

    /// Returns the deadline of each request, relative to its arrival.
    pub fn deadline_ns(&self) -> u64 {
        (self.curve.duration_ns(MAX_ROWS) * self.objective) as u64
    }

    /// Returns the arrivals of the load.
    pub fn arrivals(&self) -> Vec<Arrival> {
        let (rate, deadline_ns) = (self.capacity() * self.load, self.deadline_ns());
        let mut random = Random::new(self.seed);
        let span_ns = self.requests as f64 * 1e9 / rate;
        let dwell_ns = self.curve.duration_ns(MAX_ROWS) * 20.0;
        let (mut now, mut is_burst, mut state_ends) = (0.0, false, 4.0 * dwell_ns);
        let mut arrivals = Vec::with_capacity(self.requests);
        while arrivals.len() < self.requests {
            let speed = match self.law {
                ArrivalLaw::Poisson => 1.0,
                ArrivalLaw::Bursts if is_burst => 3.0,
                ArrivalLaw::Bursts => 0.5,
                ArrivalLaw::Day => speed_of_day(now / span_ns),
            };
            let next = now + exponential(&mut random, 1e9 / (rate * speed));
            if self.law == ArrivalLaw::Bursts && next > state_ends {
                now = state_ends;
                is_burst = !is_burst;
                let mean = if is_burst { dwell_ns } else { 4.0 * dwell_ns };
                state_ends = now + exponential(&mut random, mean);
                continue;
            }
            now = next;
            arrivals.push(Arrival { deadline_ns, ..Arrival::at(now as u64) });
        }
        arrivals
    }
}

/// Returns the rate at a time of day, as a share of its mean.
fn speed_of_day(share: f64) -> f64 {
    let angle = share * std::f64::consts::TAU;
    (1.0 + 0.6 * (angle - 2.0).sin() + 0.25 * (2.0 * angle).sin()).max(0.05)
}

/// Returns the settings that a person could try.
fn hand_tuned(objective_ns: u64) -> Vec<DynamicBatcherSpec> {
    let mut settings = Vec::new();
    for max_queue_delay_ns in [0, 100_000, 1_000_000, 5_000_000] {
        for preferred_batch_sizes in [vec![], vec![4], vec![8], vec![4, 8, 16]] {
            // Preferred sizes have no effect without a delay.
            if max_queue_delay_ns == 0 && !preferred_batch_sizes.is_empty() {
                continue;
            }
            for percent in [0, 25, 50, 70, 85, 100] {
                let default_timeout_ns = objective_ns / 100 * percent;
                settings.push(DynamicBatcherSpec {
                    preferred_batch_sizes: preferred_batch_sizes.clone(),
                    max_queue_delay_ns,
                    default_queue_policy: QueuePolicy {
                        default_timeout_ns,
                        ..QueuePolicy::default()
                    },
                    ..DynamicBatcherSpec::default()
                });
            }
        }
    }
    settings
}

/// Runs a short load of this seed.
///
/// # Errors
///
/// Returns an error if the deadline batcher answers far fewer requests in time than the dynamic
/// batcher with the best timeout; if it answers many too late or, under a small load, later than
/// without a setting; or if it refuses many only after they have waited.
pub(crate) fn check_goodput(seed: u64) -> Check {
    let mut random = Random::new(seed);
    let cell = GoodputExperiment {
        curve: random.pick(&CostCurve::ALL),
        law: random.pick(&ArrivalLaw::ALL),
        load: random.pick(&[0.5, 0.9, 1.1, 1.5]),
        objective: random.pick(&[1.5, 2.5, 5.0]),
        instances: random.between_u32(1, 2),
        requests: 2_000,
        noise: 0.05,
        overhead_us: 0,
        seed,
    };
    let result = cell.run_against(|setting| setting.max_queue_delay_ns == 0);
    let (ratio, late) = (result.ratio(), result.deadlines.late);
    let (best, is_close) = (result.best_setting_text(), ratio >= RATIO_MIN);
    ensure!(is_close, "{ratio:.3} of the goodput with {best} at {cell:?}");
    let late_max = if cell.objective < 2.0 { LATE_MAX_TIGHT } else { LATE_MAX };
    ensure!(late <= late_max, "{late} late at {cell:?}");
    let (ours, plain) = (&result.deadlines, &result.first_come);
    if cell.load <= 0.5 {
        let (median, other) = (ours.quantile_ns(0.5), plain.quantile_ns(0.5));
        ensure!(median <= other * 3 / 2, "median {median} ns, not {other}, at {cell:?}");
    }
    if cell.load >= 1.5 && cell.objective >= 5.0 {
        let (at_once, all) = (ours.refused_at_once, ours.refused);
        ensure!(
            all < 100 || at_once * 4 >= all,
            "{at_once} of {all} are refused at once at {cell:?}"
        );
    }
    Ok(())
}

fn exponential(random: &mut Random, mean: f64) -> f64 {
    -random.unit().ln() * mean
}
