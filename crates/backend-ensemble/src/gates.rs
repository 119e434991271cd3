//! `max_inflight_requests`: the driver of [`StepConcurrencyLimiter`].

use std::sync::Arc;

use galatea_infer::{CongestionPoint, ResumeHook};
use galatea_policy::{EnsembleGraph, StepCallKey, StepConcurrencyLimiter, StepIndex};
use galatea_stdx::Lock;

use crate::event::{RunEvent, RunInbox};

/// The gates in front of an ensemble's steps. All requests to the ensemble share them.
pub(crate) struct Gates {
    state: Lock<StepGatesState>,
}

struct StepGatesState {
    gates: StepConcurrencyLimiter<WaitingCall>,
    /// Hooks that run when the congestion behind their step ends.
    hooks: Vec<(StepIndex, ResumeHook)>,
}

/// A call that is waiting at its step's gate.
struct WaitingCall {
    run: Arc<dyn RunInbox>,
    step: StepIndex,
    call: StepCallKey,
}

impl WaitingCall {
    fn is(&self, run: &Arc<dyn RunInbox>, call: StepCallKey) -> bool {
        Arc::ptr_eq(&self.run, run) && self.call == call
    }
}

/// The result of an attempt to withdraw a call from its gate.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum WithdrawalResult {
    Withdrawn,
    /// The gate has already admitted the call. The event is on its way to the run.
    AlreadyAdmitted,
}

impl Gates {
    /// Returns `None` if the number of requests in a step is not limited.
    pub(crate) fn new(graph: &EnsembleGraph, limit: u32) -> Option<Self> {
        let gates = (limit > 0).then(|| StepConcurrencyLimiter::new(graph, limit))?;
        Some(Self { state: Lock::new(StepGatesState { gates, hooks: Vec::new() }) })
    }

    /// Queues a call. The run receives [`RunEvent::Admitted`] when the call may start.
    pub(crate) fn enter(&self, step: StepIndex, run: &Arc<dyn RunInbox>, call: StepCallKey) {
        let waiting = WaitingCall { run: run.clone(), step, call };
        self.update("queue a call", |gates, admitted| gates.enter(step, waiting, admitted));
    }

    /// Releases the gate place of an admitted call that has ended.
    pub(crate) fn leave(&self, step: StepIndex) {
        self.update("end a call", |gates, admitted| gates.leave(step, admitted));
    }

    /// Withdraws a call, unless it has already been admitted.
    pub(crate) fn withdraw(
        &self,
        step: StepIndex,
        run: &Arc<dyn RunInbox>,
        call: StepCallKey,
    ) -> WithdrawalResult {
        let mut withdrawn = Vec::new();
        self.update("withdraw a call", |gates, admitted| {
            gates.remove_waiting(step, |waiting| waiting.is(run, call), &mut withdrawn, admitted);
        });
        if withdrawn.is_empty() {
            WithdrawalResult::AlreadyAdmitted
        } else {
            WithdrawalResult::Withdrawn
        }
    }

    /// Updates the gates, then posts admissions and runs hooks after releasing the lock.
    fn update(
        &self,
        purpose: &'static str,
        change: impl FnOnce(&mut StepConcurrencyLimiter<WaitingCall>, &mut Vec<WaitingCall>),
    ) {
        let mut admitted = Vec::new();
        let hooks = {
            let mut state = self.state.lock(purpose);
            change(&mut state.gates, &mut admitted);
            state.take_hooks()
        };
        for WaitingCall { run, step, call } in admitted {
            run.post(RunEvent::Admitted(step, call));
        }
        hooks.into_iter().for_each(|hook| hook());
    }
}

impl StepGatesState {
    /// Removes the hooks of steps that are no longer congested.
    fn take_hooks(&mut self) -> Vec<ResumeHook> {
        if self.hooks.is_empty() {
            return Vec::new();
        }
        let (kept, ready): (Vec<_>, Vec<_>) = std::mem::take(&mut self.hooks)
            .into_iter()
            .partition(|(step, _)| self.gates.is_congested(*step));
        self.hooks = kept;
        ready.into_iter().map(|(_, hook)| hook).collect()
    }
}

/// The congestion behind a step, which consists of calls that wait at the gates of the next steps.
pub(crate) struct DownstreamCongestion {
    pub(crate) gates: Arc<Gates>,
    pub(crate) step: StepIndex,
}

impl CongestionPoint for DownstreamCongestion {
    fn is_congested(&self) -> bool {
        self.gates.state.lock("read the congestion").gates.is_congested(self.step)
    }

    fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook> {
        let mut state = self.gates.state.lock("add a hook");
        if !state.gates.is_congested(self.step) {
            return Some(hook);
        }
        state.hooks.push((self.step, hook));
        None
    }
}
