//! The machine: events and time in, actions out.

use crate::event::{Action, Actions, Event, FailReason};
use crate::former::{DynamicFormer, Outlook};
use crate::ids::{InstanceId, RequestInfo, RequestKey};
use crate::lanes::{Departure, Lanes};
use crate::queue::PolicyQueue;
use crate::sequence::{KnownInstance, SequenceBatcher};
use crate::shared::SharedQueue;
use crate::spec::{SchedulingMode, SchedulingSpec};
use crate::status::SchedulerStatus;
use crate::strategy::{BatchStrategy, NoStrategy};
use crate::time::Time;

/// Decides for one model version what runs when, where and together.
#[derive(Clone, Debug)]
pub struct Scheduler<S = NoStrategy> {
    work: Work<S>,
    lanes: Lanes,
    life: Life,
    max_batch_size: u32,
    now: Time,
}

/// What waits, and who leads it to the instances.
#[derive(Clone, Debug)]
enum Work<S> {
    /// Independent requests, for any instance.
    Shared(Box<SharedQueue<S>>),
    /// Sequences, each bound to an instance.
    Sequences(Box<SequenceBatcher>),
}

/// Open → Draining → Drained, never back.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    Open,
    Draining,
    Drained,
}

impl Scheduler {
    /// A scheduler without instances; requests wait until one is added.
    pub fn new(spec: SchedulingSpec) -> Self {
        Self::with_batch_strategy(spec, None)
    }
}

impl<S: BatchStrategy> Scheduler<S> {
    /// A scheduler whose model may have a say in where batches end.
    ///
    /// # Panics
    ///
    /// If there is a strategy and the mode is not the dynamic batcher, which alone
    /// asks it.
    pub fn with_batch_strategy(spec: SchedulingSpec, strategy: Option<S>) -> Self {
        assert!(
            strategy.is_none() || matches!(spec.mode, SchedulingMode::Dynamic(_)),
            "custom batching needs the dynamic batcher"
        );
        Self::build(&spec, strategy)
    }

    fn build(spec: &SchedulingSpec, strategy: Option<S>) -> Self {
        let shared = |queue, former| {
            Work::Shared(Box::new(SharedQueue::new(queue, former, spec.hold_until_queued)))
        };
        let work = match &spec.mode {
            SchedulingMode::Default => {
                shared(PolicyQueue::unlimited(), DynamicFormer::one_by_one())
            }
            SchedulingMode::Dynamic(dynamic) => shared(
                PolicyQueue::new(dynamic),
                DynamicFormer::new(spec.max_batch_size, dynamic).with_strategy(strategy),
            ),
            SchedulingMode::Sequence(sequence) => {
                Work::Sequences(Box::new(SequenceBatcher::new(spec, sequence)))
            }
        };
        Scheduler {
            work,
            lanes: Lanes::default(),
            life: Life::Open,
            max_batch_size: spec.max_batch_size,
            now: Time::default(),
        }
    }

    /// With instances that need a permit of the rate limiter for each batch.
    #[must_use]
    pub fn with_permits(mut self) -> Self {
        self.require_permits();
        self
    }

    /// The same for a scheduler that is in its place already. Comes before any
    /// event.
    pub fn require_permits(&mut self) {
        self.lanes.require_permits();
    }

    /// Takes an event in and says what to do. Never fails, never blocks.
    ///
    /// A `now` before an earlier step's counts as that step's time: drivers read
    /// the clock before they take their lock, so steps may come out of order.
    ///
    /// # Panics
    ///
    /// If the driver breaks the rules of the events: a key queued twice, an
    /// instance added twice, freed while free, or unknown, a request of a closed
    /// sequence (see [`Event::Enqueue`] for what to do before), a request released
    /// that is not in execution, a permit granted that was not asked for.
    pub fn step(&mut self, now: Time, event: Event, out: &mut Actions) {
        self.now = self.now.max(now);
        match &mut self.work {
            Work::Shared(shared) => shared.apply_timeouts(self.now, out),
            Work::Sequences(sequences) => sequences.apply_deadlines(self.now, out),
        }
        match event {
            Event::Enqueue(ticket) => self.enqueue(ticket, out),
            Event::Cancel(key) => self.cancel(key, out),
            Event::Released { key, release } => match &mut self.work {
                Work::Shared(_) => panic!("{key:?} is no step of a sequence"),
                Work::Sequences(sequences) => sequences.release(key, release, self.now, out),
            },
            Event::LaneFree(id) => self.free_lane(id, out),
            Event::AddInstance(id) => self.add_instance(id),
            Event::RemoveInstance(id) => self.remove_instance(id, out),
            Event::PermitGranted(id) => self.grant(id, out),
            Event::PermitDelayed(id) => self.lanes.delay(id),
            Event::Drain => self.drain(out),
            Event::Tick => {}
        }
        self.dispatch(out);
        self.lanes.return_unused(out);
        self.report_drained(out);
        if let Work::Sequences(sequences) = &mut self.work {
            sequences.settle_departures(&mut self.lanes, out);
        }
    }

    /// When to step next if nothing happens before: always after the last step's
    /// time, and only if that step would have an effect.
    pub fn next_wakeup(&self) -> Option<Time> {
        match &self.work {
            Work::Shared(shared) => shared.next_wakeup(),
            Work::Sequences(sequences) => sequences.next_wakeup(),
        }
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        match &self.work {
            Work::Shared(shared) => shared.queued(),
            Work::Sequences(sequences) => sequences.queued(),
        }
    }

    /// What waits, and why. Not for the hot path.
    pub fn status(&self) -> SchedulerStatus {
        let (queues, sequences) = match &self.work {
            Work::Shared(shared) => (shared.status(), None),
            Work::Sequences(sequences) => (Vec::new(), Some(sequences.status(&self.lanes))),
        };
        SchedulerStatus {
            queues,
            lanes: self.lanes.status(),
            sequences,
            draining: self.life != Life::Open,
        }
    }

    fn enqueue(&mut self, ticket: RequestInfo, out: &mut Actions) {
        debug_assert!(
            self.max_batch_size == 0 || ticket.batch_size <= self.max_batch_size,
            "admission refuses requests above the maximum batch size"
        );
        match &mut self.work {
            Work::Shared(_) if self.life != Life::Open => {
                out.push(Action::Fail { key: ticket.key, reason: FailReason::Draining });
            }
            Work::Shared(shared) => shared.enqueue(ticket, self.now, out),
            Work::Sequences(sequences) => sequences.enqueue(ticket, self.now, self.life, out),
        }
    }

    fn cancel(&mut self, key: RequestKey, out: &mut Actions) {
        match &mut self.work {
            Work::Shared(shared) => shared.cancel(key, out),
            Work::Sequences(sequences) => sequences.cancel(key, self.now, out),
        }
    }

    fn free_lane(&mut self, id: InstanceId, out: &mut Actions) {
        let departure = self.lanes.release(id, self.now, out);
        report_departure(departure, id, out);
        if let Work::Sequences(sequences) = &mut self.work {
            sequences.touch(id);
        }
    }

    fn grant(&mut self, id: InstanceId, out: &mut Actions) {
        self.lanes.grant(id, out);
        if let Work::Sequences(sequences) = &mut self.work {
            sequences.touch(id);
        }
    }

    fn add_instance(&mut self, id: InstanceId) {
        self.lanes.add(id, self.now);
        if let Work::Sequences(sequences) = &mut self.work {
            sequences.add_instance(id, self.now);
        }
    }

    fn remove_instance(&mut self, id: InstanceId, out: &mut Actions) {
        if let Work::Sequences(sequences) = &mut self.work
            && sequences.remove_instance(id) == KnownInstance::Leaving
        {
            return;
        }
        let departure = self.lanes.remove(id, out);
        report_departure(departure, id, out);
    }

    fn drain(&mut self, out: &mut Actions) {
        if self.life == Life::Open {
            self.life = Life::Draining;
        }
        match &mut self.work {
            Work::Shared(shared) => shared.drain(),
            Work::Sequences(sequences) => sequences.drain(self.now, out),
        }
    }

    fn dispatch(&mut self, out: &mut Actions) {
        let outlook = if self.life == Life::Open { Outlook::Open } else { Outlook::Draining };
        match &mut self.work {
            Work::Shared(shared) => shared.dispatch(self.now, outlook, &mut self.lanes, out),
            Work::Sequences(sequences) => {
                sequences.dispatch(self.now, outlook, &mut self.lanes, out);
            }
        }
    }

    fn report_drained(&mut self, out: &mut Actions) {
        let is_quiet = match &self.work {
            Work::Shared(shared) => shared.queued() == 0,
            Work::Sequences(sequences) => sequences.is_quiet(),
        };
        if self.life == Life::Draining && is_quiet && self.lanes.all_free() {
            self.life = Life::Drained;
            out.push(Action::Drained);
        }
    }
}

fn report_departure(departure: Departure, id: InstanceId, out: &mut Actions) {
    match departure {
        Departure::Gone => out.push(Action::InstanceRemoved(id)),
        Departure::Stays => {}
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
