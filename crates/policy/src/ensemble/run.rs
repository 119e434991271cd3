//! One request's run through an ensemble.

use std::collections::{BTreeMap, BTreeSet};

use crate::ensemble::graph::{EnsembleGraph, EnsembleTensorIndex, StepIndex, to_usize};

/// A call to a step, numbered within its run in start order.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StepCallKey(pub u64);

/// An action of an ensemble run, which the driver performs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EnsembleAction<T> {
    /// Send a request to the step's model.
    Start {
        /// The call.
        call: StepCallKey,
        /// The called step.
        step: StepIndex,
        /// The tensors for the step's inputs, in the order of its specification. An omitted tensor
        /// is `None`.
        inputs: Vec<Option<T>>,
    },
    /// Cancel the call: its response is no longer needed.
    CancelCall(StepCallKey),
    /// Send a response with these outputs, in the order in which the client requested them; `None`
    /// for an output that its model omitted.
    Respond {
        /// The outputs.
        outputs: Vec<(EnsembleTensorIndex, Option<T>)>,
    },
    /// Reply to the request with an error. Only `CancelCall` and `Finished` follow.
    Fail(EnsembleRunFailure),
    /// No calls are left. Unless the request has failed, it ends now.
    Finished,
}

/// The reason why a request fails.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum EnsembleRunFailure {
    /// The call failed; the driver knows the error.
    Step(StepCallKey),
    /// The request was cancelled.
    Cancelled,
    /// No further step can run, but an output is missing.
    Deadlock,
}

/// The state of one request. `T` is the type of a tensor's contents.
#[derive(Clone, Debug)]
pub struct EnsembleRun<T> {
    /// The outputs that the client requested.
    requested: Vec<EnsembleTensorIndex>,
    /// For each step, true if the requested outputs depend on it.
    needed: Vec<bool>,
    values: BTreeMap<(EnsembleTensorIndex, u64), TensorValue<T>>,
    /// The number of stored values for each wave of each decoupled step.
    pending: BTreeMap<(StepIndex, u64), usize>,
    /// The number of waves so far for each decoupled step.
    waves: Vec<u64>,
    calls: BTreeMap<StepCallKey, CallInProgress>,
    started: u64,
    responses: u64,
    state: RunState,
}

#[derive(Clone, Debug)]
struct TensorValue<T> {
    /// The contents, or `None` if the producer omitted the tensor.
    contents: Option<T>,
    /// The number of steps and responses that still need the tensor.
    users: usize,
}

#[derive(Copy, Clone, Debug)]
struct CallInProgress {
    step: StepIndex,
    wave: u64,
}

/// Running → Failed. Running or Failed → Finished.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum RunState {
    Running,
    Failed,
    Finished,
}

impl<T: Clone> EnsembleRun<T> {
    /// Begins a request with its inputs and its requested outputs. An input that the client omitted
    /// is `None`. Pushes the first steps to start.
    pub fn begin(
        graph: &EnsembleGraph,
        inputs: Vec<(EnsembleTensorIndex, Option<T>)>,
        requested: Vec<EnsembleTensorIndex>,
        out: &mut Vec<EnsembleAction<T>>,
    ) -> Self {
        let mut run = EnsembleRun {
            needed: graph.needed_steps(&requested),
            requested,
            values: BTreeMap::new(),
            pending: BTreeMap::new(),
            waves: vec![0; graph.steps.len()],
            calls: BTreeMap::new(),
            started: 0,
            responses: 0,
            state: RunState::Running,
        };
        let arrived: Vec<(EnsembleTensorIndex, u64)> =
            inputs.iter().map(|(index, _)| (*index, 0)).collect();
        for (index, contents) in inputs {
            run.store(graph, index, 0, contents);
        }
        run.start_ready(graph, &arrived, out);
        run.finish_if_idle(graph, out);
        run
    }

    /// Handles a response from a call. `outputs` contains the response's outputs in any order.
    /// Further responses may follow until [`finished`](Self::call_finished).
    pub fn call_responded(
        &mut self,
        graph: &EnsembleGraph,
        call: StepCallKey,
        outputs: Vec<(EnsembleTensorIndex, T)>,
        out: &mut Vec<EnsembleAction<T>>,
    ) {
        if self.state != RunState::Running {
            return;
        }
        let CallInProgress { step: index, wave } = *self.call(call);
        let step = graph.step(index);
        let wave = if step.decoupled {
            let waves = &mut self.waves[to_usize(index.0)];
            *waves += 1;
            *waves - 1
        } else {
            wave
        };
        let mut outputs: BTreeMap<EnsembleTensorIndex, T> = outputs.into_iter().collect();
        let mut arrived = Vec::with_capacity(step.outputs.len());
        for output in &step.outputs {
            let contents = outputs.remove(output);
            self.store(graph, *output, wave, contents);
            arrived.push((*output, wave));
        }
        self.start_ready(graph, &arrived, out);
    }

    /// Records that the call sends no further responses.
    pub fn call_finished(
        &mut self,
        graph: &EnsembleGraph,
        call: StepCallKey,
        out: &mut Vec<EnsembleAction<T>>,
    ) {
        self.end_call(call);
        self.finish_if_idle(graph, out);
    }

    /// Records that the call ended with an error.
    pub fn call_failed(
        &mut self,
        graph: &EnsembleGraph,
        call: StepCallKey,
        out: &mut Vec<EnsembleAction<T>>,
    ) {
        self.end_call(call);
        self.fail(EnsembleRunFailure::Step(call), out);
        self.finish_if_idle(graph, out);
    }

    /// Records that the call sent an error before its end, which follows later.
    pub fn call_responded_with_error(
        &mut self,
        graph: &EnsembleGraph,
        call: StepCallKey,
        out: &mut Vec<EnsembleAction<T>>,
    ) {
        let _known = self.call(call);
        self.fail(EnsembleRunFailure::Step(call), out);
        self.finish_if_idle(graph, out);
    }

    /// Cancels the request.
    pub fn cancel(&mut self, graph: &EnsembleGraph, out: &mut Vec<EnsembleAction<T>>) {
        self.fail(EnsembleRunFailure::Cancelled, out);
        self.finish_if_idle(graph, out);
    }

    /// Returns the number of calls that have neither finished nor failed.
    pub fn active_call_count(&self) -> usize {
        self.calls.len()
    }

    /// Returns the number of waves with tensors that a step or the response still needs. These
    /// waves pile up while the decoupled steps continue.
    pub fn pending_decoupled_responses(&self) -> usize {
        self.pending.len()
    }

    /// Returns the step of a call that has neither finished nor failed.
    pub fn step_of(&self, call: StepCallKey) -> StepIndex {
        self.call(call).step
    }

    fn call(&self, call: StepCallKey) -> &CallInProgress {
        self.calls.get(&call).unwrap_or_else(|| panic!("{call:?} is not in flight"))
    }

    fn end_call(&mut self, call: StepCallKey) {
        let ended = self.calls.remove(&call);
        assert!(ended.is_some(), "{call:?} is not in flight");
    }

    /// Stores a tensor if a step or the response needs it.
    fn store(
        &mut self,
        graph: &EnsembleGraph,
        index: EnsembleTensorIndex,
        wave: u64,
        contents: Option<T>,
    ) {
        let consumers = graph.tensor(index).consumers.iter();
        let steps = consumers.filter(|step| self.needed[to_usize(step.0)]).count();
        let users = steps + usize::from(self.requested.contains(&index));
        if users > 0 {
            let previous = self.values.insert((index, wave), TensorValue { contents, users });
            assert!(previous.is_none(), "{index:?} came twice in wave {wave}");
            if let Some(source) = graph.tensor(index).source {
                *self.pending.entry((source, wave)).or_default() += 1;
            }
        }
    }

    /// Starts the steps that the new tensors make ready, and responds if the outputs are complete.
    fn start_ready(
        &mut self,
        graph: &EnsembleGraph,
        arrived: &[(EnsembleTensorIndex, u64)],
        out: &mut Vec<EnsembleAction<T>>,
    ) {
        let mut ready: BTreeSet<(StepIndex, u64)> = BTreeSet::new();
        for &(index, wave) in arrived {
            for step in graph.tensor(index).consumers.iter().copied() {
                if !self.needed[to_usize(step.0)] {
                    continue;
                }
                let inputs = &graph.step(step).inputs;
                let waves = self.candidate_waves(graph, inputs, index, wave).into_iter();
                let complete = waves.filter(|wave| self.has_all(graph, inputs, *wave));
                ready.extend(complete.map(|wave| (step, wave)));
            }
        }
        for (step, wave) in ready {
            self.start(graph, step, wave, out);
        }
        let requested = self.requested.clone();
        let mut complete: BTreeSet<u64> = BTreeSet::new();
        for &(index, wave) in arrived.iter().filter(|(index, _)| requested.contains(index)) {
            complete.extend(self.candidate_waves(graph, &requested, index, wave));
        }
        for wave in complete {
            self.respond_if_complete(graph, &requested, wave, out);
        }
    }

    /// Returns the waves that a new tensor may complete. For a tensor that belongs to a wave, that
    /// is its own wave. For a tensor without waves, these are all waves of the other tensors in its
    /// group, if there are any.
    fn candidate_waves(
        &self,
        graph: &EnsembleGraph,
        group: &[EnsembleTensorIndex],
        index: EnsembleTensorIndex,
        wave: u64,
    ) -> Vec<u64> {
        let waved = group.iter().find(|tensor| graph.tensor(**tensor).source.is_some());
        match waved {
            Some(waved) if graph.tensor(index).source.is_none() => {
                let range = (*waved, 0)..=(*waved, u64::MAX);
                self.values.range(range).map(|((_, wave), _)| *wave).collect()
            }
            Some(_) | None => vec![wave],
        }
    }

    /// Returns the key of a wave's tensor. A tensor that doesn't come from a decoupled step is the
    /// same in every wave.
    fn key(
        graph: &EnsembleGraph,
        index: EnsembleTensorIndex,
        wave: u64,
    ) -> (EnsembleTensorIndex, u64) {
        (index, if graph.tensor(index).source.is_some() { wave } else { 0 })
    }

    fn has_all(&self, graph: &EnsembleGraph, group: &[EnsembleTensorIndex], wave: u64) -> bool {
        group.iter().all(|index| self.values.contains_key(&Self::key(graph, *index, wave)))
    }

    fn start(
        &mut self,
        graph: &EnsembleGraph,
        index: StepIndex,
        wave: u64,
        out: &mut Vec<EnsembleAction<T>>,
    ) {
        let step = graph.step(index);
        let inputs = step.inputs.iter().map(|input| self.contents(graph, *input, wave)).collect();
        let runs_again = step.source.is_some();
        let mut distinct = step.inputs.clone();
        distinct.sort_unstable();
        distinct.dedup();
        for input in distinct {
            self.release_use(graph, input, wave, runs_again);
        }
        let call = StepCallKey(self.started);
        self.started += 1;
        self.calls.insert(call, CallInProgress { step: index, wave });
        out.push(EnsembleAction::Start { call, step: index, inputs });
    }

    fn contents(&self, graph: &EnsembleGraph, index: EnsembleTensorIndex, wave: u64) -> Option<T> {
        self.values.get(&Self::key(graph, index, wave)).and_then(|value| value.contents.clone())
    }

    /// Releases one use. A tensor that other waves will still use is kept.
    fn release_use(
        &mut self,
        graph: &EnsembleGraph,
        index: EnsembleTensorIndex,
        wave: u64,
        used_again: bool,
    ) {
        if used_again && graph.tensor(index).source.is_none() {
            return;
        }
        let key = Self::key(graph, index, wave);
        let value = self.values.get_mut(&key).expect("a ready step's tensors are stored");
        value.users -= 1;
        if value.users == 0 {
            self.values.remove(&key);
            if let Some(source) = graph.tensor(index).source {
                self.forget_pending((source, wave));
            }
        }
    }

    fn forget_pending(&mut self, wave: (StepIndex, u64)) {
        let count = self.pending.get_mut(&wave).expect("its values were counted");
        *count -= 1;
        if *count == 0 {
            self.pending.remove(&wave);
        }
    }

    fn forget_values(&mut self) {
        self.values.clear();
        self.pending.clear();
    }

    fn respond_if_complete(
        &mut self,
        graph: &EnsembleGraph,
        requested: &[EnsembleTensorIndex],
        wave: u64,
        out: &mut Vec<EnsembleAction<T>>,
    ) {
        if !self.has_all(graph, requested, wave) {
            return;
        }
        let outputs: Vec<_> =
            requested.iter().map(|index| (*index, self.contents(graph, *index, wave))).collect();
        let responds_again = requested.iter().any(|index| graph.tensor(*index).source.is_some());
        for index in requested {
            self.release_use(graph, *index, wave, responds_again);
        }
        self.responses += 1;
        out.push(EnsembleAction::Respond { outputs });
    }

    fn fail(&mut self, failure: EnsembleRunFailure, out: &mut Vec<EnsembleAction<T>>) {
        if self.state != RunState::Running {
            return;
        }
        self.state = RunState::Failed;
        self.forget_values();
        out.push(EnsembleAction::Fail(failure));
        out.extend(self.calls.keys().map(|call| EnsembleAction::CancelCall(*call)));
    }

    /// Finishes the request if no calls are left.
    fn finish_if_idle(&mut self, graph: &EnsembleGraph, out: &mut Vec<EnsembleAction<T>>) {
        if !self.calls.is_empty() || self.state == RunState::Finished {
            return;
        }
        let may_have_no_response =
            self.requested.iter().any(|index| graph.tensor(*index).source.is_some());
        if self.responses == 0 && !may_have_no_response {
            self.fail(EnsembleRunFailure::Deadlock, out);
        }
        self.state = RunState::Finished;
        self.forget_values();
        out.push(EnsembleAction::Finished);
    }
}
