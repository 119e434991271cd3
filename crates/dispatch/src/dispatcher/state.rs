//! What the dispatcher's lock guards: the scheduler, and the requests and
//! sequences that its keys stand for.

use galatea_backend::BatchRule;
use galatea_infer::{CorrelationId, PendingRequest, SequenceFlags, StateTensor};
use galatea_policy::{
    Action, Actions, Batch, BatchEntry, BatchKey, Event, FailReason, InstanceId, ReplyNumber,
    RequestInfo, RequestKey, Scheduler, SchedulingMode, SchedulingSpec, SequenceKey, Time,
};
use slab::Slab;
use smallvec::SmallVec;

use super::replies::Replies;
use super::rule::{AskedRule, Held, Shown};
use super::sequences::Sequences;
use super::{Arrival, failure, key_of, place_of};
use crate::assembly::{Row, Work};
use crate::batch_key::BatchKeys;
use crate::permits::{Granted, Order};
use crate::request_log;

#[derive(Debug)]
pub(super) struct State {
    pub(super) scheduler: Scheduler<AskedRule>,
    requests: Slab<Entry>,
    batch_keys: BatchKeys,
    /// With a sequence batcher.
    pub(super) sequences: Option<Sequences>,
    /// If replies leave in the order of their requests.
    pub(super) replies: Option<Replies>,
    /// If the model has its own say in what shares a batch: what is queued.
    shown: Option<Shown>,
    /// The same rule, to be ended before this is.
    rule: Option<Held>,
    /// Counts enqueued requests, so that a late cancellation can't reach
    /// another request in the same place of the slab.
    generation: u32,
    /// The earliest alarm that the timer was asked for.
    pub(super) armed: Option<Time>,
    /// Set once: what is queued is the last.
    pub(super) is_draining: bool,
    /// Set once: the end of that was among the effects.
    is_drain_told: bool,
    /// Set once: that effect was performed.
    pub(super) drained: bool,
    /// The scheduler broke one of its own rules. What it says can't be
    /// trusted any more: the model answers every request with an error.
    pub(super) broken: bool,
    /// Reused from step to step.
    pub(super) actions: Actions,
    /// What the scheduler wants of the rate limiter in this step.
    pub(super) orders: Vec<Order>,
    /// Batches for inline instances that wait for a thread.
    pub(super) parked: Vec<(InstanceId, Work)>,
}

/// A request that the scheduler knows.
#[derive(Debug)]
struct Entry {
    key: RequestKey,
    /// None while it is executed. Only requests of sequences stay known then.
    request: Option<PendingRequest>,
    batch_key: BatchKey,
    sequence: Option<SequenceKey>,
    number: ReplyNumber,
}

/// What is left to do when the lock is released.
#[derive(Debug)]
pub(super) enum Effect {
    Execute {
        instance: InstanceId,
        work: Work,
    },
    Fail {
        request: Box<PendingRequest>,
        reason: FailReason,
    },
    /// Requests that nobody will schedule; dropping them answers them.
    Abandon(Vec<PendingRequest>),
    /// States that have no successor.
    Forget(Vec<StateTensor>),
    StopLane(InstanceId),
    /// Permits of the rate limiter, for any model's instances.
    Deliver(Granted),
    NotifyDrained,
    /// A line of the log about a sequence.
    Note(String),
}

/// Nearly every step has one effect or none.
pub(super) type Effects = SmallVec<[Effect; 1]>;

/// A request that was put into the slab.
pub(super) struct Admitted {
    pub(super) ticket: RequestInfo,
    /// It starts a sequence that goes on: worth a warning.
    pub(super) restarts: bool,
}

impl State {
    pub(super) fn new(
        spec: SchedulingSpec,
        replies: Option<Replies>,
        rule: Option<AskedRule>,
    ) -> Self {
        let sequences = match &spec.mode {
            SchedulingMode::Default | SchedulingMode::Dynamic(_) => None,
            SchedulingMode::Sequence(sequence) => Some(Sequences::new(sequence.iterative)),
        };
        let shown = rule.as_ref().map(AskedRule::shown);
        let held = rule.as_ref().map(AskedRule::held);
        let scheduler = Scheduler::with_batch_strategy(spec, rule);
        Self {
            scheduler,
            requests: Slab::new(),
            batch_keys: BatchKeys::default(),
            sequences,
            replies,
            shown,
            rule: held,
            generation: 0,
            armed: None,
            is_draining: false,
            is_drain_told: false,
            drained: false,
            broken: false,
            actions: Actions::default(),
            orders: Vec::new(),
            parked: Vec::new(),
        }
    }

    /// The model's own rule for batches, if it has one that nobody took before.
    pub(super) fn take_rule(&self) -> Option<Box<dyn BatchRule>> {
        self.rule.as_ref().and_then(Held::take)
    }

    /// Before anything happens: instances run with permits only.
    pub(super) fn require_permits(&mut self) {
        self.scheduler.require_permits();
    }

    /// Puts a request into the slab and makes its ticket.
    pub(super) fn admit(&mut self, mut arrival: Arrival) -> Admitted {
        self.generation = self.generation.wrapping_add(1);
        let batch_key = self.batch_keys.acquire(arrival.shape_class.take());
        let content = arrival.request.request();
        let marked = self
            .sequences
            .as_mut()
            .and_then(|known| known.mark(&content.correlation_id, content.sequence_flags));
        let place = self.requests.vacant_entry();
        let key = RequestKey(key_of(place.key(), self.generation));
        let ticket = RequestInfo {
            key,
            batch_size: arrival.request.batch_size(),
            batch_key,
            priority: content.priority,
            timeout_ns: content.timeout_microseconds.saturating_mul(1_000),
            sequence: marked.map(|marked| marked.mark),
        };
        let sequence = marked.map(|marked| marked.mark.sequence);
        let number = arrival.number;
        if let Some(shown) = &self.shown {
            shown.add(key, &arrival.request);
        }
        // The request is large: it goes from where it is into its entry.
        let request = Some(arrival.request);
        place.insert(Entry { key, request, batch_key, sequence, number });
        self.expect_reply(sequence, number);
        Admitted { ticket, restarts: marked.is_some_and(|marked| marked.restarts) }
    }

    /// A queued request of a sequence that runs already is sure to run.
    fn expect_reply(&mut self, sequence: Option<SequenceKey>, number: ReplyNumber) {
        if let (Some(replies), Some(sequences), Some(sequence)) =
            (&mut self.replies, &mut self.sequences, sequence)
            && sequences.expect_reply(sequence, number)
        {
            replies.order.start(number);
        }
    }

    /// What the log says of a request that starts a sequence which goes on.
    pub(super) fn restart_warning(&self, key: RequestKey) -> Option<String> {
        self.entry(key)?.request.as_ref().map(failure::restart_warning)
    }

    /// What the log tells of what is about to happen to a sequence.
    pub(super) fn sequence_note(
        &self,
        model: &str,
        event: &Event,
        action: &Action,
    ) -> Option<String> {
        let (Action::SequenceClosed(key) | Action::SequenceEnded(key)) = action else {
            return None;
        };
        let id = self.sequences.as_ref()?.begun(*key)?;
        let sequence = request_log::sequence_of(id, model);
        if matches!(action, Action::SequenceEnded(_)) {
            return Some(format!("{sequence} has ended; its slot is free"));
        }
        let why = request_log::why_closed(event);
        Some(format!("{sequence} takes no further requests: {why}"))
    }

    /// What the log tells of a request that begins a sequence.
    pub(super) fn begin_note(&self, model: &str, ticket: &RequestInfo) -> Option<String> {
        let mark = ticket.sequence.filter(|mark| mark.start)?;
        let id = self.sequences.as_ref()?.begun(mark.sequence)?;
        Some(format!("{} begins", request_log::sequence_of(id, model)))
    }

    /// What clients call a sequence.
    pub(super) fn correlation_id(&self, key: SequenceKey) -> CorrelationId {
        self.sequences.as_ref().map(|known| known.correlation_id(key)).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize, usize) {
        let (open, known) = self.sequences.as_ref().map_or((0, 0), Sequences::counts);
        (self.requests.len(), open, known)
    }

    /// Whether this very request is queued or, as one of a sequence, executed.
    pub(super) fn knows(&self, key: RequestKey) -> bool {
        self.entry(key).is_some()
    }

    /// Whether a cancellation could have an effect.
    pub(super) fn may_cancel(&self, key: RequestKey) -> bool {
        let runs_again = self.sequences.as_ref().is_some_and(Sequences::is_iterative);
        self.entry(key).is_some_and(|entry| entry.request.is_some() || runs_again)
    }

    fn entry(&self, key: RequestKey) -> Option<&Entry> {
        self.requests.get(place_of(key.0)).filter(|entry| entry.key == key)
    }

    fn entry_mut(&mut self, key: RequestKey) -> Option<&mut Entry> {
        self.requests.get_mut(place_of(key.0)).filter(|entry| entry.key == key)
    }

    /// What a broken scheduler comes to: nothing waits any more, and draining
    /// is over at once, whenever it began.
    pub(super) fn give_up(&mut self, effects: &mut Effects) {
        self.batch_keys = BatchKeys::default();
        if let Some(shown) = &self.shown {
            shown.clear();
        }
        let mut abandoned = Vec::new();
        for entry in self.requests.drain() {
            if let (Some(replies), Some(_)) = (&mut self.replies, &entry.request) {
                replies.order.withdraw(entry.number);
            }
            abandoned.extend(entry.request);
        }
        effects.push(Effect::Abandon(abandoned));
        if let Some(sequences) = &mut self.sequences {
            effects.push(Effect::Forget(sequences.clear()));
        }
        if self.is_draining {
            self.tell_drained(effects);
        }
    }

    fn tell_drained(&mut self, effects: &mut Effects) {
        if !std::mem::replace(&mut self.is_drain_told, true) {
            effects.push(Effect::NotifyDrained);
        }
    }

    pub(super) fn effect(&mut self, action: Action, effects: &mut Effects) {
        match action {
            Action::Dispatch { instance, batch } => {
                let work = match &self.sequences {
                    None => Work::Requests(self.requests_of(batch)),
                    Some(_) => Work::Rows(self.rows_of(batch)),
                };
                effects.push(Effect::Execute { instance, work });
            }
            Action::Fail { key, reason } => {
                if let Some(request) = self.take_failed(key).map(Box::new) {
                    effects.push(Effect::Fail { request, reason });
                }
            }
            Action::SequenceClosed(key) => {
                if let Some(sequences) = &mut self.sequences {
                    sequences.close(key);
                }
            }
            Action::SequenceEnded(key) => {
                let ended = self.sequences.as_mut().map(|known| known.end(key));
                if let Some(states) = ended.filter(|states| !states.is_empty()) {
                    effects.push(Effect::Forget(states));
                }
            }
            Action::RequestPermit(instance) => self.orders.push(Order::Request(instance)),
            Action::ReturnPermit { instance, used } => {
                self.orders.push(Order::Return { instance, used });
            }
            Action::WithdrawPermit(instance) => self.orders.push(Order::Withdraw(instance)),
            Action::InstanceRemoved(instance) => effects.push(Effect::StopLane(instance)),
            Action::Drained => self.tell_drained(effects),
        }
    }

    fn requests_of(&mut self, batch: Batch) -> Vec<PendingRequest> {
        let entries = batch.into_entries();
        let mut requests = Vec::with_capacity(entries.len());
        for key in entries.iter().filter_map(BatchEntry::request) {
            if !self.knows(key) {
                // Whoever dispatches what is not queued breaks its own rules.
                self.broken = true;
                continue;
            }
            let entry = self.remove(key);
            if let Some(replies) = &mut self.replies {
                replies.order.start(entry.number);
            }
            requests.extend(entry.request);
        }
        requests
    }

    fn take(&mut self, key: RequestKey) -> Option<Entry> {
        self.entry(key)?;
        Some(self.remove(key))
    }

    /// Only for a key that is known.
    fn remove(&mut self, key: RequestKey) -> Entry {
        if let Some(shown) = &self.shown {
            shown.remove(key);
        }
        let entry = self.requests.remove(place_of(key.0));
        self.batch_keys.release(entry.batch_key);
        entry
    }

    fn take_failed(&mut self, key: RequestKey) -> Option<PendingRequest> {
        let entry = self.take(key);
        self.broken |= entry.is_none();
        let entry = entry?;
        if let Some(replies) = &mut self.replies {
            replies.order.withdraw(entry.number);
            if let (Some(sequences), Some(sequence)) = (&mut self.sequences, entry.sequence) {
                sequences.forget_reply(sequence, entry.number);
            }
        }
        entry.request
    }

    fn rows_of(&mut self, batch: Batch) -> Vec<Option<Row>> {
        let entries = batch.into_entries();
        let mut rows = Vec::with_capacity(entries.len());
        for entry in entries {
            match entry {
                BatchEntry::Padding => rows.push(None),
                BatchEntry::Step(step) => {
                    let flags = SequenceFlags { start: step.start, end: step.end };
                    let row = self.row(step.key, step.sequence, flags);
                    self.broken |= row.is_none();
                    rows.push(row);
                }
                BatchEntry::Request(_) => self.broken = true,
            }
        }
        rows
    }

    /// The request leaves its entry, which stays until it is released.
    fn row(&mut self, key: RequestKey, sequence: SequenceKey, flags: SequenceFlags) -> Option<Row> {
        let request = self.entry_mut(key)?.request.take()?;
        let sequences = self.sequences.as_mut()?;
        let states = sequences.take_states(sequence);
        if let Some(replies) = &mut self.replies {
            for number in sequences.assure_replies(sequence) {
                replies.order.start(number);
            }
        }
        Some(Row { request, key, flags, states })
    }

    /// The backend gives a known request of a sequence back, to be executed
    /// again if it comes along. States that have no successor come back, to be
    /// dropped where no lock is held.
    pub(super) fn take_back(
        &mut self,
        key: RequestKey,
        again: Option<PendingRequest>,
        states: Vec<StateTensor>,
    ) -> Vec<StateTensor> {
        let sequence = self.entry(key).and_then(|entry| entry.sequence);
        match again {
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
