//! A sequence model whose backend runs a test's script on whole batches.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use galatea_backend::{
    Backend, BeginResult, ExecutionPolicy, ExecutionPredictability, ExecutionTerminator, Instance,
    LogLevel, Model, ModelFiles, ModelHost, Placement, RefusedBatch, ResumableInstance,
};
use galatea_config::ModelSpec;
use galatea_infer::{
    CorrelationId, ExecutionReadings, ExecutionTimes, InferenceRequest, InferenceResponse,
    InputTensor, OutputTensor, PendingRequest, SequenceFlags, Status,
};
use galatea_stdx::testing::eventually;
use galatea_tensor::{Buffer, DataType, Shape};

use super::ReplyReceiver;
use crate::LogSink;
use crate::testing::{LONG, TestServer};

pub(crate) const BLOCKING: ExecutionPolicy = ExecutionPolicy::Blocking;
/// A model with all controls and one state, the sum of its inputs. `batching` is inserted into
/// `sequence_batching`, and `more` next to it.
pub(crate) fn config(max_batch_size: u32, batching: &str, more: &str) -> String {
    let flag = |name: &str| {
        format!(
            "control_input {{ name: \"{name}\" control {{ kind: CONTROL_SEQUENCE_{name} \
             int32_false_true: [ 0, 1 ] }} }}"
        )
    };
    format!(
        "name: \"seq\" backend: \"fake\" max_batch_size: {max_batch_size} {more}
         input {{ name: \"IN\" data_type: TYPE_INT32 dims: [ 1 ] }}
         output {{ name: \"OUT\" data_type: TYPE_INT32 dims: [ 1 ] }}
         sequence_batching {{ {batching} {} {} {}
           control_input {{ name: \"CORRID\" control {{ kind: CONTROL_SEQUENCE_CORRID
             data_type: TYPE_UINT64 }} }}
           state {{ input_name: \"SUM_IN\" output_name: \"SUM_OUT\" data_type: TYPE_INT32
             dims: [ 1 ] initial_state {{ name: \"zero\" data_type: TYPE_INT32 dims: [ 1 ]
             zero_data: true }} }} }}",
        flag("START"),
        flag("READY"),
        flag("END"),
    )
}

/// Direct batching, with an idle timeout longer than any test.
pub(crate) const DIRECT: &str = "direct { } max_sequence_idle_microseconds: 600000000";
pub(crate) const OLDEST: &str =
    "oldest { max_candidate_sequences: 4 } max_sequence_idle_microseconds: 600000000";
pub(crate) const ONE_INSTANCE: &str = "instance_group { kind: KIND_CPU count: 1 }";
pub(crate) const TWO_INSTANCES: &str = "instance_group { kind: KIND_CPU count: 2 }";

type Script = dyn Fn(Vec<PendingRequest>) -> Result<(), RefusedBatch> + Send + Sync;

/// A backend that runs a script on each batch.
#[derive(Clone)]
pub(crate) struct ScriptedBackend {
    policy: ExecutionPolicy,
    guarantee: ExecutionPredictability,
    terminator: Option<Arc<dyn ExecutionTerminator>>,
    /// Returns true for requests whose executions outlast their first call; `None` if no execution
    /// does.
    leaves: Option<fn(&PendingRequest) -> bool>,
    left: Arc<Mutex<Vec<PendingRequest>>>,
    took: Duration,
    script: Arc<Script>,
}

impl ScriptedBackend {
    pub(crate) fn new(
        policy: ExecutionPolicy,
        script: impl Fn(Vec<PendingRequest>) -> Result<(), RefusedBatch> + Send + Sync + 'static,
    ) -> Self {
        let guarantee = ExecutionPredictability::Unspecified;
        let (left, script) = (Arc::default(), Arc::new(script));
        let took = Duration::ZERO;
        Self { policy, guarantee, terminator: None, leaves: None, left, took, script }
    }

    pub(crate) fn with_guarantee(self, guarantee: ExecutionPredictability) -> Self {
        Self { guarantee, ..self }
    }

    pub(crate) fn with_terminator(self, terminator: Arc<dyn ExecutionTerminator>) -> Self {
        Self { terminator: Some(terminator), ..self }
    }

    /// Makes executions resumable. Executions of requests for which `leaves` returns true outlast
    /// their first call.
    pub(crate) fn leaving(self, leaves: fn(&PendingRequest) -> bool) -> Self {
        Self { leaves: Some(leaves), ..self }
    }

    /// A backend that adds each request's input to its sequence's sum.
    pub(crate) fn summing(policy: ExecutionPolicy) -> Self {
        Self::new(policy, |batch| {
            batch.into_iter().for_each(add);
            Ok(())
        })
    }
}

impl Backend for ScriptedBackend {
    fn execution_policy(&self, _spec: &ModelSpec) -> ExecutionPolicy {
        self.policy
    }

    fn load(
        &self,
        _spec: Arc<ModelSpec>,
        _files: &dyn ModelFiles,
        _host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        Ok(Box::new(self.clone()))
    }
}

impl Model for ScriptedBackend {
    fn create_instance(&self, _at: &Placement) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(self.clone()))
    }
}

impl Instance for ScriptedBackend {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        let start = Instant::now();
        let executed = (self.script)(requests);
        self.took = start.elapsed();
        executed
    }

    fn guarantee(&self) -> ExecutionPredictability {
        self.guarantee
    }

    fn terminator(&self) -> Option<Arc<dyn ExecutionTerminator>> {
        self.terminator.clone()
    }

    fn resumable(&mut self) -> Option<&mut dyn ResumableInstance> {
        self.leaves.is_some().then_some(self)
    }
}

impl ResumableInstance for ScriptedBackend {
    fn begin(
        &mut self,
        requests: Vec<PendingRequest>,
        _patience: Duration,
    ) -> Result<BeginResult, RefusedBatch> {
        if self.leaves.is_some_and(|leaves| requests.iter().any(leaves)) {
            *self.left.lock().unwrap() = requests;
            return Ok(BeginResult::InProgress);
        }
        self.execute(requests).map(|()| BeginResult::Ended)
    }

    fn finish(&mut self) -> Result<(), RefusedBatch> {
        let left = std::mem::take(&mut *self.left.lock().unwrap());
        self.execute(left)
    }

    fn took(&self) -> Duration {
        self.took
    }
}

/// The first INT32 element of an input.
pub(crate) fn int(request: &PendingRequest, name: &str) -> i32 {
    let input = request.request().input(name).unwrap_or_else(|| panic!("there is no {name}"));
    i32::from_le_bytes(*input.data.host_bytes().unwrap().first_chunk().unwrap())
}

/// Adds a request's input to its sequence's sum and replies with the sum.
pub(crate) fn add(mut request: PendingRequest) {
    let sum = int(&request, "SUM_IN") + int(&request, "IN");
    let shape = request.request().input("SUM_IN").unwrap().shape.clone();
    request.update_state("SUM_OUT", shape, bytes(sum)).unwrap();
    reply_with(request, sum);
}

pub(crate) fn reply_with(request: PendingRequest, value: i32) {
    let response = response(&request, value);
    request.complete(Ok(response), &zero_times());
}

pub(crate) fn response(request: &PendingRequest, value: i32) -> InferenceResponse {
    InferenceResponse {
        model_name: Arc::from("seq"),
        model_version: 1,
        id: request.request().id.clone(),
        parameters: Default::default(),
        outputs: vec![OutputTensor {
            name: Arc::from("OUT"),
            datatype: DataType::Int32,
            shape: Shape::new(&[1, 1]).unwrap(),
            data: bytes(value),
        }],
    }
}

pub(crate) fn zero_times() -> ExecutionTimes {
    let now = Instant::now();
    ExecutionTimes::from(ExecutionReadings {
        start: now,
        compute_start: now,
        compute_end: now,
        end: now,
    })
}

pub(crate) fn bytes(value: i32) -> Buffer {
    Buffer::from_vec(value.to_le_bytes().to_vec())
}

/// A row as the model sees it: `padding` or `START READY END CORRID IN SUM_IN`.
pub(crate) fn row(request: &PendingRequest) -> String {
    let corrid = request.request().input("CORRID").unwrap().data.host_bytes().unwrap().clone();
    let corrid = u64::from_le_bytes(*corrid.first_chunk().unwrap());
    let [start, ready, end] = ["START", "READY", "END"].map(|name| int(request, name));
    if request.is_padding() {
        assert_eq!((start, ready, end, corrid), (0, 0, 0, 0));
        let sum = int(request, "SUM_IN");
        return if sum == 0 { String::from("padding") } else { format!("padding {sum}") };
    }
    let (value, sum) = (int(request, "IN"), int(request, "SUM_IN"));
    format!("{start} {ready} {end} {corrid} {value} {sum}")
}

/// A request with this value to the sequence with this number: in `flags`, `+` starts the sequence
/// and `.` ends it.
pub(crate) fn step(id: u64, flags: &str, value: i32) -> InferenceRequest {
    let correlation_id = if id == 0 { CorrelationId::None } else { CorrelationId::Number(id) };
    InferenceRequest {
        model_name: String::from("seq"),
        inputs: vec![InputTensor {
            name: String::from("IN"),
            datatype: DataType::Int32,
            shape: Shape::new(&[1, 1]).unwrap(),
            data: bytes(value),
        }],
        correlation_id,
        sequence_flags: SequenceFlags { start: flags.contains('+'), end: flags.contains('.') },
        ..InferenceRequest::default()
    }
}

/// The value in a response.
pub(crate) fn value(inbox: &ReplyReceiver) -> i32 {
    let response = inbox.recv_timeout(LONG).unwrap().unwrap();
    i32::from_le_bytes(*response.outputs[0].data.host_bytes().unwrap().first_chunk().unwrap())
}

/// Returns the error that a request received.
pub(crate) fn error(inbox: &ReplyReceiver) -> Status {
    inbox.recv_timeout(LONG).unwrap().unwrap_err()
}

/// Shows each batch to a test before it is executed, and lets the test decide when to execute it.
pub(crate) struct Gate {
    entered: mpsc::Receiver<Vec<String>>,
    go: mpsc::Sender<()>,
}

impl Gate {
    /// A gate, and the backend behind it, which runs `then` on each batch.
    pub(crate) fn with_backend(
        then: impl Fn(PendingRequest) + Send + Sync + 'static,
    ) -> (Self, ScriptedBackend) {
        let (enter, entered) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        let gone = Mutex::new(gone);
        let backend = ScriptedBackend::new(ExecutionPolicy::Blocking, move |batch| {
            let _ = enter.send(batch.iter().map(row).collect());
            let _ = gone.lock().unwrap().recv_timeout(LONG);
            batch.into_iter().for_each(&then);
            Ok(())
        });
        (Self { entered, go }, backend)
    }

    /// The rows of the batch waiting at the gate.
    pub(crate) fn batch(&self) -> Vec<String> {
        self.entered.recv_timeout(LONG).unwrap()
    }

    /// Lets the batch pass.
    pub(crate) fn open(&self) {
        self.go.send(()).unwrap();
    }

    /// Compares the rows of the batch, and lets it pass.
    #[track_caller]
    pub(crate) fn check_and_open(&self, expected: &[&str]) {
        assert_eq!(self.batch(), expected);
        self.open();
    }
}

/// A log of warnings and errors that the test can read.
pub(crate) fn log() -> (LogSink, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let written = lines.clone();
    let log = LogSink::new(move |level, _, line| {
        if matches!(level, LogLevel::Warning | LogLevel::Error) {
            written.lock().unwrap().push(line.to_string());
        }
    });
    (log, lines)
}

/// A log that the test can read up to this verbosity level. It omits the lines about models,
/// because a line about the load may appear between those of the first requests.
pub(crate) fn verbose_log(shown: u32) -> (LogSink, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let written = lines.clone();
    let log = LogSink::new(move |level, _, line| {
        if level != LogLevel::Info {
            written.lock().unwrap().push(line.to_string());
        }
    });
    let shows = move |level| !matches!(level, LogLevel::Verbose(level) if level > shown);
    (log.with_level_filter(shows), lines)
}

/// Waits until the server has no requests and no sequences.
#[track_caller]
pub(crate) fn wait_until_empty(server: &TestServer) {
    wait_until(server, "nothing is kept", |dispatcher| dispatcher.counts() == (0, 0, 0));
}

/// Waits for a state that is reached without further events.
#[track_caller]
pub(crate) fn wait_until(
    server: &TestServer,
    what: &str,
    is_so: impl Fn(&crate::dispatcher::Dispatcher) -> bool,
) {
    let model = server.model("seq");
    assert!(
        eventually(|| is_so(&model.dispatcher)),
        "{what} does not come: {}",
        model.report_json("scheduler", None).unwrap()
    );
}
