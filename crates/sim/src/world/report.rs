//! How a life went.

use super::tally::Tally;
use crate::harness::Reference;
use crate::specs::Mode;
use crate::trace::Trace;

/// How long a run is, and what it is compared with.
#[derive(Copy, Clone, Debug)]
pub struct Config {
    /// Requests after which clients fall silent.
    pub requests: u64,
    /// What decisions are compared with.
    pub reference: Reference,
    /// The kind of scheduler; any, if there is none.
    pub mode: Option<Mode>,
}

impl Default for Config {
    fn default() -> Self {
        Config { requests: 100, reference: Reference::Oracle, mode: None }
    }
}

/// A run in which everything held.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// A hash of all events and deeds.
    pub trace_hash: u64,
    /// Steps of the scheduler.
    pub events: u64,
    /// Requests that ran.
    pub completed: u64,
    /// What was seen how often.
    pub tally: Tally,
}

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed that shows it again.
    pub seed: u64,
    /// The settings of the run, which must be the same again.
    pub config: Config,
    /// Which promise.
    pub message: String,
    /// Everything that happened until then.
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
