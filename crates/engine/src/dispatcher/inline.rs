//! Effects performed; instances without a thread are executed by whichever
//! thread made the batch, for a while.
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
                match (effect, &self.inline) {
                    (Effect::Execute { instance, work }, Some(inline)) => {
                        rounds += 1;
                        if rounds <= ROUNDS_MAX {
                            self.execute_inline(inline, instance, work, &mut follow_up);
                        } else {
                            self.park(instance, work);
                        }
                    }
                    (effect, _) => self.perform_one(effect),
                }
            }
            effects = follow_up;
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
