//! `max_inflight_requests`: limits a step's concurrent calls across all runs.
//!
//! Calls to a step that has reached its limit wait in a list, without blocking a thread. A step
//! also starts no further calls while the list of a downstream step is as long as the limit,
//! because the results of a fast step would otherwise pile up before a slow one. This bounds the
//! number of results between two steps.

use std::collections::VecDeque;

use crate::ensemble::graph::{EnsembleGraph, StepIndex, to_usize};

/// The gates of an ensemble, one in front of each step. `K` identifies a call of any run.
#[derive(Clone, Debug)]
pub struct StepConcurrencyLimiter<K> {
    limit: usize,
    gates: Vec<Gate<K>>,
    /// The steps from the end of the dataflow to its start.
    order: Vec<StepIndex>,
}

#[derive(Clone, Debug)]
struct Gate<K> {
    downstream: Vec<StepIndex>,
    started: usize,
    waiting: VecDeque<K>,
}

impl<K> StepConcurrencyLimiter<K> {
    /// Creates gates with the given limit for each step.
    ///
    /// # Panics
    ///
    /// Panics if the limit is 0, which means that there are no gates.
    pub fn new(graph: &EnsembleGraph, limit: u32) -> Self {
        assert!(limit > 0, "without a limit there are no gates");
        let gates = graph.steps.iter().map(|step| Gate {
            downstream: step.downstream.clone(),
            started: 0,
            waiting: VecDeque::new(),
        });
        let mut order = graph.order().expect("the graph was checked");
        order.reverse();
        StepConcurrencyLimiter { limit: to_usize(limit), gates: gates.collect(), order }
    }

    /// Requests that a call be started. Pushes all calls that may start now to `started`, whether
    /// or not this call is among them.
    pub fn enter(&mut self, step: StepIndex, call: K, started: &mut Vec<K>) {
        self.gates[to_usize(step.0)].waiting.push_back(call);
        self.admit(started);
    }

    /// Records the end of a started call of the step.
    ///
    /// # Panics
    ///
    /// Panics if the step has no started call.
    pub fn leave(&mut self, step: StepIndex, started: &mut Vec<K>) {
        let started_calls = &mut self.gates[to_usize(step.0)].started;
        *started_calls = started_calls.checked_sub(1).expect("the call was started");
        self.admit(started);
    }

    /// Removes the step's waiting calls selected by `unwanted` and pushes them to `withdrawn`.
    pub fn remove_waiting(
        &mut self,
        step: StepIndex,
        unwanted: impl Fn(&K) -> bool,
        withdrawn: &mut Vec<K>,
        started: &mut Vec<K>,
    ) {
        let waiting = &mut self.gates[to_usize(step.0)].waiting;
        let before = waiting.len();
        for _ in 0..before {
            let Some(call) = waiting.pop_front() else { break };
            if unwanted(&call) {
                withdrawn.push(call);
            } else {
                waiting.push_back(call);
            }
        }
        self.admit(started);
    }

    /// Returns true if calls pile up behind the step, so that a decoupled step should pause.
    pub fn is_congested(&self, step: StepIndex) -> bool {
        let downstream = &self.gates[to_usize(step.0)].downstream;
        downstream.iter().any(|next| self.gates[to_usize(next.0)].waiting.len() >= self.limit)
    }

    /// Returns the number of the step's calls that have started but not ended.
    pub fn started_count(&self, step: StepIndex) -> usize {
        self.gates[to_usize(step.0)].started
    }

    /// Returns the number of calls waiting for the step.
    pub fn waiting_count(&self, step: StepIndex) -> usize {
        self.gates[to_usize(step.0)].waiting.len()
    }

    /// Starts calls from the end of the dataflow to its start, because a start at the end makes
    /// room for earlier steps.
    fn admit(&mut self, started: &mut Vec<K>) {
        for at in 0..self.order.len() {
            let step = self.order[at];
            while self.gates[to_usize(step.0)].started < self.limit && !self.is_congested(step) {
                let gate = &mut self.gates[to_usize(step.0)];
                let Some(call) = gate.waiting.pop_front() else { break };
                gate.started += 1;
                started.push(call);
            }
        }
    }
}
