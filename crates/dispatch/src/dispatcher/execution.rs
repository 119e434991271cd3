//! Performs effects, and chooses the thread that executes a batch.
//!
//! - A lane with a thread receives the batch, unless the current thread may execute it inline (see
//!   [`lane`](crate::lane)).
//! - A batch for a lane without a thread is executed by the thread that formed it. When a batch
//!   ends, the next one may become possible. A thread that continued until the queue is empty might
//!   never return while other threads keep filling the queue, and it may be an I/O thread with
//!   connections to serve. A thread therefore executes a limited number of batches and *parks* the
//!   next. The thread that queues the next request executes the parked batch; if no request comes,
//!   the timer's thread does.
//! - A release may make a batch possible while another batch is executing. Such a batch is always
//!   parked, because the releasing thread may be in the middle of the instance's work, or belong to
//!   the backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use galatea_policy::{InstanceId, SchedulerEvent};

use super::effect::{Effect, Effects};
use super::state::DispatcherState;
use super::{Dispatcher, failure};
use crate::batch::ClosedBatch;
use crate::lane::{InlineExecution, Lane};
use crate::log::request_log;

/// The maximum number of batches that a thread executes before it parks the next one.
pub(crate) const INLINE_BATCHES_MAX: usize = 64;

/// The part of the threadless execution state that the dispatcher's lock doesn't guard.
#[derive(Debug, Default)]
pub(super) struct ThreadlessExecution {
    /// The number of threads executing a batch. Each of them looks for parked batches afterwards.
    /// The number is decremented under the lock.
    executing: AtomicUsize,
}

impl Dispatcher {
    /// Performs effects until none are left. Executing a batch on this thread frees its lane, which
    /// may lead to the next batch.
    pub(super) fn perform(&self, mut effects: Effects) {
        let mut executed = 0;
        while !effects.is_empty() {
            let mut follow_up = Effects::new();
            for effect in effects {
                self.perform_one(effect, &mut executed, &mut follow_up);
            }
            effects = follow_up;
        }
    }

    /// Performs one effect. Resulting effects are added to `follow_up`.
    fn perform_one(&self, effect: Effect, executed: &mut usize, follow_up: &mut Effects) {
        match effect {
            Effect::Execute { instance, batch } => {
                self.execute_or_send(instance, batch, executed, follow_up);
            }
            Effect::Fail { request, reason } => {
                failure::fail(*request, reason, &self.log);
                self.deliver_ordered_replies();
            }
            Effect::DropRequests(requests) => {
                drop(requests);
                self.deliver_ordered_replies();
            }
            Effect::DropStates(states) => drop(states),
            Effect::StopLane(instance) => self.stop_lane(instance),
            Effect::DeliverPermits(granted) => self.deliver_permits(granted),
            Effect::NotifyDrained => self.finish_drain(),
            Effect::Log(line) => request_log::write(&self.log, line),
        }
    }

    fn execute_or_send(
        &self,
        instance: InstanceId,
        batch: ClosedBatch,
        executed: &mut usize,
        effects: &mut Effects,
    ) {
        let Some(threadless) = &self.threadless else {
            return self.execute_inline_or_send(instance, batch, effects);
        };
        *executed += 1;
        if *executed <= INLINE_BATCHES_MAX {
            self.execute_threadless(threadless, instance, batch, effects);
        } else {
            self.park(instance, batch);
        }
    }

    /// Executes a batch inline, or sends it to the lane's thread. The current thread's inline
    /// budget limits the time spent on inline execution.
    fn execute_inline_or_send(
        &self,
        instance: InstanceId,
        batch: ClosedBatch,
        effects: &mut Effects,
    ) {
        let Some(lane) = self.lane(instance) else { return };
        let result = if self.allows_inline_execution {
            lane.try_execute_inline(batch, self)
        } else {
            Err(batch)
        };
        match result {
            Ok(InlineExecution::Ended) => {
                self.settle_losses();
                let free = SchedulerEvent::LaneFree(instance);
                self.step_at(&mut self.lock("step the scheduler"), self.now(), free, effects);
            }
            Ok(InlineExecution::InProgress) => {}
            Err(batch) => lane.send(batch),
        }
    }

    fn execute_threadless(
        &self,
        threadless: &ThreadlessExecution,
        instance: InstanceId,
        batch: ClosedBatch,
        effects: &mut Effects,
    ) {
        threadless.executing.fetch_add(1, Ordering::Relaxed);
        if let Some(lane) = self.lane(instance) {
            lane.execute_threadless(batch, self);
        }
        self.settle_losses();
        let mut state = self.lock("step the scheduler");
        threadless.executing.fetch_sub(1, Ordering::Relaxed);
        self.step_at(&mut state, self.now(), SchedulerEvent::LaneFree(instance), effects);
        state.unpark(effects);
    }

    fn park(&self, instance: InstanceId, batch: ClosedBatch) {
        let mut state = self.lock("park a batch");
        state.parked.push((instance, batch));
        self.set_alarm(&mut state, self.now());
    }

    /// Parks the batches among a release's effects.
    pub(super) fn park_released(&self, state: &mut DispatcherState, effects: &mut Effects) {
        let Some(threadless) = &self.threadless else { return };
        let mut others = Effects::new();
        for effect in effects.drain(..) {
            match effect {
                Effect::Execute { instance, batch } => state.parked.push((instance, batch)),
                effect => others.push(effect),
            }
        }
        *effects = others;
        if !state.parked.is_empty() && threadless.executing.load(Ordering::Relaxed) == 0 {
            self.set_alarm(state, self.now());
        }
    }

    fn lane(&self, instance: InstanceId) -> Option<Arc<Lane>> {
        self.lanes.get(instance)
    }
}

impl DispatcherState {
    /// Turns the parked batches into effects.
    pub(super) fn unpark(&mut self, effects: &mut Effects) {
        for (instance, batch) in self.parked.drain(..) {
            effects.push(Effect::Execute { instance, batch });
        }
    }
}
