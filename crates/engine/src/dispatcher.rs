//! The driver of one model's scheduler: owns it, its lock and its clock, and
//! performs what it decides.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use galatea_infer::{FailureReason, PendingRequest, Status};
use galatea_policy::{
    Action, Actions, BatchEntry, BatchKey, Event, FailReason, InstanceId, RequestKey, Scheduler,
    SchedulingSpec, Ticket, Time,
};
use slab::Slab;
use smallvec::SmallVec;

use crate::batch_key::{BatchKeys, ShapeClass};
use crate::lane::Lane;
use crate::timer::Timer;

/// Queues the requests of one model version and hands batches to its lanes.
///
/// Its one lock is a leaf: it is held for one step of the scheduler, and
/// nothing is called under it.
#[derive(Debug)]
pub struct Dispatcher {
    /// Where the scheduler's time starts.
    epoch: Instant,
    state: Mutex<State>,
    lanes: Vec<Lane>,
    timer: Timer,
    drained: Condvar,
    this: Weak<Self>,
}

#[derive(Debug)]
struct State {
    scheduler: Scheduler,
    waiting: Slab<Waiting>,
    batch_keys: BatchKeys,
    /// Counts enqueued requests, so that a late cancellation can't reach
    /// another request in the same place of the slab.
    generation: u32,
    /// The earliest alarm that the timer was asked for.
    armed: Option<Time>,
    drained: bool,
    /// The scheduler broke one of its own rules. What it says can't be
    /// trusted any more: the model answers every request with an error.
    broken: bool,
    /// Reused from step to step.
    actions: Actions,
}

/// A request in the queue.
#[derive(Debug)]
struct Waiting {
    request: PendingRequest,
    batch_key: BatchKey,
    generation: u32,
}

/// What is left to do when the lock is released.
#[derive(Debug)]
enum Effect {
    Execute {
        instance: InstanceId,
        batch: Vec<PendingRequest>,
    },
    Fail {
        request: Box<PendingRequest>,
        reason: FailReason,
    },
    /// Requests that nobody will schedule; dropping them answers them.
    Abandon(Vec<PendingRequest>),
    StopLane(InstanceId),
    NotifyDrained,
}

/// Nearly every step has one effect or none.
type Effects = SmallVec<[Effect; 1]>;

impl Dispatcher {
    /// A dispatcher over these lanes, which it starts.
    ///
    /// # Errors
    ///
    /// `Internal` if a lane's thread can't be started.
    pub(crate) fn start(
        spec: SchedulingSpec,
        lanes: Vec<Lane>,
        timer: Timer,
    ) -> Result<Arc<Self>, Status> {
        let dispatcher = Arc::new_cyclic(|this| Self {
            epoch: Instant::now(),
            state: Mutex::new(State {
                scheduler: Scheduler::new(spec),
                waiting: Slab::new(),
                batch_keys: BatchKeys::default(),
                generation: 0,
                armed: None,
                drained: false,
                broken: false,
                actions: Actions::default(),
            }),
            lanes,
            timer,
            drained: Condvar::new(),
            this: this.clone(),
        });
        for (instance, lane) in dispatcher.instances() {
            lane.start(instance, &dispatcher)?;
            dispatcher.event(Event::AddInstance(instance));
        }
        Ok(dispatcher)
    }

    fn instances(&self) -> impl Iterator<Item = (InstanceId, &Lane)> {
        (0..).map(InstanceId).zip(&self.lanes)
    }

    /// Queues an admitted request.
    pub(crate) fn enqueue(&self, request: PendingRequest, shape_class: Option<ShapeClass>) {
        let cancel = request.request().cancel.clone();
        let mut state = self.lock();
        let (ticket, generation) = state.admit(request, shape_class);
        let key = ticket.key;
        let effects = self.step(&mut state, Event::Enqueue(ticket));
        let is_queued = state.holds(key, generation);
        drop(state);
        self.perform(effects);
        if is_queued {
            let this = self.this.clone();
            cancel.on_cancel(move || {
                if let Some(dispatcher) = this.upgrade() {
                    dispatcher.cancel(key, generation);
                }
            });
        }
    }

    /// Takes a request out of the queue; one that has left it goes on.
    fn cancel(&self, key: RequestKey, generation: u32) {
        let mut state = self.lock();
        if state.holds(key, generation) {
            let effects = self.step(&mut state, Event::Cancel(key));
            drop(state);
            self.perform(effects);
        }
    }

    /// An alarm went off.
    pub(crate) fn tick(&self) {
        let mut state = self.lock();
        state.armed = None;
        let effects = self.step(&mut state, Event::Tick);
        drop(state);
        self.perform(effects);
    }

    /// A lane's thread finished a batch. The next one for the same lane, if
    /// there is one, is returned instead of sent.
    pub(crate) fn lane_free(&self, instance: InstanceId) -> Option<Vec<PendingRequest>> {
        let mut effects = {
            let mut state = self.lock();
            self.step(&mut state, Event::LaneFree(instance))
        };
        let own = effects.iter().position(
            |effect| matches!(effect, Effect::Execute { instance: i, .. } if *i == instance),
        );
        let batch = own.map(|index| effects.remove(index)).and_then(|effect| match effect {
            Effect::Execute { batch, .. } => Some(batch),
            Effect::Fail { .. }
            | Effect::Abandon(_)
            | Effect::StopLane(_)
            | Effect::NotifyDrained => None,
        });
        self.perform(effects);
        batch
    }

    /// Refuses new requests, lets the queued ones run and stops the lanes
    /// behind them. Returns at once.
    pub(crate) fn drain(&self) {
        self.event(Event::Drain);
    }

    /// Waits until every request has run and every lane has stopped; `false`
    /// if that takes longer than `timeout`.
    pub(crate) fn wait_drained(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while !state.drained {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.drained.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        for lane in &self.lanes {
            lane.join();
        }
        true
    }

    /// Lets the scheduler fail as it would on a rule that the driver broke.
    #[cfg(test)]
    pub(crate) fn break_scheduler(&self) {
        self.event(Event::LaneFree(InstanceId(u32::MAX)));
    }

    /// What everything waits for.
    pub(crate) fn status(&self) -> galatea_policy::Status {
        self.lock().scheduler.status()
    }

    /// The number of requests in the queue.
    pub(crate) fn queued(&self) -> usize {
        self.lock().scheduler.queued()
    }

    fn event(&self, event: Event) {
        let effects = {
            let mut state = self.lock();
            self.step(&mut state, event)
        };
        self.perform(effects);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Panics of the scheduler are caught in `step`, so a poisoned lock
        // tells nothing that `State::broken` doesn't.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// One step of the scheduler, with its actions turned into effects.
    fn step(&self, state: &mut State, event: Event) -> Effects {
        let now = self.now();
        let is_drain = matches!(event, Event::Drain);
        let mut actions = std::mem::take(&mut state.actions);
        if !state.broken {
            let scheduler = &mut state.scheduler;
            let step = AssertUnwindSafe(|| scheduler.step(now, event, &mut actions));
            state.broken = catch_unwind(step).is_err();
        }
        if state.broken {
            return state.give_up(is_drain);
        }
        let mut effects = Effects::new();
        for action in actions.drain() {
            state.effect(action, &mut effects);
        }
        state.actions = actions;
        self.arm(state);
        effects
    }

    /// Asks the timer for the scheduler's next wake-up, unless an earlier
    /// alarm is set already: that one will look again.
    fn arm(&self, state: &mut State) {
        let Some(wakeup) = state.scheduler.next_wakeup() else { return };
        if state.armed.is_none_or(|armed| wakeup < armed) {
            state.armed = Some(wakeup);
            self.timer.set(self.epoch + Duration::from_nanos(wakeup.0), self.this.clone());
        }
    }

    /// Performs effects until none is left: a batch that was executed inline
    /// frees its lane, which may bring the next.
    fn perform(&self, mut effects: Effects) {
        while !effects.is_empty() {
            let mut follow_up = Effects::new();
            for effect in effects {
                if let Some(event) = self.perform_one(effect) {
                    follow_up.extend(self.step(&mut self.lock(), event));
                }
            }
            effects = follow_up;
        }
    }

    /// Performs one effect; returns what it tells the scheduler.
    fn perform_one(&self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Execute { instance, batch } => {
                let handover = self.lane(instance)?.execute(batch);
                return handover.is_done().then_some(Event::LaneFree(instance));
            }
            Effect::Fail { request, reason } => fail(*request, reason),
            Effect::Abandon(requests) => drop(requests),
            Effect::StopLane(instance) => self.lane(instance)?.stop(),
            Effect::NotifyDrained => self.stop_lanes(),
        }
        None
    }

    fn stop_lanes(&self) {
        for (instance, lane) in self.instances() {
            if self.lock().broken {
                lane.stop();
            } else {
                self.event(Event::RemoveInstance(instance));
            }
        }
        self.lock().drained = true;
        self.drained.notify_all();
    }

    fn lane(&self, instance: InstanceId) -> Option<&Lane> {
        self.lanes.get(usize::try_from(instance.0).ok()?)
    }
}

/// The part of a request's key that is its place in the slab; the rest is its
/// generation.
const SLOT_MASK: u64 = 0xffff_ffff;

fn slot(key: RequestKey) -> usize {
    usize::try_from(key.0 & SLOT_MASK).unwrap_or(usize::MAX)
}

impl State {
    /// Puts a request into the slab and makes its ticket.
    fn admit(&mut self, request: PendingRequest, class: Option<ShapeClass>) -> (Ticket, u32) {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let batch_key = self.batch_keys.acquire(class);
        let batch_size = request.batch_size();
        let priority = request.request().priority;
        let timeout_ns = request.request().timeout_microseconds.saturating_mul(1_000);
        let index = self.waiting.insert(Waiting { request, batch_key, generation });
        let slot = u64::try_from(index).unwrap_or(u64::MAX);
        assert!(slot <= SLOT_MASK, "the queue holds more requests than keys can name");
        let key = RequestKey(u64::from(generation) << 32 | slot);
        (Ticket { key, batch_size, batch_key, priority, timeout_ns, sequence: None }, generation)
    }

    /// Whether this very request still waits.
    fn holds(&self, key: RequestKey, generation: u32) -> bool {
        self.waiting.get(slot(key)).is_some_and(|waiting| waiting.generation == generation)
    }

    /// What a broken scheduler comes to: nothing waits any more, and draining
    /// is over at once.
    fn give_up(&mut self, is_drain: bool) -> Effects {
        self.batch_keys = BatchKeys::default();
        let abandoned = self.waiting.drain().map(|waiting| waiting.request).collect();
        let mut effects = Effects::new();
        effects.push(Effect::Abandon(abandoned));
        if is_drain {
            effects.push(Effect::NotifyDrained);
        }
        effects
    }

    fn effect(&mut self, action: Action, effects: &mut Effects) {
        match action {
            Action::Dispatch { instance, batch } => {
                let entries = batch.into_entries();
                let mut requests = Vec::with_capacity(entries.len());
                for entry in entries {
                    match entry {
                        BatchEntry::Request(key) => requests.push(self.take(key)),
                        BatchEntry::Step(_) | BatchEntry::Padding => {
                            unreachable!("the configuration refuses sequences still")
                        }
                    }
                }
                effects.push(Effect::Execute { instance, batch: requests });
            }
            Action::Fail { key, reason } => {
                let request = Box::new(self.take(key));
                effects.push(Effect::Fail { request, reason });
            }
            Action::SequenceClosed(_) | Action::SequenceEnded(_) => {
                unreachable!("the configuration refuses sequences still")
            }
            Action::InstanceRemoved(instance) => effects.push(Effect::StopLane(instance)),
            Action::Drained => effects.push(Effect::NotifyDrained),
        }
    }

    fn take(&mut self, key: RequestKey) -> PendingRequest {
        let waiting = self.waiting.remove(slot(key));
        self.batch_keys.release(waiting.batch_key);
        waiting.request
    }
}

fn fail(request: PendingRequest, reason: FailReason) {
    let prefix = request.request().log_prefix();
    let (status, reason) = match reason {
        FailReason::QueueFull => {
            (Status::unavailable("Exceeds maximum queue size"), FailureReason::Rejected)
        }
        FailReason::TimeoutExpired => {
            (Status::unavailable("Request timeout expired"), FailureReason::Rejected)
        }
        FailReason::Cancelled => (Status::cancelled("Request cancelled"), FailureReason::Canceled),
        FailReason::Draining => (
            Status::unavailable(
                "Server is stopping, scheduler for model has stopped accepting new inference requests",
            ),
            FailureReason::Rejected,
        ),
        FailReason::NoSequence
        | FailReason::MissingStart
        | FailReason::SequenceTimeoutExpired => {
            unreachable!("the configuration refuses sequences still")
        }
    };
    request.fail(status.prefixed(prefix), reason);
}
