//! The driver of one model's scheduler: owns it, its lock and its clock, and
//! performs what it decides.

mod failure;
mod inline;
mod lanes;
mod permits;
mod replies;
mod rule;
mod sequences;
mod state;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use galatea_backend::LogLevel;
use galatea_infer::{
    CorrelationId, PendingRequest, ResponseSender, SequenceOwner, StateTensor, Status,
};
use galatea_policy::{
    Event, InstanceId, Release, ReplyNumber, RequestKey, SchedulingMode, SchedulingSpec,
    SequenceKey, Time,
};

use self::inline::Inline;
#[cfg(test)]
pub(crate) use self::inline::ROUNDS_MAX;
use self::lanes::Lanes;
use self::permits::Limited;
use self::replies::Replies;
pub(crate) use self::rule::AskedRule;
use self::state::{Effect, Effects, State};
use crate::LogSink;
use crate::assembly::{Assembly, Work};
use crate::batch_key::ShapeClass;
use crate::lane::Lane;
use crate::permits::Permits;
use crate::request_log;
use crate::timer::Timer;

/// Queues the requests of one model version and hands batches to its lanes.
///
/// Its one lock is a leaf: it is held for one step of the scheduler, and
/// nothing is called under it but the model's own rule for batches, if it has one,
/// and the rate limiter, whose lock is below it. That includes dropping: a request that is dropped answers, and tells this
/// dispatcher of its release.
pub(crate) struct Dispatcher {
    /// Where the scheduler's time starts.
    epoch: Instant,
    state: Mutex<State>,
    lanes: Lanes,
    /// There if the lanes have no threads of their own.
    inline: Option<Inline>,
    /// Whether threads that bring requests may execute them. Not where requests wait for
    /// others to share a batch, and not where they need permits, which come on any thread.
    runs_errands: bool,
    /// There if the model has a sequence batcher.
    assembly: Option<Assembly>,
    /// There if replies leave in the order of their requests.
    numbers: Option<replies::Numbers>,
    /// There if instances need permits of the rate limiter.
    limited: Option<Limited>,
    /// The model's name, for the log.
    model: String,
    log: LogSink,
    timer: Timer,
    /// Called when nothing is left to run.
    tell_drained: OnceLock<Box<dyn Fn() + Send + Sync>>,
    this: Weak<Self>,
}

/// What a dispatcher is made of.
pub(crate) struct Parts {
    pub(crate) scheduling: SchedulingSpec,
    pub(crate) lanes: Vec<Lane>,
    /// For a model with an instance that needs resources.
    pub(crate) permits: Option<Arc<Permits>>,
    /// For a model with a sequence batcher.
    pub(crate) assembly: Option<Assembly>,
    pub(crate) reply_order: ReplyOrdering,
    /// The model's own say in what shares a batch; only with the dynamic batcher.
    pub(crate) batch_rule: Option<AskedRule>,
    /// The model's name, for the log.
    pub(crate) model: String,
    pub(crate) log: LogSink,
    pub(crate) timer: Timer,
}

/// In which order replies leave.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReplyOrdering {
    /// As they come.
    Free,
    /// In the order of their requests.
    Preserved,
}

/// An admitted request that comes to be queued.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) request: PendingRequest,
    pub(crate) shape_class: Option<ShapeClass>,
    /// As [`Dispatcher::order_replies`] gave it.
    pub(crate) number: ReplyNumber,
}

/// What everything waits for, and how the names in it are read.
pub(crate) struct Report {
    pub(crate) now: Time,
    pub(crate) status: galatea_policy::SchedulerStatus,
    /// What clients call the sequences of the status.
    pub(crate) sequences: BTreeMap<SequenceKey, CorrelationId>,
    /// The instances' names.
    pub(crate) instances: BTreeMap<InstanceId, String>,
}

impl Dispatcher {
    /// A dispatcher over these lanes, which it starts.
    ///
    /// # Errors
    ///
    /// `Internal` if a lane's thread can't be started; then none is left.
    pub(crate) fn start(parts: Parts) -> Result<Arc<Self>, Status> {
        let (numbers, replies) = match parts.reply_order {
            ReplyOrdering::Free => (None, None),
            ReplyOrdering::Preserved => {
                (Some(replies::Numbers::default()), Some(Replies::default()))
            }
        };
        let lanes = parts.lanes;
        let needs_permits = parts.permits.is_some();
        let runs_errands =
            matches!(parts.scheduling.mode, SchedulingMode::Default) && !needs_permits;
        let dispatcher = Arc::new_cyclic(|this| Self {
            epoch: Instant::now(),
            limited: parts.permits.map(|permits| Limited::new(permits, this.clone())),
            state: Mutex::new(State::new(parts.scheduling, replies, parts.batch_rule)),
            inline: lanes.iter().any(Lane::is_inline).then(Inline::default),
            runs_errands,
            lanes: Lanes::default(),
            assembly: parts.assembly,
            numbers,
            model: parts.model,
            log: parts.log,
            timer: parts.timer,
            tell_drained: OnceLock::new(),
            this: this.clone(),
        });
        if needs_permits {
            dispatcher.lock().require_permits();
        }
        dispatcher.add_lanes(lanes)?;
        Ok(dispatcher)
    }

    /// There if the model has a sequence batcher.
    pub(crate) const fn assembly(&self) -> Option<&Assembly> {
        self.assembly.as_ref()
    }

    /// Makes the replies of a request that is about to be queued leave in order,
    /// if the model promises that.
    pub(crate) fn order_replies(&self, sender: ResponseSender) -> (ResponseSender, ReplyNumber) {
        match &self.numbers {
            None => (sender, ReplyNumber::default()),
            Some(numbers) => replies::order(sender, numbers.next_number(), self.this.clone()),
        }
    }

    /// The request is answered without being queued: its reply takes its place
    /// in line.
    pub(crate) fn start_reply(&self, number: ReplyNumber) {
        if let Some(replies) = &mut self.lock().replies {
            replies.order.start(number);
        }
    }

    /// Queues an admitted request.
    pub(crate) fn enqueue(&self, arrival: Arrival) {
        let cancel = arrival.request.request().cancel.clone();
        let now = self.now();
        let mut state = self.lock();
        let mut effects = Effects::new();
        self.settle_sequences(&mut state, now, &mut effects);
        let admitted = state.admit(arrival);
        let key = admitted.ticket.key;
        let warning = admitted.restarts.then(|| state.restart_warning(key)).flatten();
        if state.sequences.is_some() && request_log::is_on(&self.log) {
            effects.extend(state.begin_note(&self.model, &admitted.ticket).map(Effect::Note));
        }
        self.step_at(&mut state, now, Event::Enqueue(admitted.ticket), &mut effects);
        state.unpark(&mut effects);
        let may_cancel = state.may_cancel(key);
        drop(state);
        if let Some(warning) = warning {
            self.log.write(LogLevel::Warning, &warning);
        }
        self.perform(effects);
        if may_cancel {
            let this = self.this.clone();
            cancel.on_cancel(move || {
                if let Some(dispatcher) = this.upgrade() {
                    dispatcher.cancel(key);
                }
            });
        }
    }

    /// Takes a request out of the queue; one that has left it goes on, unless it
    /// would come back.
    fn cancel(&self, key: RequestKey) {
        let mut state = self.lock();
        if state.knows(key) {
            let effects = self.step(&mut state, Event::Cancel(key));
            drop(state);
            self.perform(effects);
        }
    }

    /// An alarm went off.
    pub(crate) fn tick(&self) {
        let mut state = self.lock();
        state.armed = None;
        let mut effects = self.step(&mut state, Event::Tick);
        state.unpark(&mut effects);
        drop(state);
        self.perform(effects);
    }

    /// A lane's thread finished a batch. The next one for the same lane, if
    /// there is one, is returned instead of sent.
    pub(crate) fn lane_free(&self, instance: InstanceId) -> Option<Work> {
        let mut effects = {
            let mut state = self.lock();
            self.step(&mut state, Event::LaneFree(instance))
        };
        let own = effects.iter().position(
            |effect| matches!(effect, Effect::Execute { instance: i, .. } if *i == instance),
        );
        let work = own.map(|index| effects.remove(index)).and_then(|effect| match effect {
            Effect::Execute { work, .. } => Some(work),
            Effect::Fail { .. }
            | Effect::Abandon(_)
            | Effect::Forget(_)
            | Effect::StopLane(_)
            | Effect::Deliver(_)
            | Effect::Note(_)
            | Effect::NotifyDrained => None,
        });
        self.perform(effects);
        work
    }

    /// The backend gave a request of a sequence back.
    fn release(&self, key: RequestKey, again: Option<PendingRequest>, states: Vec<StateTensor>) {
        let mut state = self.lock();
        if !state.knows(key) {
            // Its scheduler broke meanwhile. What is dropped may answer, so
            // not under the lock.
            drop(state);
            drop((again, states));
            return;
        }
        let release = if again.is_some() { Release::Reschedule } else { Release::Done };
        let superseded = state.take_back(key, again, states);
        let mut effects = self.step(&mut state, Event::Released { key, release });
        self.park_released(&mut state, &mut effects);
        drop(state);
        drop(superseded);
        self.perform(effects);
    }

    /// Refuses new requests, lets the queued ones run and stops the lanes
    /// behind them. Returns at once; calls `tell` when that is done, on any
    /// thread.
    pub(crate) fn drain_and_tell(&self, tell: impl Fn() + Send + Sync + 'static) {
        // There is one who drains, once.
        let _ = self.tell_drained.set(Box::new(tell));
        self.event(Event::Drain);
    }

    /// Whether every request has run and every lane was told to stop.
    pub(crate) fn is_drained(&self) -> bool {
        self.lock().drained
    }

    /// Waits for the ends of lanes that were told to stop.
    pub(crate) fn join_lanes(&self) {
        self.lanes.join();
    }

    /// Ends the model's own rule for batches on this thread. The last to let go of a
    /// drained dispatcher may be any: the timer's, or a client's.
    pub(crate) fn end_batch_rule(&self) {
        let rule = self.lock().take_rule();
        drop(rule);
    }

    /// Drains, and tells nobody when that is done.
    #[cfg(test)]
    pub(crate) fn drain(&self) {
        self.event(Event::Drain);
    }

    /// Drains and waits for the end of that; `false` if it takes longer than
    /// `timeout`.
    #[cfg(test)]
    pub(crate) fn wait_drained(&self, timeout: Duration) -> bool {
        let (ended, end) = std::sync::mpsc::channel();
        let tell = Mutex::new(ended);
        self.drain_and_tell(move || {
            let _ = tell.lock().unwrap().send(());
        });
        let is_drained = self.is_drained() || end.recv_timeout(timeout).is_ok();
        if is_drained {
            self.join_lanes();
        }
        is_drained
    }

    /// Lets the scheduler fail as it would on a rule that the driver broke.
    #[cfg(test)]
    pub(crate) fn break_scheduler(&self) {
        self.event(Event::LaneFree(InstanceId(u32::MAX)));
    }

    /// Takes the instances from the scheduler and keeps their lanes: whoever removes
    /// one breaks it.
    #[cfg(test)]
    pub(crate) fn lose_instances(&self) {
        let mut state = self.lock();
        let mut actions = galatea_policy::Actions::default();
        for instance in self.lanes.instances() {
            state.scheduler.step(self.now(), Event::RemoveInstance(instance), &mut actions);
        }
    }

    /// How many lanes there are that nobody stopped.
    #[cfg(test)]
    pub(crate) fn lanes_left(&self) -> usize {
        self.lanes.instances().len()
    }

    /// How many requests, open sequences and sequences are known.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> (usize, usize, usize) {
        self.lock().kept()
    }

    /// How many requests' replies have not left, of those that run.
    #[cfg(test)]
    pub(crate) fn replies_waiting(&self) -> usize {
        self.lock().replies.as_ref().map_or(0, |replies| replies.order.waiting())
    }

    /// What everything waits for.
    pub(crate) fn report(&self) -> Report {
        let state = self.lock();
        let status = state.scheduler.status();
        let slots = status.sequences.iter().flat_map(|known| &known.slots);
        let backlog = status.sequences.iter().flat_map(|known| &known.backlog);
        let keys = slots.map(|slot| slot.sequence).chain(backlog.map(|one| one.sequence));
        let name = |key| (key, state.correlation_id(key));
        let sequences = keys.map(name).collect();
        Report { now: self.now(), sequences, status, instances: self.lanes.names() }
    }

    /// The number of requests in the queue.
    pub(crate) fn queued(&self) -> usize {
        self.lock().scheduler.queued()
    }

    /// The requests of a batch, ready to be executed.
    pub(crate) fn assemble(&self, work: Work) -> Vec<PendingRequest> {
        let rows = match work {
            Work::Requests(requests) => return requests,
            Work::Rows(rows) => rows,
        };
        let (Some(assembly), Some(this)) = (&self.assembly, self.this.upgrade()) else {
            unreachable!("only a sequence batcher makes rows, and a dispatcher lives while it runs")
        };
        let owner: Arc<dyn SequenceOwner> = this;
        assembly.assemble(rows, &owner)
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

    /// Ends the sequences whose time is up. Whose request this is has to be
    /// looked up after that and in the same moment: in the scheduler's own step
    /// their ends would come between the look and the request.
    fn settle_sequences(&self, state: &mut State, now: Time, effects: &mut Effects) {
        let is_due = state.sequences.is_some()
            && !state.broken
            && state.scheduler.next_wakeup().is_some_and(|wakeup| wakeup <= now);
        if is_due {
            self.step_at(state, now, Event::Tick, effects);
        }
    }

    /// One step of the scheduler, with its actions turned into effects.
    fn step(&self, state: &mut State, event: Event) -> Effects {
        let mut effects = Effects::new();
        self.step_at(state, self.now(), event, &mut effects);
        effects
    }

    /// The same, behind effects of an earlier step. An instance that must wait for
    /// its permit is one more event: the scheduler may want to try another.
    fn step_at(&self, state: &mut State, now: Time, event: Event, effects: &mut Effects) {
        state.is_draining |= matches!(event, Event::Drain);
        let mut delayed = Vec::new();
        let mut next = Some(event);
        while let Some(event) = next {
            if !state.broken {
                delayed.extend(self.step_once(state, now, event, effects));
            }
            if state.broken {
                state.give_up(effects);
                self.take_permit_back(event, effects);
                return;
            }
            next = delayed.pop().map(Event::PermitDelayed);
        }
        self.arm(state);
    }

    /// Returns which instances must wait for permits.
    fn step_once(
        &self,
        state: &mut State,
        now: Time,
        event: Event,
        effects: &mut Effects,
    ) -> Vec<InstanceId> {
        let mut actions = std::mem::take(&mut state.actions);
        let scheduler = &mut state.scheduler;
        let step = AssertUnwindSafe(|| scheduler.step(now, event, &mut actions));
        if catch_unwind(step).is_err() {
            state.broken = true;
            return Vec::new();
        }
        let tells = state.sequences.is_some() && request_log::is_on(&self.log);
        for action in actions.drain() {
            if tells {
                let note = state.sequence_note(&self.model, &event, &action);
                effects.extend(note.map(Effect::Note));
            }
            state.effect(action, effects);
        }
        state.actions = actions;
        self.tell_rate_limiter(state, effects)
    }

    /// Asks the timer for the scheduler's next wake-up, unless an earlier
    /// alarm is set already: that one will look again.
    fn arm(&self, state: &mut State) {
        if let Some(wakeup) = state.scheduler.next_wakeup() {
            self.arm_at(state, wakeup);
        }
    }

    fn arm_at(&self, state: &mut State, wakeup: Time) {
        if state.armed.is_none_or(|armed| wakeup < armed) {
            state.armed = Some(wakeup);
            self.timer.set(self.epoch + Duration::from_nanos(wakeup.0), self.this.clone());
        }
    }

    /// Performs one effect; what it leads to is added to `follow_up`.
    fn perform_one(&self, effect: Effect, rounds: &mut usize, follow_up: &mut Effects) {
        match effect {
            Effect::Execute { instance, work } => {
                self.hand_over(instance, work, rounds, follow_up);
            }
            Effect::Fail { request, reason } => {
                failure::fail(*request, reason, &self.log);
                self.send_ordered();
            }
            Effect::Abandon(requests) => {
                drop(requests);
                self.send_ordered();
            }
            Effect::Forget(states) => drop(states),
            Effect::StopLane(instance) => self.stop_lane(instance),
            Effect::Deliver(granted) => self.deliver(granted),
            Effect::NotifyDrained => self.stop_lanes(),
            Effect::Note(line) => request_log::note(&self.log, line),
        }
    }

    fn stop_lanes(&self) {
        for instance in self.lanes.instances() {
            if !self.lock().broken {
                self.event(Event::RemoveInstance(instance));
            }
            // It may have broken with this very one.
            if self.lock().broken {
                self.stop_lane(instance);
            }
        }
        self.lock().drained = true;
        if let Some(tell) = self.tell_drained.get() {
            tell();
        }
    }

    fn lane(&self, instance: InstanceId) -> Option<Arc<Lane>> {
        self.lanes.get(instance)
    }
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher").field("lanes", &self.lanes).finish_non_exhaustive()
    }
}

impl SequenceOwner for Dispatcher {
    fn released(&self, key: u64, states: Vec<StateTensor>) {
        self.release(RequestKey(key), None, states);
    }

    fn rescheduled(&self, key: u64, mut request: PendingRequest, states: Vec<StateTensor>) {
        let added = self.assembly.as_ref().map_or(0, Assembly::added_inputs);
        let inputs = request.inputs_mut();
        inputs.truncate(inputs.len().saturating_sub(added));
        self.release(RequestKey(key), Some(request), states);
    }
}

/// The part of a key that is a place in a slab; the rest is its generation.
const PLACE_MASK: u64 = 0xffff_ffff;

fn key_of(place: usize, generation: u32) -> u64 {
    let place = u64::try_from(place).unwrap_or(u64::MAX);
    assert!(place <= PLACE_MASK, "there are more requests or sequences than keys can name");
    u64::from(generation) << 32 | place
}

fn place_of(key: u64) -> usize {
    usize::try_from(key & PLACE_MASK).unwrap_or(usize::MAX)
}
