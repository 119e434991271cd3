//! The driver for one model version's scheduler. It owns the scheduler, its lock and its clock, and
//! carries out the scheduler's decisions.
//!
//! **One lock.** The lock is held for a single scheduler step. Under the lock, actions become
//! [`Effect`]s; the effects are performed without it. Only two things are called under the lock: a
//! model's custom batching rule, if it has one, and the rate limiter, whose lock ranks below this
//! one. Dropping counts as a call, because a dropped request replies to its client and notifies
//! this dispatcher of its release.
//!
//! **Broken schedulers.** The scheduler asserts its rules in release builds too. If an assertion
//! fails, this dispatcher fails every queued and every later request with an internal error. Other
//! models are not affected.
//!
//! **Cancellation.** A cancellation is a step like any other; `infer/cancel.rs` describes its path
//! through the server.
//!
//! | file | what it does |
//! |---|---|
//! | `state.rs` | the state under the lock: scheduler, requests, sequences |
//! | `effect.rs` | the work after the lock is released |
//! | `execution.rs` | performs effects; executes or hands over batches |
//! | `lanes.rs` | adds and removes lanes |
//! | `rate_limiting.rs` | requests, receives and returns permits |
//! | `sequences.rs` | correlation IDs, keys and states of sequences |
//! | `ordered_replies.rs` | delivers replies in the order of their requests |
//! | `custom_batching.rs` | a model's own rule for batches |
//! | `observation/` | the events of requests, and views of them: counts, waits, recordings |
//! | `traffic.rs`, `watching.rs` | begin, read and end recordings |
//! | `reports/` | the JSON documents about a version that clients read |
//! | `failure.rs` | the texts for clients and operators |

mod custom_batching;
mod effect;
mod execution;
mod failure;
mod keys;
mod lanes;
mod observation;
mod ordered_replies;
mod rate_limiting;
mod reports;
mod sequences;
mod state;
#[cfg(test)]
mod tests;
mod traffic;
mod watching;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use galatea_backend::LogLevel;
use galatea_infer::{PendingRequest, ResponseSender, SequenceReleaseHook, StateTensor, Status};
use galatea_policy::{
    ArrivalNumber, FailReason, InstanceId, RequestKey, RequestRelease, SchedulerEvent,
    SchedulerStatus, SchedulingMode, SchedulingSpec, Time, WarmupMeasurement,
};
use galatea_stdx::{Guard, Lock};

pub(crate) use self::custom_batching::CustomBatching;
use self::effect::{Effect, Effects};
#[cfg(test)]
pub(crate) use self::execution::INLINE_BATCHES_MAX;
use self::execution::ThreadlessExecution;
use self::lanes::Lanes;
use self::observation::Observation;
pub(crate) use self::observation::{SchedulingCounts, VariableDims};
use self::ordered_replies::{OrderedReplies, ReplyNumbers};
use self::rate_limiting::RateLimiterClient;
pub(crate) use self::reports::ReportSubject;
pub use self::reports::is_model_report;
pub(crate) use self::state::AdmittedRequest;
use self::state::DispatcherState;
pub(crate) use self::watching::DispatcherReading;
use crate::LogSink;
use crate::batch::{ClosedBatch, SequenceAssembler};
use crate::lane::{AssembledBatch, Lane, LaneOwner};
use crate::log::request_log;
use crate::padding::BatchPadding;
use crate::rate_limiter::RateLimiterDriver;
use crate::timer::{AlarmHandler, Timer};

/// Queues a model version's requests and passes batches to its lanes.
pub(crate) struct Dispatcher {
    /// The zero point of the scheduler's time.
    epoch: Instant,
    state: Lock<DispatcherState>,
    lanes: Lanes,
    /// The state of threadless execution; `None` if the lanes have their own threads.
    threadless: Option<ThreadlessExecution>,
    /// True if I/O threads may execute the requests that they receive. False with a batcher,
    /// because its requests wait for others to share a batch, and with permits, because they may
    /// arrive on any thread.
    allows_inline_execution: bool,
    /// True if requests are batched by deadline.
    uses_deadlines: bool,
    /// The assembler; `None` if the model has no sequence batcher.
    sequence_assembler: Option<SequenceAssembler>,
    /// The padding; `None` if requests are not padded.
    padding: Option<BatchPadding>,
    /// The reply numbers; `None` if replies may be sent in any order.
    reply_numbers: Option<ReplyNumbers>,
    /// The rate limiter client; `None` if no instance needs permits.
    rate_limiter: Option<RateLimiterClient>,
    /// The model name, for the log.
    model: String,
    log: LogSink,
    timer: Timer,
    /// Called when no requests are left to execute.
    on_drained: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Takes instances on lost GPUs out of service. Set before the first request.
    settle_losses: OnceLock<GpuLossHandler>,
    this: Weak<Self>,
}

/// A function that takes a dispatcher's instances out of service if their GPU is lost.
type GpuLossHandler = Box<dyn Fn(&Dispatcher) + Send + Sync>;

/// The dispatcher options.
pub(crate) struct DispatcherOptions {
    pub(crate) scheduling: SchedulingSpec,
    pub(crate) lanes: Vec<Lane>,
    /// The rate limiter; `None` if no instance requires resources.
    pub(crate) rate_limiter: Option<Arc<RateLimiterDriver>>,
    /// The assembler; `None` if the model has no sequence batcher.
    pub(crate) sequence_assembler: Option<SequenceAssembler>,
    /// The padding; `None` if requests are not padded.
    pub(crate) padding: Option<BatchPadding>,
    pub(crate) reply_order: ReplyOrdering,
    /// The model's custom batching rule, used only by the dynamic batcher.
    pub(crate) custom_batching: Option<CustomBatching>,
    /// The model name, for the log.
    pub(crate) model: String,
    pub(crate) log: LogSink,
    pub(crate) timer: Timer,
}

/// The order in which replies are sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReplyOrdering {
    /// Replies are sent in any order.
    Free,
    /// Replies are sent in the order of their requests.
    Preserved,
}

impl Dispatcher {
    /// Creates a dispatcher for these lanes, and starts them.
    ///
    /// # Errors
    ///
    /// `Internal` if a lane's thread can't be started; in that case no thread is left running.
    pub(crate) fn start(options: DispatcherOptions) -> Result<Arc<Self>, Status> {
        let (reply_numbers, replies) = match options.reply_order {
            ReplyOrdering::Free => (None, None),
            ReplyOrdering::Preserved => {
                (Some(ReplyNumbers::default()), Some(OrderedReplies::default()))
            }
        };
        let lanes = options.lanes;
        let needs_permits = options.rate_limiter.is_some();
        let allows_inline_execution =
            matches!(options.scheduling.mode, SchedulingMode::Default) && !needs_permits;
        let uses_deadlines = matches!(options.scheduling.mode, SchedulingMode::Deadline(_));
        let state = DispatcherState::new(options.scheduling, replies, options.custom_batching);
        let dispatcher = Arc::new_cyclic(|this: &Weak<Self>| Self {
            epoch: Instant::now(),
            rate_limiter: options
                .rate_limiter
                .map(|driver| RateLimiterClient::new(driver, this.clone())),
            state: Lock::new(state),
            threadless: lanes.iter().any(Lane::is_threadless).then(ThreadlessExecution::default),
            allows_inline_execution,
            uses_deadlines,
            lanes: Lanes::default(),
            sequence_assembler: options.sequence_assembler,
            padding: options.padding,
            reply_numbers,
            model: options.model,
            log: options.log,
            timer: options.timer,
            on_drained: OnceLock::new(),
            settle_losses: OnceLock::new(),
            this: this.clone(),
        });
        if needs_permits {
            dispatcher.lock("require permits").require_permits();
        }
        dispatcher.add_lanes(lanes)?;
        Ok(dispatcher)
    }

    /// Learns the cost of executions from warmup, before any request arrives.
    pub(crate) fn learn(&self, executions: &[WarmupMeasurement]) {
        let mut state = self.lock("learn from the warmup");
        executions.iter().for_each(|one| state.learn(one));
    }

    /// Returns true if executions may need permits from the rate limiter.
    pub(crate) const fn needs_permits(&self) -> bool {
        self.rate_limiter.is_some()
    }

    /// Returns true if all lanes must have a thread.
    pub(crate) const fn needs_threads(&self) -> bool {
        self.threadless.is_none()
    }

    /// Returns true if the requests belong to sequences.
    pub(crate) const fn has_sequences(&self) -> bool {
        self.sequence_assembler.is_some()
    }

    /// The assembler; `None` if the model has no sequence batcher.
    pub(crate) const fn sequence_assembler(&self) -> Option<&SequenceAssembler> {
        self.sequence_assembler.as_ref()
    }

    /// Prepares a request for queueing. If the model promises ordered replies, the returned sender
    /// orders them.
    pub(crate) fn order_replies(&self, sender: ResponseSender) -> (ResponseSender, ArrivalNumber) {
        match &self.reply_numbers {
            None => (sender, ArrivalNumber::default()),
            Some(numbers) => {
                let number = numbers.next_number();
                (ordered_replies::order(sender, number, self.this.clone()), number)
            }
        }
    }

    /// Assigns the reply to a request that is not queued its position in the reply order.
    pub(crate) fn start_reply(&self, number: ArrivalNumber) {
        if let Some(replies) = &mut self.lock("start a reply").replies {
            replies.order.start_request(number);
        }
    }

    /// Queues an admitted request.
    pub(crate) fn enqueue(&self, admitted: AdmittedRequest) {
        let cancel = admitted.request.request().cancel.clone();
        let is_explained = observation::explanation(&admitted.request).is_some();
        let deadline = self.deadline_of(&admitted.request);
        // The clock has just been read.
        let queued = admitted.request.admission_times().map(|times| self.time_of(times.queued));
        let now = queued.unwrap_or_else(|| self.now());
        let mut state = self.lock("enqueue a request");
        let mut effects = Effects::new();
        self.end_expired_sequences(&mut state, now, &mut effects);
        let inserted = state.insert(admitted, deadline);
        let key = inserted.info.key;
        if is_explained || state.views.is_watched() {
            state.observe_arrival(self.epoch, now, &inserted.info, is_explained);
        }
        let warning = inserted.restarts_sequence.then(|| state.restart_warning(key)).flatten();
        if state.sequences.is_some() && request_log::is_enabled(&self.log) {
            let line = state.sequence_begin_line(&self.model, &inserted.info);
            effects.extend(line.map(Effect::Log));
        }
        self.step_at(&mut state, now, SchedulerEvent::Enqueue(inserted.info), &mut effects);
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

    /// Fails a request that was not queued.
    pub(crate) fn fail(&self, request: PendingRequest, reason: FailReason) {
        failure::fail(request, reason, &self.log);
    }

    /// Removes a request from the queue. A request that has already left the queue continues but is
    /// not iterated again.
    fn cancel(&self, key: RequestKey) {
        let mut state = self.lock("cancel a request");
        if state.knows(key) {
            let effects = self.step(&mut state, SchedulerEvent::Cancel(key));
            drop(state);
            self.perform(effects);
        }
    }

    /// Takes back a sequence request that the backend has released. `rescheduled` is the request
    /// itself if it must be executed again.
    fn release(
        &self,
        key: RequestKey,
        rescheduled: Option<PendingRequest>,
        states: Vec<StateTensor>,
    ) {
        let mut state = self.lock("release a request");
        if !state.knows(key) {
            // The scheduler has broken in the meantime. Dropping a request replies to it, so it
            // must not be dropped under the lock.
            drop(state);
            drop((rescheduled, states));
            return;
        }
        let release =
            if rescheduled.is_some() { RequestRelease::Reschedule } else { RequestRelease::Done };
        let superseded = state.take_back(key, rescheduled, states);
        let mut effects = self.step(&mut state, SchedulerEvent::Released { key, release });
        self.park_released(&mut state, &mut effects);
        drop(state);
        drop(superseded);
        self.perform(effects);
    }

    /// Refuses new requests, executes the queued ones, and then stops the lanes. Returns
    /// immediately; calls `on_drained` at the end, on any thread.
    pub(crate) fn drain_and_notify(&self, on_drained: impl Fn() + Send + Sync + 'static) {
        // A dispatcher is drained only once.
        let _ = self.on_drained.set(Box::new(on_drained));
        self.step_and_perform(SchedulerEvent::Drain);
    }

    /// Returns true if every request has been executed and every lane is being stopped.
    pub(crate) fn is_drained(&self) -> bool {
        self.lock("look whether it is drained").is_drained
    }

    /// Waits for stopping lanes to end.
    pub(crate) fn join_lanes(&self) {
        self.lanes.join();
    }

    /// Destroys the custom batching rule on this thread. Otherwise it would be destroyed along with
    /// the last reference to a drained dispatcher, possibly on the timer's or a client's thread.
    pub(crate) fn destroy_custom_batching(&self) {
        let rule = self.lock("take the batching rule").take_rule();
        drop(rule);
    }

    /// The number of queued requests.
    pub(crate) fn queued(&self) -> usize {
        self.lock("count the queue").scheduler.queued()
    }

    /// The scheduler's status.
    pub(crate) fn scheduler_status(&self) -> SchedulerStatus {
        self.lock("read the status").scheduler.status()
    }

    /// The counts that only the scheduler knows.
    pub(crate) fn scheduling_counts(&self) -> SchedulingCounts {
        self.lock("read the counts").views.counts().clone()
    }

    /// The states of the lanes.
    #[cfg(test)]
    pub(crate) fn lane_states(&self) -> Vec<galatea_policy::InstanceStatus> {
        self.lock("look at the lanes").scheduler.status().lanes
    }

    fn lock(&self, purpose: &'static str) -> Guard<'_, DispatcherState> {
        self.state.lock(purpose)
    }

    fn now(&self) -> Time {
        self.time_of(Instant::now())
    }

    /// Converts a clock time to scheduler time.
    fn time_of(&self, at: Instant) -> Time {
        let since = at.saturating_duration_since(self.epoch).as_nanos();
        Time(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// The deadline of a request, if deadlines are used here.
    fn deadline_of(&self, request: &PendingRequest) -> Time {
        let deadline = request.request().deadline.instant().filter(|_| self.uses_deadlines);
        deadline.map_or(Time::MAX, |at| self.time_of(at))
    }

    fn step_and_perform(&self, event: SchedulerEvent) {
        let effects = {
            let mut state = self.lock("step the scheduler");
            self.step(&mut state, event)
        };
        self.perform(effects);
    }

    /// Ends the sequences that have timed out. A request's sequence must be looked up afterwards,
    /// with the same time. Otherwise, the scheduler's next step could end the sequence between the
    /// lookup and the request.
    fn end_expired_sequences(&self, state: &mut DispatcherState, now: Time, effects: &mut Effects) {
        let is_due = state.sequences.is_some()
            && !state.is_broken
            && state.scheduler.next_wakeup().is_some_and(|wakeup| wakeup <= now);
        if is_due {
            self.step_at(state, now, SchedulerEvent::Tick, effects);
        }
    }

    /// Steps the scheduler, and turns its actions into effects.
    fn step(&self, state: &mut DispatcherState, event: SchedulerEvent) -> Effects {
        let mut effects = Effects::new();
        self.step_at(state, self.now(), event, &mut effects);
        effects
    }

    /// Like [`Self::step`], but appends to the effects of an earlier step. An instance whose permit
    /// is delayed triggers another event, because the scheduler may want to try another instance.
    fn step_at(
        &self,
        state: &mut DispatcherState,
        now: Time,
        event: SchedulerEvent,
        effects: &mut Effects,
    ) {
        state.is_draining |= matches!(event, SchedulerEvent::Drain);
        let mut delayed = Vec::new();
        let mut next = Some(event);
        while let Some(event) = next {
            if !state.is_broken {
                delayed.append(&mut self.step_once(state, now, event, effects));
            }
            if state.is_broken {
                state.fail_all(now, effects);
                self.reclaim_permit(event, effects);
                return;
            }
            next = delayed.pop().map(SchedulerEvent::PermitDelayed);
        }
        self.set_next_alarm(state);
    }

    /// Performs a single step; returns the instances whose permits are delayed.
    fn step_once(
        &self,
        state: &mut DispatcherState,
        now: Time,
        event: SchedulerEvent,
        effects: &mut Effects,
    ) -> Vec<InstanceId> {
        if let SchedulerEvent::LaneFree(instance) = event {
            state.views.observe(now, &Observation::Freed(instance));
        }
        let mut actions = std::mem::take(&mut state.actions);
        let scheduler = &mut state.scheduler;
        let step = AssertUnwindSafe(|| scheduler.step(now, event, &mut actions));
        if catch_unwind(step).is_err() {
            state.is_broken = true;
            return Vec::new();
        }
        let logs_sequences = state.sequences.is_some() && request_log::is_enabled(&self.log);
        for action in actions.drain() {
            if logs_sequences {
                let line = state.sequence_line(&self.model, &event, &action);
                effects.extend(line.map(Effect::Log));
            }
            state.apply(now, action, effects);
        }
        state.actions = actions;
        state.observe_step(now);
        self.apply_permit_operations(state, effects)
    }

    /// Sets an alarm for the scheduler's next wake-up.
    fn set_next_alarm(&self, state: &mut DispatcherState) {
        if let Some(wakeup) = state.scheduler.next_wakeup() {
            self.set_alarm(state, wakeup);
        }
    }

    /// Sets an alarm, unless an earlier one is already set. When the earlier alarm fires, it sets
    /// the next one.
    fn set_alarm(&self, state: &mut DispatcherState, at: Time) {
        if state.alarm_at.is_none_or(|earlier| at < earlier) {
            state.alarm_at = Some(at);
            self.timer.set(self.epoch + Duration::from_nanos(at.0), self.this.clone());
        }
    }
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher").field("lanes", &self.lanes).finish_non_exhaustive()
    }
}

impl AlarmHandler for Dispatcher {
    fn alarm_fired(&self) {
        let mut state = self.lock("handle an alarm");
        state.alarm_at = None;
        let mut effects = self.step(&mut state, SchedulerEvent::Tick);
        state.unpark(&mut effects);
        drop(state);
        self.perform(effects);
    }
}

impl LaneOwner for Dispatcher {
    fn assemble(&self, batch: ClosedBatch) -> AssembledBatch {
        let rows = match batch {
            ClosedBatch::Requests(mut requests) => {
                observation::mark_started(requests.iter());
                if self.uses_deadlines {
                    let now = Instant::now();
                    requests.iter_mut().for_each(|request| request.limit_timeout(now));
                }
                return match &self.padding {
                    None => AssembledBatch::Together(requests),
                    Some(padding) => padding.pad_batch(requests),
                };
            }
            ClosedBatch::Rows(rows) => rows,
        };
        observation::mark_started(rows.iter().flatten().map(|row| &row.request));
        let (Some(assembler), Some(this)) = (&self.sequence_assembler, self.this.upgrade()) else {
            unreachable!("only a sequence batcher makes rows, and a dispatcher lives while it runs")
        };
        let owner: Arc<dyn SequenceReleaseHook> = this;
        AssembledBatch::Together(assembler.assemble(rows, &owner))
    }

    fn lane_free(&self, instance: InstanceId) -> Option<ClosedBatch> {
        self.settle_losses();
        let mut effects = {
            let mut state = self.lock("step the scheduler");
            self.step(&mut state, SchedulerEvent::LaneFree(instance))
        };
        let own = effects.iter().position(
            |effect| matches!(effect, Effect::Execute { instance: i, .. } if *i == instance),
        );
        let batch = own.map(|index| effects.remove(index)).and_then(|effect| match effect {
            Effect::Execute { batch, .. } => Some(batch),
            Effect::Fail { .. }
            | Effect::DropRequests(_)
            | Effect::DropStates(_)
            | Effect::StopLane(_)
            | Effect::DeliverPermits(_)
            | Effect::Log(_)
            | Effect::NotifyDrained => None,
        });
        self.perform(effects);
        batch
    }
}

impl SequenceReleaseHook for Dispatcher {
    fn released(&self, key: u64, states: Vec<StateTensor>) {
        self.release(RequestKey(key), None, states);
    }

    fn rescheduled(&self, key: u64, mut request: PendingRequest, states: Vec<StateTensor>) {
        let assembler = self.sequence_assembler.as_ref();
        let added = assembler.map_or(0, SequenceAssembler::added_input_count);
        let inputs = request.inputs_mut();
        inputs.truncate(inputs.len().saturating_sub(added));
        self.release(RequestKey(key), Some(request), states);
    }
}
