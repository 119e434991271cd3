//! The result of a run.

use super::occurrences::OccurrenceCounts;
use crate::harness::Reference;
use crate::random_setup::Mode;
use crate::trace::Trace;

/// The length of a run, and the reference of its decisions.
#[derive(Copy, Clone, Debug)]
pub struct Config {
    /// Maximum of requests, after which clients send no more.
    pub requests: u64,
    /// The reference of decisions.
    pub reference: Reference,
    /// The kind of scheduler; none is any.
    pub mode: Option<Mode>,
}

impl Default for Config {
    fn default() -> Self {
        Config { requests: 100, reference: Reference::Oracle, mode: None }
    }
}

/// The result of a run without a violation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RunResult {
    /// A hash of all events and decisions.
    pub trace_hash: u64,
    /// Number of steps of the scheduler.
    pub events: u64,
    /// Number of requests that were executed.
    pub completed: u64,
    /// The number of times that each event occurred.
    pub occurrences: OccurrenceCounts,
}

/// A rule that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed that reproduces it.
    pub seed: u64,
    /// The settings that reproduce it.
    pub config: Config,
    /// The rule.
    pub message: String,
    /// The events until then.
    pub trace: Trace,
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
            Reference::Oracle => Ok(()),
            Reference::OracleWithPermits => write!(formatter, " --with-permits"),
            Reference::ChecksOnly => write!(formatter, " --without-oracle"),
        }
    }
}
