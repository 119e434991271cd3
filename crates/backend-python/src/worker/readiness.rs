//! A model's readiness checks, which run alongside executions.
//!
//! If a check is already open, a thread that asks waits for the answer to that check, as in Triton.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use galatea_infer::Status;
use galatea_stdx::{Condvar, Lock};

use super::Worker;
use crate::wire::{MalformedFrame, to_b};

/// The time limit for a model's readiness check, as in Triton.
const CHECK_PATIENCE: Duration = Duration::from_secs(5);

/// A model's answer, or the error of its check.
pub(crate) type Readiness = Result<bool, Status>;

/// The readiness checks sent to one worker.
#[derive(Debug, Default)]
pub(super) struct ReadinessCheck {
    state: Lock<CheckState>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct CheckState {
    /// The number of checks so far.
    asked: u64,
    /// True if the last check is still open.
    is_open: bool,
    /// The answer to the last completed check.
    answer: Option<Readiness>,
    is_gone: bool,
}

/// The thread that asks the worker: this thread or an earlier one.
enum ReadinessAsker {
    This(u64),
    Another,
}

impl ReadinessCheck {
    /// Begins a check, unless one is already open.
    fn begin(&self) -> ReadinessAsker {
        let mut state = self.state.lock("ask for readiness");
        if state.is_open {
            return ReadinessAsker::Another;
        }
        state.is_open = true;
        state.asked = state.asked.saturating_add(1);
        ReadinessAsker::This(state.asked)
    }

    /// The answer to the open check; `None` if the worker is gone.
    ///
    /// # Errors
    ///
    /// Fails if the time limit expires.
    fn wait(&self, patience: Duration) -> Result<Option<Readiness>, TimedOut> {
        let deadline = Instant::now().checked_add(patience);
        let mut state = self.state.lock("wait for readiness");
        loop {
            if state.is_gone {
                return Ok(None);
            }
            if !state.is_open {
                return Ok(state.answer.clone());
            }
            let now = Instant::now();
            let left = deadline.map_or(patience, |end| end.saturating_duration_since(now));
            if left.is_zero() {
                return Err(TimedOut);
            }
            state = self.answered.wait_timeout(state, left);
        }
    }

    fn answer(&self, number: u64, answer: Readiness) -> Result<(), MalformedFrame> {
        let mut state = self.state.lock("answer for readiness");
        if !state.is_open || state.asked != number {
            return Err(MalformedFrame("an answer to no question"));
        }
        state.is_open = false;
        state.answer = Some(answer);
        drop(state);
        self.answered.notify_all();
        Ok(())
    }

    fn close(&self) {
        self.state.lock("end the questions").is_gone = true;
        self.answered.notify_all();
    }
}

/// The error for a check that is not answered in time.
struct TimedOut;

impl Worker {
    /// Asks the model if it is ready.
    ///
    /// # Errors
    ///
    /// The error from the model's check, or `Unavailable` if the check takes too long.
    pub(crate) fn is_ready(&self) -> Readiness {
        self.is_ready_within(CHECK_PATIENCE)
    }

    fn is_ready_within(&self, patience: Duration) -> Readiness {
        if !self.has_check.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let asker = self.readiness.begin();
        if let ReadinessAsker::This(number) = asker {
            self.send_key(to_b::IS_READY, number);
        }
        let late = |_: TimedOut| {
            let which = match asker {
                ReadinessAsker::This(_) => "user-defined",
                ReadinessAsker::Another => "in-flight",
            };
            Status::unavailable(format!("Timed out waiting for {which} is_ready() response"))
        };
        let unhealthy = || {
            Err(Status::internal(match asker {
                ReadinessAsker::This(_) => {
                    "Stub process is not healthy while waiting for user-defined is_ready() response"
                }
                ReadinessAsker::Another => {
                    "Stub process is not healthy while waiting for is_ready()"
                }
            }))
        };
        self.readiness.wait(patience).map_err(late)?.unwrap_or_else(unhealthy)
    }

    /// Accepts an answer.
    pub(super) fn take_readiness(
        &self,
        number: u64,
        answer: Readiness,
    ) -> Result<(), MalformedFrame> {
        self.readiness.answer(number, answer)
    }

    /// Ends the open check, because no answer will arrive.
    pub(super) fn end_readiness(&self) {
        self.readiness.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn one_question_at_a_time_is_open() {
        let check = ReadinessCheck::default();
        assert!(matches!(check.begin(), ReadinessAsker::This(1)));
        assert!(matches!(check.begin(), ReadinessAsker::Another));
        assert!(check.wait(NOW).is_err(), "there is no answer yet");
        check.answer(1, Ok(false)).unwrap();
        assert_eq!(check.wait(NOW).ok(), Some(Some(Ok(false))));
        assert!(matches!(check.begin(), ReadinessAsker::This(2)));
        assert!(check.wait(NOW).is_err(), "the answer before is none to this one");
    }

    #[test]
    fn an_answer_to_no_question_is_refused() {
        let check = ReadinessCheck::default();
        assert!(check.answer(0, Ok(true)).is_err());
        check.begin();
        assert!(check.answer(2, Ok(true)).is_err());
        check.answer(1, Ok(true)).unwrap();
        assert!(check.answer(1, Ok(true)).is_err(), "once");
    }

    #[test]
    fn who_waits_learns_that_the_worker_is_gone() {
        let check = ReadinessCheck::default();
        check.begin();
        check.close();
        assert_eq!(check.wait(NOW).ok(), Some(None));
    }
}
