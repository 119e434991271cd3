//! The result of a run.

use super::occurrences::OccurrenceCounts;
use crate::harness::Reference;
use crate::random_setup::Mode;
use crate::trace::Trace;

/// The length of a run and the reference for its decisions.
#[derive(Copy, Clone, Debug)]
pub struct Config {
    /// The maximum number of requests, after which clients stop sending.
    pub requests: u64,
    /// The reference for decisions.
    pub reference: Reference,
    /// The kind of scheduler; `None` means any.
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
    /// Number of scheduler steps.
    pub events: u64,
    /// Number of executed requests.
    pub completed: u64,
    /// The number of times that each kind of event occurred.
    pub occurrences: OccurrenceCounts,
}

/// A rule that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed that reproduces it.
    pub seed: u64,
    /// The settings that reproduce it.
    pub config: Config,
    /// The broken rule.
    pub message: String,
    /// The events that led to the violation.
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
