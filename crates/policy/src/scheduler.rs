//! The scheduler, which takes events and the time and produces actions.

use crate::batch_strategy::{BatchStrategy, NoBatchStrategy};
use crate::batcher::Intake;
use crate::event::{
    FailReason, SchedulerAction, SchedulerActions, SchedulerEvent, WarmupMeasurement,
};
use crate::hold::DispatchHold;
use crate::ids::{InstanceId, RequestInfo, RequestKey};
use crate::independent::IndependentRequests;
use crate::lane_pool::{LanePool, Removal};
use crate::scheduler_state::SchedulerState;
use crate::sequence::SequenceBatcher;
use crate::spec::{SchedulingMode, SchedulingSpec};
use crate::status::{InstanceStateCounts, RequestWaitReason, SchedulerStatus};
use crate::time::Time;

/// Decides for one model version which requests form a batch, where it executes, and when.
#[derive(Clone, Debug)]
pub struct Scheduler<S = NoBatchStrategy> {
    queue: RequestQueue<S>,
    lanes: LanePool,
    state: SchedulerState,
    max_batch_size: u32,
    now: Time,
}

/// The waiting requests.
#[derive(Clone, Debug)]
enum RequestQueue<S> {
    /// Independent requests, which any instance can execute.
    Independent(Box<IndependentRequests<S>>),
    /// Sequences, each bound to an instance.
    Sequences(Box<SequenceBatcher>),
}

impl Scheduler {
    /// Creates a scheduler without instances; requests wait until one is added.
    pub fn new(spec: SchedulingSpec) -> Self {
        Self::with_batch_strategy(spec, None)
    }
}

impl<S: BatchStrategy> Scheduler<S> {
    /// Creates a scheduler whose model may decide where batches end.
    ///
    /// # Panics
    ///
    /// Panics if there is a strategy but the mode isn't the dynamic batcher, or batches are padded.
    pub fn with_batch_strategy(spec: SchedulingSpec, strategy: Option<S>) -> Self {
        let allows_strategy =
            matches!(&spec.mode, SchedulingMode::Dynamic(dynamic) if dynamic.padding.is_none());
        assert!(
            strategy.is_none() || allows_strategy,
            "custom batching needs the dynamic batcher, without padding"
        );
        Self::build(&spec, strategy)
    }

    fn build(spec: &SchedulingSpec, strategy: Option<S>) -> Self {
        let hold = DispatchHold::until_queued(spec.hold_until_queued);
        let max_batch_size = spec.max_batch_size;
        let independent = match &spec.mode {
            SchedulingMode::Default => IndependentRequests::unbatched(hold),
            SchedulingMode::Dynamic(dynamic) => {
                IndependentRequests::dynamic(max_batch_size, dynamic, strategy, hold)
            }
            SchedulingMode::Deadline(deadline) => {
                IndependentRequests::by_deadlines(max_batch_size, deadline, hold)
            }
            SchedulingMode::Sequence(sequence) => {
                let sequences = SequenceBatcher::new(spec, sequence);
                return Self::of(RequestQueue::Sequences(Box::new(sequences)), max_batch_size);
            }
        };
        Self::of(RequestQueue::Independent(Box::new(independent)), max_batch_size)
    }

    fn of(queue: RequestQueue<S>, max_batch_size: u32) -> Self {
        Scheduler {
            queue,
            lanes: LanePool::default(),
            state: SchedulerState::Open,
            max_batch_size,
            now: Time::default(),
        }
    }

    /// Requires instances to have a permit from the rate limiter for each batch.
    #[must_use]
    pub fn with_permits(mut self) -> Self {
        self.require_permits();
        self
    }

    /// Does the same as [`with_permits`](Self::with_permits) by reference. Must be called before
    /// the first event.
    pub fn require_permits(&mut self) {
        self.lanes.require_permits();
    }

    /// Learns the cost of an execution before any request has executed, if decisions depend on it.
    /// Later executions have the same weight.
    pub fn learn(&mut self, execution: &WarmupMeasurement) {
        if let RequestQueue::Independent(independent) = &mut self.queue {
            independent.learn(execution);
        }
    }

    /// Processes an event and pushes the resulting actions. Never fails or blocks.
    ///
    /// A `now` that is earlier than the time of a previous step counts as that step's time: drivers
    /// read the clock before they take their lock, so times may be out of order.
    ///
    /// # Panics
    ///
    /// Panics if the driver breaks the rules for events: a key is queued twice; an instance is
    /// unknown, added twice, or freed while free; a request belongs to a closed sequence (see
    /// [`SchedulerEvent::Enqueue`] for how to avoid this); a released request isn't executing; or a
    /// permit is granted without a request.
    pub fn step(&mut self, now: Time, event: SchedulerEvent, out: &mut SchedulerActions) {
        self.now = self.now.max(now);
        match &mut self.queue {
            RequestQueue::Independent(independent) => independent.apply_timeouts(self.now, out),
            RequestQueue::Sequences(sequences) => sequences.apply_deadlines(self.now, out),
        }
        match event {
            SchedulerEvent::Enqueue(request) => self.enqueue(request, out),
            SchedulerEvent::Cancel(key) => self.cancel(key, out),
            SchedulerEvent::Released { key, release } => match &mut self.queue {
                RequestQueue::Independent(_) => {
                    panic!("{key:?} is no step of a sequence")
                }
                RequestQueue::Sequences(sequences) => {
                    sequences.release(key, release, self.now, out)
                }
            },
            SchedulerEvent::LaneFree(id) => self.free_lane(id, out),
            SchedulerEvent::AddInstance(id) => self.add_instance(id),
            SchedulerEvent::RemoveInstance(id) => self.remove_instance(id, out),
            SchedulerEvent::PermitGranted(id) => self.grant(id, out),
            SchedulerEvent::PermitDelayed(id) => self.lanes.delay(id),
            SchedulerEvent::Drain => self.drain(out),
            SchedulerEvent::Tick => {}
        }
        self.dispatch(out);
        self.lanes.return_unused_permit(out);
        self.report_drained(out);
        if let RequestQueue::Sequences(sequences) = &mut self.queue {
            sequences.finish_removals(&mut self.lanes, out);
        }
    }

    /// Returns the time of the next step if no event arrives earlier. It is later than the last
    /// step, and the step at that time has an effect.
    pub fn next_wakeup(&self) -> Option<Time> {
        match &self.queue {
            RequestQueue::Independent(independent) => independent.next_wakeup(),
            RequestQueue::Sequences(sequences) => sequences.next_wakeup(),
        }
    }

    /// Returns the number of waiting requests.
    pub fn queued(&self) -> usize {
        match &self.queue {
            RequestQueue::Independent(independent) => independent.queued(),
            RequestQueue::Sequences(sequences) => sequences.queued(),
        }
    }

    /// Returns the waiting requests and what they are waiting for. Not intended for the hot path.
    pub fn status(&self) -> SchedulerStatus {
        let (queues, sequences) = match &self.queue {
            RequestQueue::Independent(independent) => (independent.status(), None),
            RequestQueue::Sequences(sequences) => (Vec::new(), Some(sequences.status(&self.lanes))),
        };
        SchedulerStatus {
            queues,
            lanes: self.lanes.status(),
            sequences,
            draining: self.state != SchedulerState::Open,
        }
    }

    /// Returns the reason why a queued request is waiting. Without a sequence batcher, it is the
    /// same for all requests.
    pub fn wait_reason_of(&self, key: RequestKey) -> RequestWaitReason {
        match &self.queue {
            RequestQueue::Independent(independent) => independent.wait_reason().into(),
            RequestQueue::Sequences(sequences) => sequences.wait_of(key, &self.lanes),
        }
    }

    /// Returns the number of instances in each state. The cost is O(instances).
    pub fn instance_state_counts(&self) -> InstanceStateCounts {
        self.lanes.counts()
    }

    /// Returns true if the latest batch of an instance is its first.
    pub fn is_first_batch(&self, id: InstanceId) -> bool {
        self.lanes.is_first_batch(id)
    }

    fn enqueue(&mut self, request: RequestInfo, out: &mut SchedulerActions) {
        debug_assert!(
            self.max_batch_size == 0 || request.batch_size <= self.max_batch_size,
            "admission refuses requests above the maximum batch size"
        );
        match &mut self.queue {
            RequestQueue::Independent(_) if self.state != SchedulerState::Open => {
                out.push(SchedulerAction::Fail { key: request.key, reason: FailReason::Draining });
            }
            RequestQueue::Independent(independent) => {
                independent.enqueue(request, self.now, &self.lanes, out)
            }
            RequestQueue::Sequences(sequences) => {
                sequences.enqueue(request, self.now, self.state, out)
            }
        }
    }

    fn cancel(&mut self, key: RequestKey, out: &mut SchedulerActions) {
        match &mut self.queue {
            RequestQueue::Independent(independent) => independent.cancel(key, out),
            RequestQueue::Sequences(sequences) => sequences.cancel(key, self.now, out),
        }
    }

    fn free_lane(&mut self, id: InstanceId, out: &mut SchedulerActions) {
        let removal = self.lanes.release(id, self.now, out);
        report_removal(removal, id, out);
        match &mut self.queue {
            RequestQueue::Independent(independent) => independent.finish_batch(id, self.now),
            RequestQueue::Sequences(sequences) => sequences.mark_dirty(id),
        }
    }

    fn grant(&mut self, id: InstanceId, out: &mut SchedulerActions) {
        self.lanes.grant(id, out);
        if let RequestQueue::Sequences(sequences) = &mut self.queue {
            sequences.mark_dirty(id);
        }
    }

    fn add_instance(&mut self, id: InstanceId) {
        self.lanes.add(id, self.now);
        if let RequestQueue::Sequences(sequences) = &mut self.queue {
            sequences.add_instance(id, self.now);
        }
    }

    fn remove_instance(&mut self, id: InstanceId, out: &mut SchedulerActions) {
        if let RequestQueue::Sequences(sequences) = &mut self.queue
            && sequences.remove_instance(id) == Removal::Pending
        {
            return;
        }
        let removal = self.lanes.remove(id, out);
        report_removal(removal, id, out);
    }

    fn drain(&mut self, out: &mut SchedulerActions) {
        if self.state == SchedulerState::Open {
            self.state = SchedulerState::Draining;
        }
        match &mut self.queue {
            RequestQueue::Independent(independent) => independent.release_hold(),
            RequestQueue::Sequences(sequences) => sequences.drain(self.now, out),
        }
    }

    fn dispatch(&mut self, out: &mut SchedulerActions) {
        let intake = if self.state == SchedulerState::Open { Intake::Open } else { Intake::Closed };
        match &mut self.queue {
            RequestQueue::Independent(independent) => {
                independent.dispatch(self.now, intake, &mut self.lanes, out)
            }
            RequestQueue::Sequences(sequences) => {
                sequences.dispatch(self.now, intake, &mut self.lanes, out);
            }
        }
    }

    fn report_drained(&mut self, out: &mut SchedulerActions) {
        let is_quiet = match &self.queue {
            RequestQueue::Independent(independent) => independent.queued() == 0,
            RequestQueue::Sequences(sequences) => sequences.is_quiet(),
        };
        if self.state == SchedulerState::Draining && is_quiet && self.lanes.all_free() {
            self.state = SchedulerState::Drained;
            out.push(SchedulerAction::Drained);
        }
    }
}

fn report_removal(removal: Removal, id: InstanceId, out: &mut SchedulerActions) {
    match removal {
        Removal::Complete => out.push(SchedulerAction::InstanceRemoved(id)),
        Removal::Pending => {}
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
