//! The state guarded by the dispatcher's lock: the scheduler, and the requests and sequences that
//! its keys identify.

use std::time::Instant;

use galatea_backend::CustomBatchStrategy;
use galatea_explain::QueueSnapshot;
use galatea_infer::{PendingRequest, SequenceFlags, StateTensor};
use galatea_policy::{
    ArrivalNumber, Batch, BatchEntry, FailReason, InstanceId, RequestInfo, RequestKey, Scheduler,
    SchedulerAction, SchedulerActions, SchedulerEvent, SchedulingMode, SchedulingSpec, SequenceKey,
    ShapeClassId, Time, WarmupMeasurement,
};
use galatea_stdx::len64;
use slab::Slab;

use super::custom_batching::{CustomBatching, QueueMirror, SharedRule};
use super::effect::{Effect, Effects};
use super::failure;
use super::keys::{index_of, key_of};
use super::observation::{
    Batching, ClosingBatch, ExplainedRequests, Observation, QueuedRequest, Recorder, RequestEnd,
    Views, WaitingRequests, explanation,
};
use super::ordered_replies::OrderedReplies;
use super::sequences::Sequences;
use crate::batch::{ClosedBatch, SequenceRow, ShapeClass, ShapeClasses};
use crate::log::request_log;
use crate::rate_limiter::PermitOperation;

/// An admitted request on its way into the queue.
#[derive(Debug)]
pub(crate) struct AdmittedRequest {
    pub(crate) request: PendingRequest,
    pub(crate) shape_class: Option<ShapeClass>,
    /// The length used for padding batches; 0 for a model without padding.
    pub(crate) length: u32,
    /// The number returned by [`Dispatcher::order_replies`](super::Dispatcher::order_replies).
    pub(crate) reply_number: ArrivalNumber,
}

/// A dispatcher's state.
#[derive(Debug)]
pub(super) struct DispatcherState {
    pub(super) scheduler: Scheduler<CustomBatching>,
    requests: Slab<RequestEntry>,
    shape_classes: ShapeClasses,
    /// The sequences; `None` if the model has no sequence batcher.
    pub(super) sequences: Option<Sequences>,
    /// The replies; `None` if they may be sent in any order.
    pub(super) replies: Option<OrderedReplies>,
    /// True if later replies wait for a request as soon as it is queued. This is the case if
    /// batches are not formed in request order.
    orders_on_arrival: bool,
    batching: Batching,
    /// The queued requests, mirrored for a custom batching rule.
    mirror: Option<QueueMirror>,
    /// The custom batching rule, which is destroyed before the dispatcher.
    rule: Option<SharedRule>,
    /// The number of requests enqueued so far. It makes keys unique, so a late cancellation can't
    /// reach a later request at the same slab index.
    generation: u32,
    /// The time for which the alarm is set.
    pub(super) alarm_at: Option<Time>,
    /// Set once no more requests are accepted into the queue.
    pub(super) is_draining: bool,
    /// Set once [`Effect::NotifyDrained`] has been issued.
    has_drained_effect: bool,
    /// Set once [`Effect::NotifyDrained`] has been performed.
    pub(super) is_drained: bool,
    /// Set once the scheduler has broken one of its own rules. From then on, the scheduler is not
    /// trusted and every request fails.
    pub(super) is_broken: bool,
    /// Views of the requests.
    pub(super) views: Views,
    /// A buffer for actions, reused across steps.
    pub(super) actions: SchedulerActions,
    /// The permits that the scheduler requests and returns in this step.
    pub(super) permit_operations: Vec<PermitOperation>,
    /// Batches for threadless instances that are waiting for a thread.
    pub(super) parked: Vec<(InstanceId, ClosedBatch)>,
}

/// A request known to the scheduler.
#[derive(Debug)]
struct RequestEntry {
    key: RequestKey,
    /// The request; `None` while it is executing. Only sequence requests keep their entry during
    /// execution.
    request: Option<PendingRequest>,
    shape_class: ShapeClassId,
    sequence: Option<SequenceKey>,
    reply_number: ArrivalNumber,
}

/// A request inserted into the slab.
pub(super) struct InsertedRequest {
    pub(super) info: RequestInfo,
    /// True if the request starts a sequence that has not ended, which is logged as a warning.
    pub(super) restarts_sequence: bool,
}

impl DispatcherState {
    pub(super) fn new(
        spec: SchedulingSpec,
        replies: Option<OrderedReplies>,
        rule: Option<CustomBatching>,
    ) -> Self {
        let sequences = match &spec.mode {
            SchedulingMode::Default | SchedulingMode::Dynamic(_) | SchedulingMode::Deadline(_) => {
                None
            }
            SchedulingMode::Sequence(sequence) => Some(Sequences::new(sequence.iterative)),
        };
        let orders_on_arrival = match &spec.mode {
            SchedulingMode::Deadline(_) => true,
            SchedulingMode::Dynamic(dynamic) => dynamic.padding.is_some(),
            SchedulingMode::Default | SchedulingMode::Sequence(_) => false,
        };
        let batching = match &spec.mode {
            SchedulingMode::Default | SchedulingMode::Dynamic(_) => Batching::Arrivals,
            SchedulingMode::Deadline(_) => Batching::Deadlines,
            SchedulingMode::Sequence(_) => Batching::Sequences,
        };
        let mirror = rule.as_ref().map(CustomBatching::mirror);
        let shared_rule = rule.as_ref().map(CustomBatching::rule);
        let scheduler = Scheduler::with_batch_strategy(spec, rule);
        Self {
            scheduler,
            requests: Slab::new(),
            shape_classes: ShapeClasses::default(),
            sequences,
            replies,
            orders_on_arrival,
            batching,
            mirror,
            rule: shared_rule,
            generation: 0,
            alarm_at: None,
            is_draining: false,
            has_drained_effect: false,
            is_drained: false,
            is_broken: false,
            views: Views::new(batching),
            actions: SchedulerActions::default(),
            permit_operations: Vec::new(),
            parked: Vec::new(),
        }
    }

    /// Removes the custom batching rule, if there is one.
    pub(super) fn take_rule(&self) -> Option<Box<dyn CustomBatchStrategy>> {
        self.rule.as_ref().and_then(SharedRule::remove_rule)
    }

    /// Learns the cost of a warmup execution.
    pub(super) fn learn(&mut self, execution: &WarmupMeasurement) {
        self.scheduler.learn(execution);
    }

    /// Requires permits for all executions from now on. Called before the first event.
    pub(super) fn require_permits(&mut self) {
        self.scheduler.require_permits();
    }

    /// Inserts a request into the slab, and describes it for the scheduler.
    pub(super) fn insert(
        &mut self,
        mut admitted: AdmittedRequest,
        deadline: Time,
    ) -> InsertedRequest {
        self.generation = self.generation.wrapping_add(1);
        let shape_class = self.shape_classes.acquire(admitted.shape_class.take());
        let content = admitted.request.request();
        let assignment = self
            .sequences
            .as_mut()
            .and_then(|known| known.assign(&content.correlation_id, content.sequence_flags));
        let vacant = self.requests.vacant_entry();
        let key = RequestKey(key_of(vacant.key(), self.generation));
        let info = RequestInfo {
            key,
            batch_size: admitted.request.batch_size(),
            shape_class,
            priority: content.priority,
            deadline,
            length: admitted.length,
            timeout_ns: content.timeout_microseconds.saturating_mul(1_000),
            sequence: assignment.map(|assignment| assignment.position),
        };
        let sequence = info.sequence.map(|position| position.sequence);
        let reply_number = admitted.reply_number;
        if let Some(mirror) = &self.mirror {
            mirror.add(key, &admitted.request);
        }
        // The request is large, so it is moved only once.
        let request = Some(admitted.request);
        vacant.insert(RequestEntry { key, request, shape_class, sequence, reply_number });
        self.expect_reply(sequence, reply_number);
        let restarts_sequence = assignment.is_some_and(|assignment| assignment.restarts);
        InsertedRequest { info, restarts_sequence }
    }

    /// Records in the views that a request was inserted. `is_explained` begins an explanation.
    pub(super) fn observe_arrival(
        &mut self,
        epoch: Instant,
        now: Time,
        info: &RequestInfo,
        is_explained: bool,
    ) {
        let entry = self.requests.get_mut(index_of(info.key.0));
        let Some(request) = entry.and_then(|entry| entry.request.as_mut()) else { return };
        if is_explained {
            self.views.get_or_begin(|| ExplainedRequests::new(epoch, now, self.batching));
        }
        let end = self.views.get::<Recorder>().is_some().then(RequestEnd::default);
        if let Some(end) = &end {
            request.wrap_observer(|inner| end.observer(inner));
        }
        let lanes = self.scheduler.instance_state_counts();
        let found = QueueSnapshot {
            requests_ahead: len64(self.scheduler.queued()),
            instances: len64(lanes.total),
            busy: len64(lanes.busy),
            running_ns: lanes.busy_since.map_or(0, |since| now.saturating_since(since)),
            behind_first: lanes.busy == lanes.total && lanes.has_first_batch,
        };
        let explained = explanation(request).map(|explanation| (explanation, found));
        let content = request.request();
        let queued = QueuedRequest { info, content, explained, end: end.as_ref() };
        self.views.observe(now, &Observation::Queued(queued));
    }

    /// Records that a batch is closed.
    fn observe_close(&mut self, now: Time, instance: InstanceId, batch: &Batch) {
        let entries = batch.entries();
        let is_watched = self.views.is_watched();
        let queued =
            |key| self.entry(key)?.request.as_ref()?.admission_times().map(|times| times.queued);
        let closing = ClosingBatch {
            instance,
            entries,
            rows: batch.batch_size(),
            reason: batch.close_reason(),
            left: len64(self.scheduler.queued()),
            is_first: is_watched && self.scheduler.is_first_batch(instance),
            oldest: is_watched
                .then(|| entries.iter().filter_map(BatchEntry::request).filter_map(queued).min())
                .flatten(),
        };
        self.views.observe(now, &Observation::Closed(closing));
    }

    /// Records the reasons why requests wait after a scheduler step.
    pub(super) fn observe_step(&mut self, now: Time) {
        let (scheduler, batching) = (&self.scheduler, self.batching);
        let wait_of = |key| batching.wait(scheduler.wait_reason_of(key));
        let waiting = WaitingRequests { count: len64(scheduler.queued()), wait_of: &wait_of };
        self.views.observe(now, &Observation::Stepped(waiting));
    }

    /// Makes later replies wait for the reply to a queued request if the request is certain to
    /// execute.
    fn expect_reply(&mut self, sequence: Option<SequenceKey>, number: ArrivalNumber) {
        let Some(replies) = &mut self.replies else { return };
        let is_certain = match (&mut self.sequences, sequence) {
            (Some(sequences), Some(sequence)) => sequences.expect_reply(sequence, number),
            (Some(_), None) | (None, _) => self.orders_on_arrival,
        };
        if is_certain {
            replies.order.start_request(number);
        }
    }

    /// The warning about a request that starts a sequence which has not ended.
    pub(super) fn restart_warning(&self, key: RequestKey) -> Option<String> {
        self.entry(key)?.request.as_ref().map(failure::restart_warning)
    }

    /// The log line about an action that closes or ends a sequence.
    pub(super) fn sequence_line(
        &self,
        model: &str,
        event: &SchedulerEvent,
        action: &SchedulerAction,
    ) -> Option<String> {
        let (SchedulerAction::SequenceClosed(key) | SchedulerAction::SequenceEnded(key)) = action
        else {
            return None;
        };
        let id = self.sequences.as_ref()?.correlation_id_if_started(*key)?;
        let sequence = request_log::sequence_name(id, model);
        if matches!(action, SchedulerAction::SequenceEnded(_)) {
            return Some(format!("{sequence} has ended; its slot is free"));
        }
        let why = request_log::close_reason(event);
        Some(format!("{sequence} takes no further requests: {why}"))
    }

    /// The log line about a request that begins a sequence.
    pub(super) fn sequence_begin_line(&self, model: &str, info: &RequestInfo) -> Option<String> {
        let position = info.sequence.filter(|position| position.start)?;
        let id = self.sequences.as_ref()?.correlation_id_if_started(position.sequence)?;
        Some(format!("{} begins", request_log::sequence_name(id, model)))
    }

    /// The numbers of requests, of open sequences and of all sequences.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let (open, known) = self.sequences.as_ref().map_or((0, 0), Sequences::counts);
        (self.requests.len(), open, known)
    }

    /// Returns true if this exact request is queued or, in a sequence, executing.
    pub(super) fn knows(&self, key: RequestKey) -> bool {
        self.entry(key).is_some()
    }

    /// Returns true if a cancellation could have an effect.
    pub(super) fn may_cancel(&self, key: RequestKey) -> bool {
        let runs_again = self.sequences.as_ref().is_some_and(Sequences::is_iterative);
        self.entry(key).is_some_and(|entry| entry.request.is_some() || runs_again)
    }

    fn entry(&self, key: RequestKey) -> Option<&RequestEntry> {
        self.requests.get(index_of(key.0)).filter(|entry| entry.key == key)
    }

    fn entry_mut(&mut self, key: RequestKey) -> Option<&mut RequestEntry> {
        self.requests.get_mut(index_of(key.0)).filter(|entry| entry.key == key)
    }

    /// Drops everything that is waiting, because the scheduler is broken. If the dispatcher is
    /// draining, this completes the drain.
    pub(super) fn fail_all(&mut self, now: Time, effects: &mut Effects) {
        self.shape_classes = ShapeClasses::default();
        self.views.observe(now, &Observation::Dropped);
        if let Some(mirror) = &self.mirror {
            mirror.clear();
        }
        let mut dropped = Vec::new();
        for entry in self.requests.drain() {
            if let (Some(replies), Some(_)) = (&mut self.replies, &entry.request) {
                replies.order.withdraw(entry.reply_number);
            }
            dropped.extend(entry.request);
        }
        effects.push(Effect::DropRequests(dropped));
        if let Some(sequences) = &mut self.sequences {
            effects.push(Effect::DropStates(sequences.clear()));
        }
        if self.is_draining {
            self.add_drained_effect(effects);
        }
    }

    fn add_drained_effect(&mut self, effects: &mut Effects) {
        if !std::mem::replace(&mut self.has_drained_effect, true) {
            effects.push(Effect::NotifyDrained);
        }
    }

    /// Applies an action to the requests and sequences, and adds the effects that remain to be
    /// performed.
    pub(super) fn apply(&mut self, now: Time, action: SchedulerAction, effects: &mut Effects) {
        match action {
            SchedulerAction::Dispatch { instance, batch } => {
                self.observe_close(now, instance, &batch);
                let batch = match &self.sequences {
                    None => ClosedBatch::Requests(self.take_requests(batch)),
                    Some(_) => ClosedBatch::Rows(self.take_rows(batch)),
                };
                effects.push(Effect::Execute { instance, batch });
            }
            SchedulerAction::Fail { key, reason } => self.fail(now, key, reason, effects),
            SchedulerAction::SequenceClosed(key) => {
                if let Some(sequences) = &mut self.sequences {
                    sequences.close(key);
                }
            }
            SchedulerAction::SequenceEnded(key) => {
                let ended = self.sequences.as_mut().map(|known| known.end(key));
                if let Some(states) = ended.filter(|states| !states.is_empty()) {
                    effects.push(Effect::DropStates(states));
                }
            }
            SchedulerAction::RequestPermit(instance) => {
                self.permit_operations.push(PermitOperation::Request(instance));
            }
            SchedulerAction::ReturnPermit { instance, used } => {
                self.permit_operations.push(PermitOperation::Return { instance, used });
            }
            SchedulerAction::WithdrawPermit(instance) => {
                self.permit_operations.push(PermitOperation::Withdraw(instance));
            }
            SchedulerAction::InstanceRemoved(instance) => effects.push(Effect::StopLane(instance)),
            SchedulerAction::Drained => self.add_drained_effect(effects),
        }
    }

    fn fail(&mut self, now: Time, key: RequestKey, reason: FailReason, effects: &mut Effects) {
        if let Some(request) = self.take_failed(key).map(Box::new) {
            self.views.observe(now, &Observation::Failed(key, reason));
            effects.push(Effect::Fail { request, reason });
        }
    }

    fn take_requests(&mut self, batch: Batch) -> Vec<PendingRequest> {
        let entries = batch.into_entries();
        let mut requests = Vec::with_capacity(entries.len());
        for key in entries.iter().filter_map(BatchEntry::request) {
            if !self.knows(key) {
                // A scheduler must not dispatch requests that are not queued.
                self.is_broken = true;
                continue;
            }
            let entry = self.remove(key);
            if let Some(replies) = &mut self.replies
                && !self.orders_on_arrival
            {
                replies.order.start_request(entry.reply_number);
            }
            requests.extend(entry.request);
        }
        requests
    }

    fn take(&mut self, key: RequestKey) -> Option<RequestEntry> {
        self.entry(key)?;
        Some(self.remove(key))
    }

    /// Removes the entry for a known key.
    fn remove(&mut self, key: RequestKey) -> RequestEntry {
        if let Some(mirror) = &self.mirror {
            mirror.remove(key);
        }
        let entry = self.requests.remove(index_of(key.0));
        self.shape_classes.release(entry.shape_class);
        entry
    }

    fn take_failed(&mut self, key: RequestKey) -> Option<PendingRequest> {
        let entry = self.take(key);
        self.is_broken |= entry.is_none();
        let entry = entry?;
        if let Some(replies) = &mut self.replies {
            replies.order.withdraw(entry.reply_number);
            if let (Some(sequences), Some(sequence)) = (&mut self.sequences, entry.sequence) {
                sequences.forget_reply(sequence, entry.reply_number);
            }
        }
        entry.request
    }

    fn take_rows(&mut self, batch: Batch) -> Vec<Option<SequenceRow>> {
        let entries = batch.into_entries();
        let mut rows = Vec::with_capacity(entries.len());
        for entry in entries {
            match entry {
                BatchEntry::Padding => rows.push(None),
                BatchEntry::Step(step) => {
                    let flags = SequenceFlags { start: step.start, end: step.end };
                    let row = self.take_row(step.key, step.sequence, flags);
                    self.is_broken |= row.is_none();
                    rows.push(row);
                }
                BatchEntry::Request(_) => self.is_broken = true,
            }
        }
        rows
    }

    /// Takes the request out of its entry, which stays until the request is released.
    fn take_row(
        &mut self,
        key: RequestKey,
        sequence: SequenceKey,
        flags: SequenceFlags,
    ) -> Option<SequenceRow> {
        let request = self.entry_mut(key)?.request.take()?;
        let sequences = self.sequences.as_mut()?;
        let states = sequences.take_states(sequence);
        if let Some(replies) = &mut self.replies {
            for number in sequences.guarantee_replies(sequence) {
                replies.order.start_request(number);
            }
        }
        Some(SequenceRow { request, key, flags, states })
    }

    /// Takes back a known sequence request that the backend has released. `rescheduled` is the
    /// request itself if it must be executed again. Returns the states that no later request needs;
    /// they must be dropped without holding a lock.
    pub(super) fn take_back(
        &mut self,
        key: RequestKey,
        rescheduled: Option<PendingRequest>,
        states: Vec<StateTensor>,
    ) -> Vec<StateTensor> {
        let sequence = self.entry(key).and_then(|entry| entry.sequence);
        match rescheduled {
            None => drop(self.take(key)),
            Some(request) => {
                if let Some(entry) = self.entry_mut(key) {
                    entry.request = Some(request);
                }
            }
        }
        match (&mut self.sequences, sequence) {
            (Some(sequences), Some(sequence)) => sequences.put_states(sequence, states),
            (None, _) | (_, None) => states,
        }
    }
}
