//! The result of a run.

use super::occurrences::CoverageCounts;
use crate::harness::OracleMode;
use crate::random_setup::SchedulerMode;
use crate::trace::SchedulerTrace;

/// The length of a run and the reference for its decisions.
#[derive(Copy, Clone, Debug)]
pub struct SimulationConfig {
    /// The maximum number of requests, after which clients stop sending.
    pub requests: u64,
    /// The reference for decisions.
    pub reference: OracleMode,
    /// The kind of scheduler; `None` means any.
    pub mode: Option<SchedulerMode>,
}

impl Default for SimulationConfig {
    fn default() -> Self {
        SimulationConfig { requests: 100, reference: OracleMode::Oracle, mode: None }
    }
}

/// The result of a run without a violation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RunResult {
    /// A hash of all events and decisions.
    pub trace_hash: u64,
    /// The number of scheduler steps.
    pub events: u64,
    /// The number of executed requests.
    pub completed: u64,
    /// The number of times that each kind of event occurred.
    pub occurrences: CoverageCounts,
}

/// A rule that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed that reproduces it.
    pub seed: u64,
    /// The settings that reproduce it.
    pub config: SimulationConfig,
    /// The broken rule.
    pub message: String,
    /// The events that led to the violation.
    pub trace: SchedulerTrace,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let steps = self.trace.steps.len();
        writeln!(
            formatter,
            "{}\nseed {} after {steps} steps; again with:",
            self.message, self.seed
        )?;
        write!(formatter, "  cargo run -p galatea-sim --bin galatea-sim --")?;
        write!(formatter, " --seed {} --requests {}", self.seed, self.config.requests)?;
        if let Some(mode) = self.config.mode {
            write!(formatter, " --mode {}", mode.name())?;
        }
        match self.config.reference {
            OracleMode::Oracle => Ok(()),
            OracleMode::OracleWithPermits => write!(formatter, " --with-permits"),
            OracleMode::ChecksOnly => write!(formatter, " --without-oracle"),
        }
    }
}
