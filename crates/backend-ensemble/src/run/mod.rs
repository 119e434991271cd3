//! One request on its way through an ensemble.
//!
//! A run is a mailbox and a [`Driver`]. Whoever brings an event puts it into the
//! mailbox; whoever finds the driver there takes it out and handles events until
//! none is left. So one thread at a time drives a run, without a lock, and events
//! are handled in the order in which they came.

mod driver;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use galatea_backend::LogLevel;
use galatea_infer::{CongestionPoint, PendingRequest, Reply, ResumeHook};
use galatea_policy::{StepCallKey, StepIndex};

use self::driver::{Driver, Progress};
use crate::model::Ensemble;
use crate::turns::Left;

/// Something that happened to a run.
pub(crate) enum Event {
    /// The first steps may start.
    Begin,
    /// A call of this step may start.
    Admitted(StepIndex, StepCallKey),
    /// A composing model answers a call.
    Reply(StepCallKey, Reply),
    /// The client gave up.
    Cancelled,
}

/// A request on its way.
pub(crate) struct Run {
    ensemble: Arc<Ensemble>,
    /// A leaf: nothing is called or dropped under it.
    mail: Mutex<Mail>,
}

struct Mail {
    events: VecDeque<Event>,
    driver: Seat,
    /// What the driver said that piles up.
    load: usize,
    /// How much of that, with the events, makes the run full; `None` if none of
    /// its steps would pause.
    room: Option<usize>,
    /// What waits until it isn't.
    hooks: Vec<ResumeHook>,
}

impl Mail {
    fn is_full(&self) -> bool {
        self.room.is_some_and(|room| self.load.saturating_add(self.events.len()) >= room)
    }
}

/// Where a run's driver is.
enum Seat {
    /// Here: whoever brings an event takes it.
    Waiting(Box<Driver>),
    /// With a thread that will look for events before it puts it back.
    Driving,
    /// Nowhere: the run is over, and events come too late.
    Gone,
}

impl Run {
    /// Starts a request; what it waits for goes on elsewhere.
    pub(crate) fn start(ensemble: &Arc<Ensemble>, request: PendingRequest) {
        let cancel = request.request().cancel.clone();
        let Some(driver) = Driver::new(ensemble, request) else { return };
        let mail = Mail {
            events: VecDeque::from([Event::Begin]),
            driver: Seat::Waiting(Box::new(driver)),
            load: 0,
            room: ensemble.plan.room(),
            hooks: Vec::new(),
        };
        let run = Arc::new(Self { ensemble: ensemble.clone(), mail: Mutex::new(mail) });
        let this = Arc::downgrade(&run);
        cancel.on_cancel(move || {
            if let Some(run) = this.upgrade() {
                run.post(Event::Cancelled);
            }
        });
        ensemble.turns.take(run);
    }

    /// Brings an event; it is handled on this thread unless another one drives
    /// the run.
    pub(crate) fn post(self: &Arc<Self>, event: Event) {
        let mut mail = self.lock();
        match mail.driver {
            Seat::Gone => {
                // What comes too late may answer when it is dropped.
                drop(mail);
                self.turn_away(event);
            }
            Seat::Driving => mail.events.push_back(event),
            Seat::Waiting(_) => {
                mail.events.push_back(event);
                drop(mail);
                self.ensemble.turns.take(self.clone());
            }
        }
    }

    /// Handles events, as many as the budget allows, unless another thread does.
    pub(crate) fn drain(self: &Arc<Self>, budget: &mut usize) -> Left {
        let Some(mut driver) = self.take_driver() else { return Left::Nothing };
        loop {
            let event = match self.next_event(driver, *budget) {
                Next::Event(back, event) => {
                    driver = back;
                    event
                }
                Next::Rest(left) => return left,
            };
            *budget -= 1;
            let handled = catch_unwind(AssertUnwindSafe(|| driver.handle(self, event)));
            match handled {
                Ok(Progress::GoesOn) => {
                    if self.ensemble.plan.room().is_some() {
                        self.set_load(driver.load());
                    }
                }
                Ok(Progress::Over) => {
                    self.close();
                    return Left::Nothing;
                }
                Err(_) => {
                    // Its responder answers when it is dropped.
                    self.close();
                    drop(driver);
                    let line = format!("a request to ensemble '{}' broke", self.ensemble.plan.name);
                    self.ensemble.host.log(LogLevel::Error, &line);
                    return Left::Nothing;
                }
            }
        }
    }

    fn take_driver(&self) -> Option<Box<Driver>> {
        let mut mail = self.lock();
        match std::mem::replace(&mut mail.driver, Seat::Driving) {
            Seat::Waiting(driver) => Some(driver),
            Seat::Driving => None,
            Seat::Gone => {
                mail.driver = Seat::Gone;
                None
            }
        }
    }

    /// The next event, or the driver goes back to its seat.
    fn next_event(&self, driver: Box<Driver>, budget: usize) -> Next {
        let mut mail = self.lock();
        if budget > 0
            && let Some(event) = mail.events.pop_front()
        {
            return Next::Event(driver, event);
        }
        mail.driver = Seat::Waiting(driver);
        Next::Rest(if mail.events.is_empty() { Left::Nothing } else { Left::Events })
    }

    fn set_load(&self, load: usize) {
        let hooks = {
            let mut mail = self.lock();
            mail.load = load;
            if mail.is_full() { Vec::new() } else { std::mem::take(&mut mail.hooks) }
        };
        hooks.into_iter().for_each(|hook| hook());
    }

    fn close(&self) {
        let (events, hooks) = {
            let mut mail = self.lock();
            mail.driver = Seat::Gone;
            mail.room = None;
            (std::mem::take(&mut mail.events), std::mem::take(&mut mail.hooks))
        };
        events.into_iter().for_each(|event| self.turn_away(event));
        hooks.into_iter().for_each(|hook| hook());
    }

    /// An event comes after the end. Only a run that broke has calls then that
    /// wait to start: others wait for their places.
    fn turn_away(&self, event: Event) {
        if let (Event::Admitted(step, _), Some(gates)) = (&event, &self.ensemble.gates) {
            gates.leave(*step);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Next {
    Event(Box<Driver>, Event),
    Rest(Left),
}

/// What piles up in the run itself: answers that nobody handled yet, responses of
/// decoupled steps that wait for other tensors, and calls that no gate counts.
impl CongestionPoint for Run {
    fn is_congested(&self) -> bool {
        self.lock().is_full()
    }

    fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook> {
        let mut mail = self.lock();
        if !mail.is_full() {
            return Some(hook);
        }
        mail.hooks.push(hook);
        None
    }
}
