//! A recorded trace: its text form, replay and reduction.

pub(crate) mod fields;
mod read;
mod write;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use galatea_policy::{SchedulerEvent, Time};

use crate::harness::{Harness, OracleMode};
use crate::setup::SchedulerSetup;

/// A specification and the events that follow.
///
/// The text begins with `spec`, the kind of scheduler and its settings. Each further line is an
/// event: the time, a word and its arguments. A key consists of its index in the driver's slab and,
/// after a dot, its generation. Empty lines and lines with # are ignored.
///
/// ```
/// let trace: galatea_sim::SchedulerTrace = "
///     spec direct max=2 hold=0 backlog=0 idle=50 iterative=0 delay=0 minimum=0
///     0 add id=0
///     1 request id=0 rows=1 key=0 priority=0 timeout=0 sequence=0.1 start=1 end=0
///     2 released id=0 again=0
///     2 free id=0
///     52 tick
/// ".parse().expect("a trace");
/// assert!(trace.replay(galatea_sim::OracleMode::Oracle).is_ok());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchedulerTrace {
    /// The settings of the scheduler.
    pub setup: SchedulerSetup,
    /// Events in the order of steps.
    pub steps: Vec<(Time, SchedulerEvent)>,
}

impl SchedulerTrace {
    /// Replays the trace. Events that have become impossible because others were removed are
    /// skipped. Returns the trace's hash or, if a rule was broken, the number of steps until then
    /// and the message.
    pub fn replay(&self, reference: OracleMode) -> Result<u64, (usize, String)> {
        let mut harness = Harness::new(&self.setup, reference);
        for (index, (now, event)) in self.steps.iter().enumerate() {
            if !harness.allows(*now, event) {
                continue;
            }
            let result = catch_unwind(AssertUnwindSafe(|| harness.step(*now, *event)));
            match result {
                Ok(Ok(_)) => {}
                Ok(Err(message)) => return Err((index + 1, message)),
                Err(panic) => return Err((index + 1, panic_text(&panic))),
            }
        }
        Ok(harness.trace_hash())
    }

    /// Returns a shorter trace that also fails, perhaps with another message, or `self` if none is
    /// found or it doesn't fail.
    pub fn shrink(&self, reference: OracleMode) -> SchedulerTrace {
        let mut best = self.clone();
        let mut chunk = best.steps.len();
        while chunk > 0 {
            if let Err((steps, _)) = best.replay(reference) {
                best.steps.truncate(steps);
            }
            let mut start = 0;
            while start < best.steps.len() {
                let mut shorter = best.clone();
                shorter.steps.drain(start..(start + chunk).min(best.steps.len()));
                if shorter.replay(reference).is_err() {
                    best = shorter;
                } else {
                    start += chunk;
                }
            }
            chunk /= 2;
        }
        best
    }
}

pub(crate) fn panic_text(panic: &Box<dyn Any + Send>) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the scheduler panicked: {}", text.unwrap_or("without words"))
}
