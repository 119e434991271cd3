//! Several requests to one ensemble, with models that send random responses and clients that
//! cancel.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::rc::Rc;

use galatea_policy::{
    EnsembleAction, EnsembleGraph, EnsembleRun, EnsembleRunFailure, EnsembleSpec,
    EnsembleTensorIndex, StepCallKey, StepConcurrencyLimiter, StepIndex,
};

use super::naive::{Dataflow, ExpectedRequest, Value, Values, index};
use crate::check::{Check, ensure};
use crate::random::Random;

/// The number of events after which models send only required responses.
const EVENTS_MAX: usize = 120;

/// A call, identified by the index of its run and its key.
type RunCall = (usize, StepCallKey);

struct EnsembleWorld<'a> {
    spec: &'a EnsembleSpec,
    graph: EnsembleGraph,
    flow: Rc<Dataflow>,
    gates: Option<Gates>,
    runs: Vec<Run>,
    values: u64,
    events: usize,
    /// The events so far, for error messages.
    log: String,
}

struct Gates {
    limit: usize,
    real: StepConcurrencyLimiter<RunCall>,
    /// The calls waiting for each step, in order.
    waiting: Vec<VecDeque<RunCall>>,
    started: Vec<usize>,
}

struct Run {
    machine: EnsembleRun<Value>,
    expected: ExpectedRequest,
    calls: BTreeMap<StepCallKey, CallRecord>,
    state: RunState,
    /// True if the request has failed, so that only call ends may follow.
    failed: bool,
}

/// Running → Finished.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum RunState {
    Running,
    Finished,
}

#[derive(Clone, Debug)]
struct CallRecord {
    step: StepIndex,
    wave: u64,
    state: CallState,
    responses: u64,
    cancelled: bool,
    has_error: bool,
}

/// Waiting → Running. Running if a gate has started the call.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum CallState {
    Waiting,
    Running,
}

/// Runs until all requests have finished.
pub(super) fn run(spec: &EnsembleSpec, random: &mut Random) -> Check {
    let graph = EnsembleGraph::new(spec)
        .map_err(|error| format!("ensembles: {spec:?} is refused with {error:?}"))?;
    let limit = random.between_u32(0, 3);
    let gates = (limit > 0).then(|| Gates {
        limit: index(limit),
        real: StepConcurrencyLimiter::new(&graph, limit),
        waiting: vec![VecDeque::new(); spec.steps.len()],
        started: vec![0; spec.steps.len()],
    });
    let mut world = EnsembleWorld {
        spec,
        graph,
        flow: Rc::new(Dataflow::of(spec)),
        gates,
        runs: Vec::new(),
        values: 0,
        events: 0,
        log: format!("\n  limit {limit}, {spec:?}"),
    };
    let describe = |world: &EnsembleWorld<'_>, message: String| {
        format!("ensembles: {message}, after{}", world.log)
    };
    let requests = usize::try_from(random.between(1, 4)).expect("few requests");
    while world.runs.len() < requests || world.runs.iter().any(|run| run.state == RunState::Running)
    {
        world.events += 1;
        let acted = if world.runs.len() < requests && random.percent(20) {
            world.begin(random)
        } else {
            world.act(random)
        };
        if let Err(message) = acted.and_then(|()| world.check_gates()) {
            return Err(describe(&world, message));
        }
        if world.events > 40 * EVENTS_MAX {
            return Err(describe(&world, "it does not end".to_owned()));
        }
    }
    world.check_empty().map_err(|message| describe(&world, message))
}

impl EnsembleWorld<'_> {
    fn record(&mut self, what: std::fmt::Arguments<'_>) {
        write!(self.log, "\n  {what}").expect("a string takes everything");
    }

    fn value(&mut self) -> Value {
        self.values += 1;
        Rc::new(self.values)
    }

    fn begin(&mut self, random: &mut Random) -> Check {
        let number = self.runs.len();
        let mut wanted: Vec<EnsembleTensorIndex> =
            self.spec.outputs.iter().copied().filter(|_| random.percent(60)).collect();
        if wanted.is_empty() {
            wanted.clone_from(&self.spec.outputs);
        }
        let mut expected = ExpectedRequest::new(self.flow.clone(), &wanted);
        let mut inputs = Vec::new();
        for tensor in &self.spec.inputs {
            let value = (!random.percent(20)).then(|| self.value());
            expected.arrived(*tensor, 0, value.clone());
            inputs.push((*tensor, value));
        }
        self.record(format_args!("request {number} wants {wanted:?} with {inputs:?}"));
        let mut out = Vec::new();
        let machine = EnsembleRun::begin(&self.graph, inputs, wanted, &mut out);
        let (calls, state) = (BTreeMap::new(), RunState::Running);
        self.runs.push(Run { machine, expected, calls, state, failed: false });
        self.follow(number, out, None)
    }

    /// Performs a random event of a call or request.
    fn act(&mut self, random: &mut Random) -> Check {
        let running: Vec<RunCall> = self
            .runs
            .iter()
            .enumerate()
            .flat_map(|(run, one)| one.calls.iter().map(move |(key, call)| (run, *key, call.state)))
            .filter(|(_, _, state)| *state == CallState::Running)
            .map(|(run, key, _)| (run, key))
            .collect();
        let alive: Vec<usize> =
            (0..self.runs.len()).filter(|run| self.runs[*run].state == RunState::Running).collect();
        if alive.is_empty() {
            return Ok(());
        }
        let works = |(run, key): &RunCall| {
            let call = &self.runs[*run].calls[key];
            let pauses = self.spec.steps[index(call.step.0)].decoupled && !call.cancelled;
            !pauses || self.has_room(*run, call.step)
        };
        ensure!(running.iter().any(works), "requests {alive:?} wait, and no model continues");
        if random.percent(2) {
            // The request may already have finished without the client knowing.
            let last = u64::try_from(self.runs.len() - 1).expect("few requests");
            return self.cancel(usize::try_from(random.between(0, last)).expect("an index"));
        }
        let (run, key) = random.pick(&running);
        let call = self.runs[run].calls[&key].clone();
        let is_decoupled = self.spec.steps[index(call.step.0)].decoupled;
        match random.between(1, 100) {
            1..=2 if !call.has_error => self.fault(run, key),
            3..=5 => self.fail(run, key),
            // Some models don't notice the cancellation.
            _ if (call.cancelled || call.has_error) && random.percent(60) => self.finish(run, key),
            _ if !is_decoupled => match call.responses {
                0 => self.respond(run, key, random),
                _ => self.finish(run, key),
            },
            6..=60 if self.events < EVENTS_MAX => {
                if self.has_room(run, call.step) {
                    self.respond(run, key, random)
                } else {
                    Ok(())
                }
            }
            _ => self.finish(run, key),
        }
    }

    /// Returns true if a decoupled model would continue.
    fn has_room(&self, run: usize, step: StepIndex) -> bool {
        let Some(gates) = &self.gates else { return true };
        let held = self.runs[run].machine.pending_decoupled_responses();
        !gates.real.is_congested(step) && held < 2 * gates.limit
    }

    fn respond(&mut self, run: usize, key: StepCallKey, random: &mut Random) -> Check {
        let CallRecord { step, wave, .. } = self.runs[run].calls[&key];
        let described = self.spec.steps[index(step.0)].clone();
        let wave = if described.decoupled {
            let waves = self.runs[run].expected.waves.entry(index(step.0)).or_default();
            *waves += 1;
            *waves - 1
        } else {
            wave
        };
        let mut outputs = Vec::new();
        for tensor in described.outputs.iter().rev() {
            let value = (!random.percent(10)).then(|| self.value());
            if !self.runs[run].failed {
                self.runs[run].expected.arrived(*tensor, wave, value.clone());
            }
            outputs.extend(value.map(|value| (*tensor, value)));
        }
        self.record(format_args!("{run}: {key:?} of {step:?} answers {outputs:?}, wave {wave}"));
        let mut out = Vec::new();
        let one = &mut self.runs[run];
        one.calls.get_mut(&key).expect("it runs").responses += 1;
        one.machine.call_responded(&self.graph, key, outputs, &mut out);
        self.follow(run, out, None)
    }

    fn finish(&mut self, run: usize, key: StepCallKey) -> Check {
        self.record(format_args!("{run}: {key:?} is finished"));
        let mut out = Vec::new();
        let call = self.runs[run].calls.remove(&key).expect("it runs");
        self.runs[run].machine.call_finished(&self.graph, key, &mut out);
        self.follow(run, out, None)?;
        self.leave(call.step)
    }

    fn fail(&mut self, run: usize, key: StepCallKey) -> Check {
        self.record(format_args!("{run}: {key:?} fails"));
        let mut out = Vec::new();
        let call = self.runs[run].calls.remove(&key).expect("it runs");
        self.runs[run].machine.call_failed(&self.graph, key, &mut out);
        self.follow(run, out, Some(EnsembleRunFailure::Step(key)))?;
        self.leave(call.step)
    }

    fn fault(&mut self, run: usize, key: StepCallKey) -> Check {
        self.record(format_args!("{run}: {key:?} answers with an error"));
        let mut out = Vec::new();
        let one = &mut self.runs[run];
        one.calls.get_mut(&key).expect("it runs").has_error = true;
        one.machine.call_responded_with_error(&self.graph, key, &mut out);
        self.follow(run, out, Some(EnsembleRunFailure::Step(key)))
    }

    fn cancel(&mut self, run: usize) -> Check {
        self.record(format_args!("{run}: its client cancels"));
        let mut out = Vec::new();
        self.runs[run].machine.cancel(&self.graph, &mut out);
        self.follow(run, out, Some(EnsembleRunFailure::Cancelled))
    }

    /// Performs the run's actions and compares them with the expected ones.
    fn follow(
        &mut self,
        run: usize,
        out: Vec<EnsembleAction<Value>>,
        failure: Option<EnsembleRunFailure>,
    ) -> Check {
        let mut queue: VecDeque<_> = out.into();
        let mut due = ExpectedActions::of(&mut self.runs[run], failure);
        while let Some(action) = queue.pop_front() {
            self.record(format_args!("    {run}: {action:?}"));
            ensure!(self.runs[run].state == RunState::Running, "{run}: an action follows the end");
            match action {
                EnsembleAction::Start { call, step, inputs } => {
                    let wave = due.start(step, &plain(&inputs))?;
                    drop(inputs);
                    self.start(run, call, step, wave)?;
                }
                EnsembleAction::CancelCall(call) => {
                    let was_due = due.cancels.remove(&call);
                    ensure!(was_due, "{run}: {call:?} is cancelled, and should not be");
                    let mut more = Vec::new();
                    self.cancel_call(run, call, &mut more)?;
                    queue.extend(more);
                }
                EnsembleAction::Respond { outputs } => {
                    let values: Vec<_> = outputs.iter().map(|(_, value)| value.clone()).collect();
                    due.respond(&plain(&values))?;
                }
                EnsembleAction::Fail(failure) => {
                    let one = &mut self.runs[run];
                    let expected = due.failure.take().or_else(|| deadlock(one));
                    ensure!(expected == Some(failure), "{run}: {failure:?}, not {expected:?}");
                    one.failed = true;
                }
                EnsembleAction::Finished => {
                    ensure!(self.runs[run].calls.is_empty(), "{run}: over, and calls are left");
                    self.runs[run].state = RunState::Finished;
                }
            }
        }
        due.check_done(run)?;
        let one = &self.runs[run];
        let is_finished = one.state == RunState::Finished;
        ensure!(is_finished == one.calls.is_empty(), "{run}: nothing is left, and it is not over");
        let is_silent = !one.failed && !one.expected.has_responded();
        let may_be = !is_finished || one.expected.may_have_no_response();
        ensure!(!is_silent || may_be, "{run}: it ends without a response");
        one.check_values(run)?;
        if !one.failed && !is_finished {
            let held = (one.machine.pending_decoupled_responses(), one.expected.pending_waves());
            ensure!(held.0 == held.1, "{run}: {} waves are held, not {}", held.0, held.1);
        }
        let (calls, known) = (one.machine.active_call_count(), one.calls.len());
        ensure!(calls == known, "{run}: {calls} calls are known, {known} are under way");
        Ok(())
    }

    fn start(&mut self, run: usize, key: StepCallKey, step: StepIndex, wave: u64) -> Check {
        let state = if self.gates.is_some() { CallState::Waiting } else { CallState::Running };
        let call =
            CallRecord { step, wave, state, responses: 0, cancelled: false, has_error: false };
        let previous = self.runs[run].calls.insert(key, call);
        ensure!(previous.is_none(), "{run}: {key:?} is the name of two calls");
        ensure!(self.runs[run].machine.step_of(key) == step, "{run}: {key:?} is of another step");
        let mut started = Vec::new();
        if let Some(gates) = &mut self.gates {
            gates.waiting[index(step.0)].push_back((run, key));
            gates.real.enter(step, (run, key), &mut started);
        }
        self.admit(started)
    }

    fn leave(&mut self, step: StepIndex) -> Check {
        let mut started = Vec::new();
        if let Some(gates) = &mut self.gates {
            gates.started[index(step.0)] -= 1;
            gates.real.leave(step, &mut started);
        }
        self.admit(started)
    }

    fn cancel_call(
        &mut self,
        run: usize,
        key: StepCallKey,
        out: &mut Vec<EnsembleAction<Value>>,
    ) -> Check {
        let call = self.runs[run].calls.get_mut(&key).ok_or("a call that is over is cancelled")?;
        call.cancelled = true;
        if call.state == CallState::Running {
            return Ok(());
        }
        let step = call.step;
        self.runs[run].calls.remove(&key);
        let (mut withdrawn, mut started) = (Vec::new(), Vec::new());
        if let Some(gates) = &mut self.gates {
            gates.waiting[index(step.0)].retain(|one| *one != (run, key));
            let unwanted = |one: &RunCall| *one == (run, key);
            gates.real.remove_waiting(step, unwanted, &mut withdrawn, &mut started);
        }
        ensure!(withdrawn == [(run, key)], "{run}: {key:?} is withdrawn, {withdrawn:?} went");
        self.runs[run].machine.call_finished(&self.graph, key, out);
        self.admit(started)
    }

    fn admit(&mut self, started: Vec<RunCall>) -> Check {
        for (run, key) in started {
            self.record(format_args!("    {run}: {key:?} may start"));
            let step = self.runs[run].machine.step_of(key);
            let gates = self.gates.as_ref().ok_or("there are no gates")?;
            let must_wait = self.is_congested(gates, index(step.0));
            ensure!(!must_wait, "{run}: {key:?} starts, and calls behind {step:?} pile up");
            let gates = self.gates.as_mut().ok_or("there are no gates")?;
            let first = gates.waiting[index(step.0)].pop_front();
            ensure!(first == Some((run, key)), "{run}: {key:?} starts before {first:?}");
            gates.started[index(step.0)] += 1;
            let call = self.runs[run].calls.get_mut(&key).ok_or("a cancelled call starts")?;
            call.state = CallState::Running;
        }
        Ok(())
    }

    /// Checks that every call that may start has started.
    fn check_gates(&self) -> Check {
        let Some(gates) = &self.gates else { return Ok(()) };
        for (number, waiting) in gates.waiting.iter().enumerate() {
            let step = StepIndex(u32::try_from(number).expect("few steps"));
            let counted = (gates.real.waiting_count(step), gates.real.started_count(step));
            let known = (waiting.len(), gates.started[number]);
            ensure!(
                counted == known,
                "{step:?} has {counted:?} waiting and started, not {known:?}"
            );
            let congested = self.is_congested(gates, number);
            ensure!(gates.real.is_congested(step) == congested, "{step:?} is congested: wrong");
            ensure!(known.1 <= gates.limit, "{step:?} has {} calls started", known.1);
            let may_start = known.0 > 0 && known.1 < gates.limit && !congested;
            ensure!(!may_start, "a call waits before {step:?}, which has room");
            let most = gates.limit
                + self.runs.len() * (2 * gates.limit + 1)
                + self.spec.steps.len() * gates.limit;
            // The number of calls to the first steps is unbounded here, because clients send any
            // number of requests.
            let is_first =
                self.spec.steps[number].inputs.iter().all(|input| self.spec.inputs.contains(input));
            ensure!(is_first || known.0 <= most, "{} wait before {step:?}", known.0);
        }
        Ok(())
    }

    fn is_congested(&self, gates: &Gates, number: usize) -> bool {
        let outputs = &self.spec.steps[number].outputs;
        let takes =
            |step: usize| self.spec.steps[step].inputs.iter().any(|input| outputs.contains(input));
        (0..self.spec.steps.len())
            .any(|step| takes(step) && gates.waiting[step].len() >= gates.limit)
    }

    fn check_empty(&self) -> Check {
        let Some(gates) = &self.gates else { return Ok(()) };
        let left: usize = gates.started.iter().sum();
        ensure!(left == 0, "it is quiet, and {left} calls are started");
        Ok(())
    }
}

fn plain(values: &[Option<Value>]) -> Values {
    values.iter().map(|value| value.as_ref().map(|value| **value)).collect()
}

/// Returns the failure of a request that has no response and can't get one.
fn deadlock(run: &Run) -> Option<EnsembleRunFailure> {
    let is_stuck = !run.failed
        && run.calls.is_empty()
        && !run.expected.has_responded()
        && !run.expected.may_have_no_response();
    is_stuck.then_some(EnsembleRunFailure::Deadlock)
}

impl Run {
    /// Checks that the run contains exactly the values that are still needed.
    fn check_values(&self, run: usize) -> Check {
        let ended = self.failed || self.state == RunState::Finished;
        for (value, is_needed) in self.expected.values() {
            let holders = Rc::strong_count(value) - 1;
            let expected = usize::from(is_needed && !ended);
            ensure!(
                holders == expected,
                "{run}: value {value} has {holders} holders, not {expected}"
            );
        }
        Ok(())
    }
}

/// The actions expected from one step.
struct ExpectedActions {
    starts: BTreeMap<(StepIndex, u64), Values>,
    responses: BTreeMap<u64, Values>,
    failure: Option<EnsembleRunFailure>,
    cancels: BTreeSet<StepCallKey>,
}

impl ExpectedActions {
    fn of(run: &mut Run, failure: Option<EnsembleRunFailure>) -> Self {
        let mut due = ExpectedActions {
            starts: BTreeMap::new(),
            responses: BTreeMap::new(),
            failure: None,
            cancels: BTreeSet::new(),
        };
        if run.failed || run.state == RunState::Finished {
            return due;
        }
        if failure.is_some() {
            due.failure = failure;
            due.cancels = run.calls.keys().copied().collect();
            return due;
        }
        due.starts = run.expected.starts();
        due.responses = run.expected.responses();
        due
    }

    fn start(&mut self, step: StepIndex, inputs: &Values) -> Result<u64, String> {
        let found = self.starts.iter().find(|((one, _), values)| *one == step && *values == inputs);
        let key = found.map(|(key, _)| *key);
        let key = key.ok_or_else(|| format!("{step:?} starts with {inputs:?}, and should not"))?;
        self.starts.remove(&key);
        Ok(key.1)
    }

    fn respond(&mut self, outputs: &Values) -> Check {
        let wave = self.responses.iter().find(|(_, values)| *values == outputs);
        let wave = wave.map(|(wave, _)| *wave);
        let wave = wave.ok_or_else(|| format!("it answers {outputs:?}, and should not"))?;
        self.responses.remove(&wave);
        Ok(())
    }

    fn check_done(&self, run: usize) -> Check {
        let ExpectedActions { starts, responses, failure, cancels, .. } = self;
        ensure!(starts.is_empty(), "{run}: {starts:?} should start");
        ensure!(responses.is_empty(), "{run}: {responses:?} should be answered");
        ensure!(failure.is_none(), "{run}: it should fail with {failure:?}");
        ensure!(cancels.is_empty(), "{run}: {cancels:?} should be cancelled");
        Ok(())
    }
}
