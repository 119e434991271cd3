//! One request on its way through an ensemble.

use std::collections::{BTreeMap, BTreeSet};

use crate::ensemble::graph::{EnsembleGraph, StepIndex, TensorIndex, place};

/// A call of a step, numbered within its run in the order of starting.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StepCallKey(pub u64);

/// Something that the driver shall do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EnsembleAction<T> {
    /// Send a request to the step's model.
    Start {
        /// The call's name.
        call: StepCallKey,
        /// Which step.
        step: StepIndex,
        /// For each of the step's inputs, in the order of its specification,
        /// the tensor, or none if it was left out.
        inputs: Vec<Option<T>>,
    },
    /// The call's answer is not wanted any more.
    CancelCall(StepCallKey),
    /// Send a response with these outputs, in the order of the request's wanted
    /// outputs; none was left out by the model that makes it.
    Respond {
        /// The outputs.
        outputs: Vec<(TensorIndex, Option<T>)>,
    },
    /// Answer the request with an error. Nothing but `Over` follows, and cancels.
    Fail(RunFailure),
    /// No call is left. Unless the request has failed, it ends here.
    Finished,
}

/// Why a request fails.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RunFailure {
    /// The call failed; the driver knows how.
    Step(StepCallKey),
    /// The client gave up.
    Cancelled,
    /// Every step that could run has run, and an output is missing.
    Deadlock,
}

/// The state of one request. `T` stands for a tensor's contents.
#[derive(Clone, Debug)]
pub struct EnsembleRun<T> {
    /// The outputs that the client wants.
    wanted: Vec<TensorIndex>,
    /// Which steps are needed for them.
    needed: Vec<bool>,
    values: BTreeMap<(TensorIndex, u64), Value<T>>,
    /// How many of the values are of each wave of each decoupled step.
    held: BTreeMap<(StepIndex, u64), usize>,
    /// Per decoupled step, how many waves it has sent.
    waves: Vec<u64>,
    calls: BTreeMap<StepCallKey, Call>,
    started: u64,
    responses: u64,
    life: RunLife,
}

#[derive(Clone, Debug)]
struct Value<T> {
    /// None if whoever makes it left it out.
    contents: Option<T>,
    /// Who still needs it.
    uses: usize,
}

#[derive(Copy, Clone, Debug)]
struct Call {
    step: StepIndex,
    wave: u64,
}

/// Running → Failed, and both → Over.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum RunLife {
    Running,
    Failed,
    Over,
}

impl<T: Clone> EnsembleRun<T> {
    /// A request with its inputs, none for each that the client left out, and
    /// the outputs that it wants. Says which steps start.
    pub fn begin(
        graph: &EnsembleGraph,
        inputs: Vec<(TensorIndex, Option<T>)>,
        wanted: Vec<TensorIndex>,
        out: &mut Vec<EnsembleAction<T>>,
    ) -> Self {
        let mut run = EnsembleRun {
            needed: graph.needed_steps(&wanted),
            wanted,
            values: BTreeMap::new(),
            held: BTreeMap::new(),
            waves: vec![0; graph.steps.len()],
            calls: BTreeMap::new(),
            started: 0,
            responses: 0,
            life: RunLife::Running,
        };
        let arrived: Vec<(TensorIndex, u64)> =
            inputs.iter().map(|(index, _)| (*index, 0)).collect();
        for (index, contents) in inputs {
            run.keep(graph, index, 0, contents);
        }
        run.proceed(graph, &arrived, out);
        run.settle(graph, out);
        run
    }

    /// A call was answered. `outputs` are those that the answer has, in any
    /// order; further answers may follow until [`finished`](Self::finished).
    pub fn responded(
        &mut self,
        graph: &EnsembleGraph,
        call: StepCallKey,
        outputs: Vec<(TensorIndex, T)>,
        out: &mut Vec<EnsembleAction<T>>,
    ) {
        if self.life != RunLife::Running {
            return;
        }
        let Call { step: index, wave } = *self.call(call);
        let step = graph.step(index);
        let wave = if step.decoupled {
            let waves = &mut self.waves[place(index.0)];
            *waves += 1;
            *waves - 1
        } else {
            wave
        };
        let mut outputs: BTreeMap<TensorIndex, T> = outputs.into_iter().collect();
        let mut arrived = Vec::with_capacity(step.outputs.len());
        for output in &step.outputs {
            let contents = outputs.remove(output);
            self.keep(graph, *output, wave, contents);
            arrived.push((*output, wave));
        }
        self.proceed(graph, &arrived, out);
    }

    /// No further answer to the call comes.
    pub fn finished(
        &mut self,
        graph: &EnsembleGraph,
        call: StepCallKey,
        out: &mut Vec<EnsembleAction<T>>,
    ) {
        self.end_call(call);
        self.settle(graph, out);
    }

    /// The call was answered with an error, after which nothing follows.
    pub fn failed(
        &mut self,
        graph: &EnsembleGraph,
        call: StepCallKey,
        out: &mut Vec<EnsembleAction<T>>,
    ) {
        self.end_call(call);
        self.fail(RunFailure::Step(call), out);
        self.settle(graph, out);
    }

    /// The call was answered with an error, but its end is still to come.
    pub fn error_before_end(
        &mut self,
        graph: &EnsembleGraph,
        call: StepCallKey,
        out: &mut Vec<EnsembleAction<T>>,
    ) {
        let _known = self.call(call);
        self.fail(RunFailure::Step(call), out);
        self.settle(graph, out);
    }

    /// The client gave up.
    pub fn cancel(&mut self, graph: &EnsembleGraph, out: &mut Vec<EnsembleAction<T>>) {
        self.fail(RunFailure::Cancelled, out);
        self.settle(graph, out);
    }

    /// Calls that have neither finished nor failed.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Answers of decoupled steps that wait for other tensors, before some step
    /// or the response: they pile up if the decoupled steps go on.
    pub fn pending_waves(&self) -> usize {
        self.held.len()
    }

    /// The step of a call that has neither finished nor failed.
    pub fn step_of(&self, call: StepCallKey) -> StepIndex {
        self.call(call).step
    }

    fn call(&self, call: StepCallKey) -> &Call {
        self.calls.get(&call).unwrap_or_else(|| panic!("{call:?} is not in flight"))
    }

    fn end_call(&mut self, call: StepCallKey) {
        let ended = self.calls.remove(&call);
        assert!(ended.is_some(), "{call:?} is not in flight");
    }

    /// Keeps a tensor if anybody needs it.
    fn keep(&mut self, graph: &EnsembleGraph, index: TensorIndex, wave: u64, contents: Option<T>) {
        let consumers = graph.tensor(index).consumers.iter();
        let steps = consumers.filter(|step| self.needed[place(step.0)]).count();
        let uses = steps + usize::from(self.wanted.contains(&index));
        if uses > 0 {
            let previous = self.values.insert((index, wave), Value { contents, uses });
            assert!(previous.is_none(), "{index:?} came twice in wave {wave}");
            if let Some(source) = graph.tensor(index).source {
                *self.held.entry((source, wave)).or_default() += 1;
            }
        }
    }

    /// Starts what the new tensors make ready, and answers if they complete the
    /// outputs.
    fn proceed(
        &mut self,
        graph: &EnsembleGraph,
        arrived: &[(TensorIndex, u64)],
        out: &mut Vec<EnsembleAction<T>>,
    ) {
        let mut ready: BTreeSet<(StepIndex, u64)> = BTreeSet::new();
        for &(index, wave) in arrived {
            for step in graph.tensor(index).consumers.iter().copied() {
                if !self.needed[place(step.0)] {
                    continue;
                }
                let inputs = &graph.step(step).inputs;
                let waves = self.waves_to_look_at(graph, inputs, index, wave).into_iter();
                let complete = waves.filter(|wave| self.has_all(graph, inputs, *wave));
                ready.extend(complete.map(|wave| (step, wave)));
            }
        }
        for (step, wave) in ready {
            self.start(graph, step, wave, out);
        }
        let wanted = self.wanted.clone();
        let mut complete: BTreeSet<u64> = BTreeSet::new();
        for &(index, wave) in arrived.iter().filter(|(index, _)| wanted.contains(index)) {
            complete.extend(self.waves_to_look_at(graph, &wanted, index, wave));
        }
        for wave in complete {
            self.respond_if_complete(graph, &wanted, wave, out);
        }
    }

    /// The waves that a new tensor may complete: its own, or, if it has none
    /// while others of the same group do, all of theirs.
    fn waves_to_look_at(
        &self,
        graph: &EnsembleGraph,
        group: &[TensorIndex],
        index: TensorIndex,
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

    /// Where the tensor of a wave is kept: what comes from no decoupled step is
    /// the same in every wave.
    fn key(graph: &EnsembleGraph, index: TensorIndex, wave: u64) -> (TensorIndex, u64) {
        (index, if graph.tensor(index).source.is_some() { wave } else { 0 })
    }

    fn has_all(&self, graph: &EnsembleGraph, group: &[TensorIndex], wave: u64) -> bool {
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
            self.let_go(graph, input, wave, runs_again);
        }
        let call = StepCallKey(self.started);
        self.started += 1;
        self.calls.insert(call, Call { step: index, wave });
        out.push(EnsembleAction::Start { call, step: index, inputs });
    }

    fn contents(&self, graph: &EnsembleGraph, index: TensorIndex, wave: u64) -> Option<T> {
        self.values.get(&Self::key(graph, index, wave)).and_then(|value| value.contents.clone())
    }

    /// One user less; what another wave will ask for again stays.
    fn let_go(&mut self, graph: &EnsembleGraph, index: TensorIndex, wave: u64, used_again: bool) {
        if used_again && graph.tensor(index).source.is_none() {
            return;
        }
        let key = Self::key(graph, index, wave);
        let value = self.values.get_mut(&key).expect("it was there a moment ago");
        value.uses -= 1;
        if value.uses == 0 {
            self.values.remove(&key);
            if let Some(source) = graph.tensor(index).source {
                self.forget_held((source, wave));
            }
        }
    }

    fn forget_held(&mut self, wave: (StepIndex, u64)) {
        let count = self.held.get_mut(&wave).expect("its values were counted");
        *count -= 1;
        if *count == 0 {
            self.held.remove(&wave);
        }
    }

    fn forget_values(&mut self) {
        self.values.clear();
        self.held.clear();
    }

    fn respond_if_complete(
        &mut self,
        graph: &EnsembleGraph,
        wanted: &[TensorIndex],
        wave: u64,
        out: &mut Vec<EnsembleAction<T>>,
    ) {
        if !self.has_all(graph, wanted, wave) {
            return;
        }
        let outputs: Vec<_> =
            wanted.iter().map(|index| (*index, self.contents(graph, *index, wave))).collect();
        let responds_again = wanted.iter().any(|index| graph.tensor(*index).source.is_some());
        for index in wanted {
            self.let_go(graph, *index, wave, responds_again);
        }
        self.responses += 1;
        out.push(EnsembleAction::Respond { outputs });
    }

    fn fail(&mut self, failure: RunFailure, out: &mut Vec<EnsembleAction<T>>) {
        if self.life != RunLife::Running {
            return;
        }
        self.life = RunLife::Failed;
        self.forget_values();
        out.push(EnsembleAction::Fail(failure));
        out.extend(self.calls.keys().map(|call| EnsembleAction::CancelCall(*call)));
    }

    /// With no call left, the request is over.
    fn settle(&mut self, graph: &EnsembleGraph, out: &mut Vec<EnsembleAction<T>>) {
        if !self.calls.is_empty() || self.life == RunLife::Over {
            return;
        }
        let may_stay_silent = self.wanted.iter().any(|index| graph.tensor(*index).source.is_some());
        if self.responses == 0 && !may_stay_silent {
            self.fail(RunFailure::Deadlock, out);
        }
        self.life = RunLife::Over;
        self.forget_values();
        out.push(EnsembleAction::Finished);
    }
}
