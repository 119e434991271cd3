//! Runs, each of which takes one request through an ensemble.
//!
//! A run consists of an inbox and a [`RunDriver`]. A thread that posts an event puts it into the
//! inbox. If the driver is in its slot, the thread takes the driver and handles events until none
//! remain. Thus, only one thread at a time drives a run, no lock is held in the meantime, and
//! events are handled in the order in which they were posted. A cancellation is also an event (see
//! `infer/cancel.rs`).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use galatea_backend::LogLevel;
use galatea_infer::{CancelToken, CongestionPoint, ResumeHook};
use galatea_stdx::{DriverSlot, Lock};

use crate::driver::{RunDriver, RunProgress};
use crate::ensemble::Ensemble;
use crate::event::{RunEvent, RunInbox};
use crate::executor::Task;

/// A run; see the [module](self).
pub(crate) struct Run {
    ensemble: Arc<Ensemble>,
    /// A leaf lock. While it is held, no event is handled or dropped and no hook is called.
    state: Lock<EnsembleRunState>,
}

struct EnsembleRunState {
    events: VecDeque<RunEvent>,
    slot: DriverSlot<Box<RunDriver>>,
    /// The driver's [load](RunDriver::load).
    load: usize,
    /// The load, including events, at which the run becomes congested; `None` means never.
    load_max: Option<usize>,
    /// Hooks that run when the congestion ends.
    hooks: Vec<ResumeHook>,
}

impl EnsembleRunState {
    fn is_congested(&self) -> bool {
        self.load_max.is_some_and(|max| self.load.saturating_add(self.events.len()) >= max)
    }
}

/// The reason why a thread stops driving a run.
enum DriveStopReason {
    /// No events remain, or another thread has the driver.
    Done,
    /// The budget is used up, but events remain.
    OutOfBudget,
}

impl Run {
    /// Starts a run. After this call, the run continues whenever composing models reply.
    pub(crate) fn start(ensemble: &Arc<Ensemble>, driver: RunDriver, cancel: &CancelToken) {
        let state = EnsembleRunState {
            events: VecDeque::from([RunEvent::Begin]),
            slot: DriverSlot::Idle(Box::new(driver)),
            load: 0,
            load_max: ensemble.plan.load_max(),
            hooks: Vec::new(),
        };
        let run = Arc::new(Self { ensemble: ensemble.clone(), state: Lock::new(state) });
        let weak = Arc::downgrade(&run);
        cancel.on_cancel(move || {
            if let Some(run) = weak.upgrade() {
                run.post(RunEvent::Cancelled);
            }
        });
        ensemble.executor.submit(run);
    }

    fn drive(self: &Arc<Self>, budget: &mut usize) -> DriveStopReason {
        let Some(mut driver) = self.state.lock("take the driver").slot.take() else {
            return DriveStopReason::Done;
        };
        let inbox: Arc<dyn RunInbox> = self.clone();
        loop {
            let event = match self.next_event(driver, *budget) {
                Ok((taken, event)) => {
                    driver = taken;
                    event
                }
                Err(end) => return end,
            };
            *budget -= 1;
            let handled = catch_unwind(AssertUnwindSafe(|| driver.handle(&inbox, event)));
            match handled {
                Ok(RunProgress::Ongoing) => {
                    if self.ensemble.plan.load_max().is_some() {
                        self.set_load(driver.load());
                    }
                }
                Ok(RunProgress::Finished) => {
                    self.close();
                    return DriveStopReason::Done;
                }
                Err(_) => {
                    // Dropping the driver sends an error to the caller.
                    self.close();
                    drop(driver);
                    let line = format!("a request to ensemble '{}' broke", self.ensemble.plan.name);
                    self.ensemble.host.log(LogLevel::Error, &line);
                    return DriveStopReason::Done;
                }
            }
        }
    }

    /// Takes the next event. If there is none, or if the budget is used up, returns the driver to
    /// its slot.
    fn next_event(
        &self,
        driver: Box<RunDriver>,
        budget: usize,
    ) -> Result<(Box<RunDriver>, RunEvent), DriveStopReason> {
        let mut state = self.state.lock("take the next event");
        let event = if budget > 0 { state.events.pop_front() } else { None };
        state.slot.next_or_release(driver, event).ok_or(match state.events.is_empty() {
            true => DriveStopReason::Done,
            false => DriveStopReason::OutOfBudget,
        })
    }

    fn set_load(&self, load: usize) {
        let hooks = {
            let mut state = self.state.lock("update the load");
            state.load = load;
            if state.is_congested() { Vec::new() } else { std::mem::take(&mut state.hooks) }
        };
        hooks.into_iter().for_each(|hook| hook());
    }

    fn close(&self) {
        let (events, hooks) = {
            let mut state = self.state.lock("close");
            state.slot = DriverSlot::Closed;
            state.load_max = None;
            (std::mem::take(&mut state.events), std::mem::take(&mut state.hooks))
        };
        events.into_iter().for_each(|event| self.discard(event));
        hooks.into_iter().for_each(|hook| hook());
    }

    /// Drops an event after the run has ended. After a panic, a gate may still admit the run's
    /// calls; their places are then freed for other runs.
    fn discard(&self, event: RunEvent) {
        if let (RunEvent::Admitted(step, _), Some(gates)) = (&event, &self.ensemble.gates) {
            gates.leave(*step);
        }
    }
}

impl RunInbox for Run {
    fn post(self: Arc<Self>, event: RunEvent) {
        let mut state = self.state.lock("post an event");
        match state.slot {
            DriverSlot::Closed => {
                // Dropping a reply may call foreign code.
                drop(state);
                self.discard(event);
            }
            DriverSlot::Driving => state.events.push_back(event),
            DriverSlot::Idle(_) => {
                state.events.push_back(event);
                drop(state);
                let ensemble = self.ensemble.clone();
                ensemble.executor.submit(self);
            }
        }
    }
}

impl Task for Run {
    fn run(self: Arc<Self>, budget: &mut usize) -> Option<Arc<dyn Task>> {
        match self.drive(budget) {
            DriveStopReason::Done => None,
            DriveStopReason::OutOfBudget => Some(self),
        }
    }
}

/// Reports the run's own pending work: events, responses of decoupled steps that are waiting for
/// other tensors, and calls, unless gates count them.
impl CongestionPoint for Run {
    fn is_congested(&self) -> bool {
        self.state.lock("read the congestion").is_congested()
    }

    fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook> {
        let mut state = self.state.lock("add a hook");
        if !state.is_congested() {
            return Some(hook);
        }
        state.hooks.push(hook);
        None
    }
}
