//! Effects performed; instances without a thread are executed by whichever
//! thread made the batch, for a while. Those with a thread get theirs sent, unless
//! it is an errand for this one.
//!
//! A batch that ends makes the next one possible. A thread that goes on until
//! nothing is left may never get away while others keep filling the queue, and it
//! may be a door's, with connections of its own to serve. So it executes some
//! batches and *parks* the rest: whoever queues the next request takes them, and
//! if nobody does, the timer's thread does.
//!
//! A request that is released while its batch is executed may make a batch
//! possible too. That one is always parked: the thread may be in the middle of an
//! instance's work, or a backend's own.

use std::sync::atomic::{AtomicUsize, Ordering};

use galatea_policy::{Event, InstanceId};

use super::state::{Effect, Effects, State};
use super::{Dispatcher, Work};

/// Batches that one thread executes before it leaves the next to another.
pub(crate) const ROUNDS_MAX: usize = 64;

/// What a dispatcher of inline instances knows beside its state.
#[derive(Debug, Default)]
pub(super) struct Inline {
    /// Threads that execute a batch, each of which will look for parked ones
    /// behind it. Lowered under the lock.
    executing: AtomicUsize,
}

impl Dispatcher {
    /// Performs effects until none is left: a batch that was executed inline
    /// frees its lane, which may bring the next.
    pub(super) fn perform(&self, mut effects: Effects) {
        let mut rounds = 0;
        while !effects.is_empty() {
            let mut follow_up = Effects::new();
            for effect in effects {
                self.perform_one(effect, &mut rounds, &mut follow_up);
            }
            effects = follow_up;
        }
    }

    /// Has a batch executed, here or by the lane's thread.
    pub(super) fn hand_over(
        &self,
        instance: InstanceId,
        work: Work,
        rounds: &mut usize,
        effects: &mut Effects,
    ) {
        let Some(inline) = &self.inline else { return self.send(instance, work, effects) };
        *rounds += 1;
        if *rounds <= ROUNDS_MAX {
            self.execute_inline(inline, instance, work, effects);
        } else {
            self.park(instance, work);
        }
    }

    /// Gives a batch to a lane with a thread, or executes it here as an errand. The
    /// time for errands is bounded, and with it how long this can go on.
    fn send(&self, instance: InstanceId, work: Work, effects: &mut Effects) {
        let Some(lane) = self.lane(instance) else { return };
        let unexecuted =
            if self.runs_errands { lane.execute_as_errand(work, self) } else { Err(work) };
        match unexecuted {
            Ok(()) => {
                let free = Event::LaneFree(instance);
                self.step_at(&mut self.lock(), self.now(), free, effects);
            }
            Err(work) => lane.send(work),
        }
    }

    fn execute_inline(
        &self,
        inline: &Inline,
        instance: InstanceId,
        work: Work,
        effects: &mut Effects,
    ) {
        inline.executing.fetch_add(1, Ordering::Relaxed);
        if let Some(lane) = self.lane(instance) {
            lane.execute_inline(work, self);
        }
        let mut state = self.lock();
        inline.executing.fetch_sub(1, Ordering::Relaxed);
        self.step_at(&mut state, self.now(), Event::LaneFree(instance), effects);
        state.unpark(effects);
    }

    fn park(&self, instance: InstanceId, work: Work) {
        let mut state = self.lock();
        state.parked.push((instance, work));
        self.arm_at(&mut state, self.now());
    }

    /// Parks the batches among the effects of a release.
    pub(super) fn park_released(&self, state: &mut State, effects: &mut Effects) {
        let Some(inline) = &self.inline else { return };
        let mut others = Effects::new();
        for effect in effects.drain(..) {
            match effect {
                Effect::Execute { instance, work } => state.parked.push((instance, work)),
                effect => others.push(effect),
            }
        }
        *effects = others;
        if !state.parked.is_empty() && inline.executing.load(Ordering::Relaxed) == 0 {
            self.arm_at(state, self.now());
        }
    }
}

impl State {
    /// Takes the parked batches up.
    pub(super) fn unpark(&mut self, effects: &mut Effects) {
        for (instance, work) in self.parked.drain(..) {
            effects.push(Effect::Execute { instance, work });
        }
    }
}
