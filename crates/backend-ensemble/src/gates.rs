//! `max_inflight_requests`: the driver of [`StepGates`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use galatea_infer::{CongestionPoint, ResumeHook};
use galatea_policy::{EnsembleGraph, StepCallKey, StepGates, StepIndex};

use crate::run::{Event, Run};

/// The gates before the steps of one ensemble, for all of its requests.
pub(crate) struct Gates {
    state: Mutex<State>,
}

struct State {
    gates: StepGates<Waiting>,
    /// What waits for room behind a step.
    hooks: Vec<(StepIndex, ResumeHook)>,
}

/// A call that wants to start.
struct Waiting {
    run: Arc<Run>,
    step: StepIndex,
    call: StepCallKey,
}

impl Waiting {
    fn is(&self, run: &Arc<Run>, call: StepCallKey) -> bool {
        Arc::ptr_eq(&self.run, run) && self.call == call
    }
}

/// Whether a call that was withdrawn was still waiting.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Withdrawn {
    InTime,
    TooLate,
}

impl Gates {
    /// `None` if steps may have any number of requests.
    pub(crate) fn new(graph: &EnsembleGraph, limit: u32) -> Option<Self> {
        let gates = (limit > 0).then(|| StepGates::new(graph, limit))?;
        Some(Self { state: Mutex::new(State { gates, hooks: Vec::new() }) })
    }

    /// The call wants to start; its run is told when it may.
    pub(crate) fn enter(&self, step: StepIndex, run: &Arc<Run>, call: StepCallKey) {
        let waiting = Waiting { run: run.clone(), step, call };
        self.change(|gates, started| gates.enter(step, waiting, started));
    }

    /// A call that had started is over.
    pub(crate) fn leave(&self, step: StepIndex) {
        self.change(|gates, started| gates.leave(step, started));
    }

    /// A call doesn't want to start any more. If it may already, its run is told
    /// of that all the same.
    pub(crate) fn withdraw(&self, step: StepIndex, run: &Arc<Run>, call: StepCallKey) -> Withdrawn {
        let mut withdrawn = Vec::new();
        self.change(|gates, started| {
            gates.withdraw(step, |one| one.is(run, call), &mut withdrawn, started);
        });
        if withdrawn.is_empty() { Withdrawn::TooLate } else { Withdrawn::InTime }
    }

    /// Whoever this makes room for is told when the lock is free.
    fn change(&self, act: impl FnOnce(&mut StepGates<Waiting>, &mut Vec<Waiting>)) {
        let mut started = Vec::new();
        let hooks = {
            let mut state = self.lock();
            act(&mut state.gates, &mut started);
            state.take_hooks()
        };
        for Waiting { run, step, call } in started {
            run.post(Event::Admitted(step, call));
        }
        hooks.into_iter().for_each(|hook| hook());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_hooks(&mut self) -> Vec<ResumeHook> {
        if self.hooks.is_empty() {
            return Vec::new();
        }
        let (kept, free): (Vec<_>, Vec<_>) = std::mem::take(&mut self.hooks)
            .into_iter()
            .partition(|(step, _)| self.gates.is_congested(*step));
        self.hooks = kept;
        free.into_iter().map(|(_, hook)| hook).collect()
    }
}

/// What piles up behind a step.
pub(crate) struct BehindStep {
    pub(crate) gates: Arc<Gates>,
    pub(crate) step: StepIndex,
}

impl CongestionPoint for BehindStep {
    fn is_congested(&self) -> bool {
        self.gates.lock().gates.is_congested(self.step)
    }

    fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook> {
        let mut state = self.gates.lock();
        if !state.gates.is_congested(self.step) {
            return Some(hook);
        }
        state.hooks.push((self.step, hook));
        None
    }
}
