//! `max_inflight_requests`: how many requests of all runs a step may have at a
//! time.
//!
//! Calls that find their step full wait in a list, and nobody blocks. A step
//! also gets no further calls while a step behind it has a list as long as the
//! limit: otherwise a fast step would pile up its results before a slow one. So
//! what lies between two steps is bounded, and what has not begun waits with its
//! client.

use std::collections::VecDeque;

use crate::ensemble::graph::{EnsembleGraph, StepIndex, place};

/// The gates of one ensemble, before each of its steps. `K` stands for a call of
/// any run.
#[derive(Clone, Debug)]
pub struct StepGates<K> {
    limit: usize,
    gates: Vec<Gate<K>>,
    /// The steps, the last of the dataflow first.
    order: Vec<StepIndex>,
}

#[derive(Clone, Debug)]
struct Gate<K> {
    downstream: Vec<StepIndex>,
    inside: usize,
    waiting: VecDeque<K>,
}

impl<K> StepGates<K> {
    /// Gates that let so many in at a time.
    ///
    /// # Panics
    ///
    /// If the limit is 0, which means that there are no gates.
    pub fn new(graph: &EnsembleGraph, limit: u32) -> Self {
        assert!(limit > 0, "without a limit there are no gates");
        let gates = graph.steps.iter().map(|step| Gate {
            downstream: step.downstream.clone(),
            inside: 0,
            waiting: VecDeque::new(),
        });
        let mut order = graph.order().expect("the graph was checked");
        order.reverse();
        StepGates { limit: place(limit), gates: gates.collect(), order }
    }

    /// The call wants to start. Calls that may start now, this or others, are
    /// put into `started`.
    pub fn enter(&mut self, step: StepIndex, call: K, started: &mut Vec<K>) {
        self.gates[place(step.0)].waiting.push_back(call);
        self.admit(started);
    }

    /// A call of the step, which was started, is over.
    ///
    /// # Panics
    ///
    /// If the step has none.
    pub fn leave(&mut self, step: StepIndex, started: &mut Vec<K>) {
        let inside = &mut self.gates[place(step.0)].inside;
        *inside = inside.checked_sub(1).expect("who leaves was inside");
        self.admit(started);
    }

    /// The step's calls that have not started and are not wanted any more leave;
    /// they are put into `withdrawn`.
    pub fn withdraw(
        &mut self,
        step: StepIndex,
        unwanted: impl Fn(&K) -> bool,
        withdrawn: &mut Vec<K>,
        started: &mut Vec<K>,
    ) {
        let waiting = &mut self.gates[place(step.0)].waiting;
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

    /// Whether what the step makes piles up: a decoupled step should pause.
    pub fn is_congested(&self, step: StepIndex) -> bool {
        let downstream = &self.gates[place(step.0)].downstream;
        downstream.iter().any(|next| self.gates[place(next.0)].waiting.len() >= self.limit)
    }

    /// Calls of the step that have started and are not over.
    pub fn inside(&self, step: StepIndex) -> usize {
        self.gates[place(step.0)].inside
    }

    /// Calls that wait before the step.
    pub fn waiting(&self, step: StepIndex) -> usize {
        self.gates[place(step.0)].waiting.len()
    }

    /// From the end of the dataflow to its beginning: what starts at the end
    /// makes room before it.
    fn admit(&mut self, started: &mut Vec<K>) {
        for at in 0..self.order.len() {
            let step = self.order[at];
            while self.gates[place(step.0)].inside < self.limit && !self.is_congested(step) {
                let gate = &mut self.gates[place(step.0)];
                let Some(call) = gate.waiting.pop_front() else { break };
                gate.inside += 1;
                started.push(call);
            }
        }
    }
}
