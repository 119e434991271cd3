//! Whole models, from configuration to answers, with a stand-in for the
//! scheduler: what is given back is executed again with whatever else waits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use galatea_backend::{
    Backend, Device, ExecutionPolicy, Host, Instance, LogLevel, Model, ModelFiles, Placement,
};
use galatea_config::{ConfigDraft, ModelSpec, Support};
use galatea_infer::{
    CancelToken, CongestionPoint, CorrelationId, ExecutionSummary, ExecutionTimes, FailureReason,
    InferenceRequest, InputTensor, PendingRequest, Reply, RequestObserver, RequestTimes,
    ResponseSender, ResumeHook, SequenceContext, SequenceFlags, SequenceOwner, StateTensor, Status,
    Throttle,
};
use galatea_tensor::{Buffer, DataType, Shape};

use crate::TokenCounterBackend;
use crate::instance::CountingInstance;
use crate::interface::Interface;
use crate::steps::Steps;

struct NoFiles;

impl ModelFiles for NoFiles {
    fn model_path(&self) -> &Path {
        Path::new("m")
    }

    fn version(&self) -> i64 {
        3
    }

    fn version_path(&self) -> &Path {
        Path::new("m/3")
    }

    fn resolve(&self, _: &str) -> Result<PathBuf, Status> {
        Err(Status::not_found("no files"))
    }
}

/// What the server writes down.
#[derive(Debug, Default)]
struct Books {
    batches: Mutex<Vec<u64>>,
    /// One word for each request that ended.
    ends: Mutex<Vec<&'static str>>,
}

impl Host for Books {
    fn batch_executed(&self, batch_size: u64, _: &ExecutionTimes) {
        self.batches.lock().unwrap().push(batch_size);
    }

    fn model_version(&self) -> i64 {
        3
    }

    fn log(&self, _: LogLevel, _: &str) {}
}

impl RequestObserver for Books {
    fn succeeded(&self, _: u32, _: &RequestTimes, _: &ExecutionSummary) {
        self.ends.lock().unwrap().push("success");
    }

    fn failed(&self, _: &RequestTimes, reason: FailureReason) {
        self.ends.lock().unwrap().push(reason.label());
    }
}

/// What backends give back.
#[derive(Debug, Default)]
struct Returned {
    again: Mutex<Vec<(u64, PendingRequest, Vec<StateTensor>)>>,
    done: Mutex<Vec<u64>>,
}

impl SequenceOwner for Returned {
    fn done(&self, key: u64, _: Vec<StateTensor>) {
        self.done.lock().unwrap().push(key);
    }

    fn again(&self, key: u64, request: PendingRequest, states: Vec<StateTensor>) {
        self.again.lock().unwrap().push((key, request, states));
    }
}

const DECOUPLED: &str = "model_transaction_policy { decoupled: true }";
const COUNT: &str = "input { name: 'COUNT' data_type: TYPE_INT32 dims: [ 1 ] }";
const TOKEN: &str = "output { name: 'TOKEN' data_type: TYPE_INT32 dims: [ -1 ] }";
const LIVE: &str = "output { name: 'LIVE' data_type: TYPE_INT32 dims: [ 1 ] }";
const HAD: &str = "output { name: 'HAD' data_type: TYPE_INT32 dims: [ 1 ] }";
const STATE: &str = "state { input_name: 'HAD_IN' output_name: 'HAD' data_type: TYPE_INT32
     dims: [ 1 ] initial_state { name: 'zero' data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } }";

fn batching(more: &str) -> String {
    format!("sequence_batching {{ iterative_sequence: true {more} }}")
}

fn config(parts: &[&str]) -> String {
    format!("name: 'm' backend: 'token_counter' {}", parts.join("\n"))
}

fn spec(text: &str) -> ModelSpec {
    let draft = ConfigDraft::from_pbtxt("config.pbtxt", text).unwrap();
    draft.finish(&Support::default()).unwrap_or_else(|errors| panic!("{errors}"))
}

fn int32(name: &str, dims: &[i64], value: i32) -> InputTensor {
    InputTensor {
        name: name.to_owned(),
        datatype: DataType::Int32,
        shape: Shape::new(dims).unwrap(),
        data: Buffer::from_vec(value.to_le_bytes().to_vec()),
    }
}

/// A correlation ID that every client gives: it must not matter.
const SAME_ID: CorrelationId = CorrelationId::Number(7);

/// One instance of a model and the requests that go round.
struct World {
    instance: CountingInstance,
    books: Arc<Books>,
    returned: Arc<Returned>,
    replies: Arc<Mutex<Vec<String>>>,
    waiting: Vec<PendingRequest>,
    next_key: u64,
    dims: Vec<i64>,
    has_state: bool,
    /// What the responses to the next request may have to wait for.
    throttle: Throttle,
}

impl World {
    fn new(parts: &[&str]) -> Self {
        let spec = spec(&config(parts));
        let interface = Interface::of(&spec).unwrap();
        let books = Arc::<Books>::default();
        let instance = CountingInstance {
            steps: Steps::new(interface.state.clone()),
            interface: Arc::new(interface),
            host: books.clone(),
        };
        Self {
            instance,
            books,
            returned: Arc::default(),
            replies: Arc::default(),
            waiting: Vec::new(),
            next_key: 1,
            dims: if spec.max_batch_size > 0 { vec![1, 1] } else { vec![1] },
            has_state: !spec.states().is_empty(),
            throttle: Throttle::default(),
        }
    }

    /// A request joins those that wait for the next execution.
    fn join(&mut self, id: &str, count: i32) -> CancelToken {
        let key = self.next_key;
        self.next_key += 1;
        let cancel = CancelToken::new();
        let request = InferenceRequest {
            id: id.to_owned(),
            model_name: String::from("m"),
            inputs: vec![int32("COUNT", &self.dims, count)],
            correlation_id: SAME_ID,
            cancel: cancel.clone(),
            throttle: self.throttle.clone(),
            ..InferenceRequest::default()
        };
        let (replies, name) = (self.replies.clone(), id.to_owned());
        let sender = ResponseSender::new(Box::new(move |reply: Reply| {
            replies.lock().unwrap().push(format!("{name}: {}", describe(&reply)));
        }));
        let times = RequestTimes { arrival: Instant::now(), queued: Instant::now() };
        let request = PendingRequest::new(request, sender, 1, times, self.books.clone());
        let states = if self.has_state { vec![self.state()] } else { Vec::new() };
        self.queue(key, request, states, true);
        cancel
    }

    /// The state of a sequence that begins holds nonsense: nobody may read it.
    fn state(&self) -> StateTensor {
        let InputTensor { datatype, shape, data, .. } = int32("HAD_IN", &self.dims, 77);
        let (input_name, output_name) = (Arc::from("HAD_IN"), Arc::from("HAD"));
        StateTensor { input_name, output_name, datatype, shape, data }
    }

    fn queue(
        &mut self,
        key: u64,
        mut request: PendingRequest,
        states: Vec<StateTensor>,
        start: bool,
    ) {
        request.inputs_mut().truncate(1);
        for state in &states {
            request.inputs_mut().push(InputTensor {
                name: state.input_name.to_string(),
                datatype: state.datatype,
                shape: state.shape.clone(),
                data: state.data.clone(),
            });
        }
        request.begin_step(Box::new(SequenceContext {
            correlation_id: SAME_ID,
            flags: SequenceFlags { start, end: false },
            states,
            owner: self.returned.clone(),
            key,
            iterative: true,
        }));
        self.waiting.push(request);
    }

    /// Executes everything that waits, and returns the replies.
    fn turn(&mut self) -> Vec<String> {
        self.instance.execute(std::mem::take(&mut self.waiting)).unwrap();
        let again = std::mem::take(&mut *self.returned.again.lock().unwrap());
        for (key, request, states) in again {
            self.queue(key, request, states, false);
        }
        std::mem::take(&mut *self.replies.lock().unwrap())
    }

    fn done(&self) -> Vec<u64> {
        self.returned.done.lock().unwrap().clone()
    }

    fn ends(&self) -> Vec<&'static str> {
        self.books.ends.lock().unwrap().clone()
    }
}

fn describe(reply: &Reply) -> String {
    let end = if reply.is_final() { " end" } else { "" };
    match reply {
        Reply::Finished => String::from("nothing end"),
        Reply::Response { outcome: Err(status), .. } => format!("{}{end}", status.message()),
        Reply::Response { outcome: Ok(response), .. } => {
            assert_eq!((&*response.model_name, response.model_version), ("m", 3));
            let outputs = response.outputs.iter().map(|output| {
                let bytes = output.data.host().unwrap();
                let elements: Vec<i32> = bytes
                    .chunks(4)
                    .map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap()))
                    .collect();
                format!("{} {:?} {elements:?}", output.name, output.shape.dims())
            });
            format!("{}{end}", outputs.collect::<Vec<_>>().join(", "))
        }
    }
}

/// The three ways in which a model can keep count.
fn ways() -> [String; 3] {
    let unspecified = "state { input_name: 'HAD_IN' output_name: 'HAD' data_type: TYPE_INT32
                       dims: [ 1 ] }";
    [batching(""), batching(STATE), batching(&format!("{unspecified} direct {{ }}"))]
}

#[test]
fn requests_join_and_leave_at_every_execution() {
    for way in ways() {
        let mut world = World::new(&["max_batch_size: 4", &way, COUNT, TOKEN, LIVE, DECOUPLED]);
        let token = |token: i32, live: i32| format!("TOKEN [1, 1] [{token}], LIVE [1, 1] [{live}]");
        world.join("a", 3);
        assert_eq!(world.turn(), [format!("a: {}", token(0, 1))]);
        world.join("b", 1);
        assert_eq!(
            world.turn(),
            [format!("a: {}", token(1, 2)), format!("b: {} end", token(0, 2))]
        );
        assert_eq!(world.done(), [2]);
        world.join("c", 2);
        assert_eq!(
            world.turn(),
            [format!("a: {} end", token(2, 2)), format!("c: {}", token(0, 2))]
        );
        assert_eq!(world.turn(), [format!("c: {} end", token(1, 1))]);
        assert_eq!(world.done(), [2, 1, 3]);
        assert_eq!(*world.books.batches.lock().unwrap(), [1, 2, 2, 1]);
        assert_eq!(world.ends(), ["success"; 3]);
        assert_eq!(world.instance.steps.remembered(), 0);
    }
}

/// Full until the test says otherwise.
#[derive(Default)]
struct Crowd(Mutex<(bool, Vec<ResumeHook>)>);

impl CongestionPoint for Crowd {
    fn is_full(&self) -> bool {
        self.0.lock().unwrap().0
    }

    fn when_room(&self, hook: ResumeHook) -> Option<ResumeHook> {
        self.0.lock().unwrap().1.push(hook);
        None
    }
}

#[test]
fn a_request_whose_tokens_pile_up_pauses_and_others_go_on() {
    for way in ways() {
        let mut world = World::new(&["max_batch_size: 4", &way, COUNT, TOKEN, DECOUPLED]);
        let crowd = Arc::<Crowd>::default();
        crowd.0.lock().unwrap().0 = true;
        world.throttle = Throttle::default().with(crowd.clone());
        world.join("a", 2);
        world.throttle = Throttle::default();
        world.join("b", 3);
        assert_eq!(world.turn(), ["a: TOKEN [1, 1] [0]", "b: TOKEN [1, 1] [0]"]);
        assert_eq!(world.turn(), ["b: TOKEN [1, 1] [1]"]);
        let hooks = {
            let mut crowd = crowd.0.lock().unwrap();
            crowd.0 = false;
            std::mem::take(&mut crowd.1)
        };
        hooks.into_iter().for_each(|hook| hook());
        // What comes back meanwhile is queued at the next turn.
        let mut left = world.turn();
        left.extend(world.turn());
        left.sort();
        assert_eq!(left, ["a: TOKEN [1, 1] [1] end", "b: TOKEN [1, 1] [2] end"]);
    }
}

#[test]
fn a_model_that_is_not_decoupled_answers_once() {
    for way in ways() {
        let mut world = World::new(&["max_batch_size: 4", &way, COUNT, TOKEN, LIVE]);
        world.join("a", 3);
        world.join("b", 1);
        world.join("c", 0);
        assert_eq!(
            world.turn(),
            ["b: TOKEN [1, 1] [0], LIVE [1, 1] [3] end", "c: TOKEN [1, 0] [], LIVE [1, 1] [3] end"]
        );
        assert_eq!(world.turn(), <[String; 0]>::default());
        assert_eq!(world.turn(), ["a: TOKEN [1, 3] [0, 1, 2], LIVE [1, 1] [1] end"]);
        assert_eq!(world.ends(), ["success"; 3]);
    }
}

#[test]
fn no_token_is_an_empty_end_of_a_decoupled_request() {
    let mut world = World::new(&[&batching(""), COUNT, TOKEN, DECOUPLED]);
    world.join("a", 0);
    assert_eq!(world.turn(), ["a: nothing end"]);
    assert_eq!((world.done(), world.ends()), (vec![1], vec!["success"]));
}

#[test]
fn without_batches_there_is_no_batch_dimension() {
    let mut world = World::new(&[&batching(STATE), COUNT, TOKEN, LIVE, HAD, DECOUPLED]);
    world.join("a", 2);
    assert_eq!(world.turn(), ["a: TOKEN [1] [0], LIVE [1] [1], HAD [1] [1]"]);
    assert_eq!(world.turn(), ["a: TOKEN [1] [1], LIVE [1] [1], HAD [1] [2] end"]);
}

#[test]
fn counts_out_of_range_are_refused() {
    for count in [-1, i32::MIN, (1 << 20) + 1, i32::MAX] {
        let mut world = World::new(&[&batching(""), COUNT, TOKEN, DECOUPLED]);
        world.join("a", count);
        world.join("b", 1);
        let expected = format!(
            "a: [request id: a] input 'COUNT' is {count}, which is not from 0 to 1048576 end"
        );
        assert_eq!(world.turn(), [expected.as_str(), "b: TOKEN [1] [0] end"]);
        assert_eq!((world.done(), world.ends()), (vec![1, 2], vec!["BACKEND", "success"]));
    }
}

#[test]
fn a_cancelled_request_ends_and_is_forgotten() {
    for way in ways() {
        let mut world = World::new(&["max_batch_size: 4", &way, COUNT, TOKEN, DECOUPLED]);
        let cancel = world.join("a", 1000);
        world.join("b", 1000);
        world.turn();
        cancel.cancel();
        let replies = world.turn();
        assert_eq!(replies, ["a: [request id: a] Request cancelled end", "b: TOKEN [1, 1] [1]"]);
        assert_eq!((world.done(), world.ends()), (vec![1], vec!["CANCELED"]));
        let remembered = |world: &World| world.instance.steps.remembered();
        assert_eq!(remembered(&world), usize::from(!world.has_state), "b is left");
        // One that the scheduler ends between two executions doesn't come back.
        let gone = world.join("c", 1000);
        world.turn();
        gone.cancel();
        drop(world.waiting.pop());
        world.join("d", 1000);
        world.turn();
        assert_eq!(remembered(&world), 2 * usize::from(!world.has_state), "b and d are left");
    }
}

#[test]
fn a_start_counts_from_the_beginning() {
    for way in ways() {
        let mut world = World::new(&["max_batch_size: 4", &way, COUNT, TOKEN, DECOUPLED]);
        world.join("a", 9);
        world.turn();
        assert_eq!(world.turn(), ["a: TOKEN [1, 1] [1]"]);
        assert!(world.waiting.pop().unwrap().reschedule().is_ok());
        let (key, request, states) = world.returned.again.lock().unwrap().pop().unwrap();
        world.queue(key, request, states, true);
        assert_eq!(world.turn(), ["a: TOKEN [1, 1] [0]"]);
    }
}

#[test]
fn rows_of_padding_are_passed_over() {
    let mut world = World::new(&["max_batch_size: 4", &batching(""), COUNT, TOKEN, LIVE]);
    world.waiting.push(PendingRequest::padding(InferenceRequest::default()));
    world.join("a", 1);
    assert_eq!(world.turn(), ["a: TOKEN [1, 1] [0], LIVE [1, 1] [1] end"]);
    assert_eq!(*world.books.batches.lock().unwrap(), [1]);
}

#[test]
fn a_request_that_is_no_step_gets_an_error() {
    let mut world = World::new(&[&batching(""), COUNT, TOKEN]);
    world.join("a", 5);
    let request = world.waiting.pop().unwrap();
    assert!(request.reschedule().is_ok());
    let (_, request, _) = world.returned.again.lock().unwrap().pop().unwrap();
    world.waiting.push(request);
    let expected = "a: the number of the request's next token is unknown: it is no step of a \
                    sequence end";
    assert_eq!(world.turn(), [expected]);
}

#[test]
fn executing_needs_a_thread() {
    let spec = spec(&config(&[&batching(""), COUNT, TOKEN]));
    assert_eq!(TokenCounterBackend.policy(&spec), ExecutionPolicy::Blocking);
    let parameter = "parameters { key: 'DELAY_MICROSECONDS' value: { string_value: '1500' } }";
    let slow = self::spec(&config(&[&batching(""), COUNT, TOKEN, parameter]));
    assert_eq!(Interface::of(&spec).unwrap().delay, Duration::ZERO);
    assert_eq!(Interface::of(&slow).unwrap().delay, Duration::from_micros(1500));
}

fn load(parts: &[&str]) -> Result<Box<dyn Model>, Status> {
    let books = Arc::<Books>::default();
    TokenCounterBackend.load(Arc::new(spec(&config(parts))), &NoFiles, books)
}

#[test]
fn configurations_that_are_refused() {
    let check = |parts: &[&str], expected: &str| {
        let Err(status) = load(parts) else { panic!("this must be refused: {expected}") };
        assert_eq!(status.message(), format!("model 'm': {expected}"));
    };
    let iterative = &batching("");
    let not_iterative = "sequence_batching.iterative_sequence: the backend 'token_counter' \
                         executes each request several times, so this must be true";
    check(&[COUNT, TOKEN], not_iterative);
    check(&["max_batch_size: 4 dynamic_batching { }", COUNT, TOKEN], not_iterative);
    check(&["sequence_batching { }", COUNT, TOKEN], not_iterative);
    check(
        &[iterative, COUNT, &COUNT.replace("COUNT", "X"), TOKEN],
        "input: expected 'COUNT' alone, got [COUNT, X]",
    );
    check(&[iterative, &COUNT.replace("COUNT", "X"), TOKEN], "input: expected 'COUNT', got 'X'");
    for wrong in [("INT32", "INT64"), ("[ 1 ]", "[ 2 ]")] {
        let input = COUNT.replace(wrong.0, wrong.1);
        check(&[iterative, &input, TOKEN], "input 'COUNT': expected TYPE_INT32 with dims [1]");
    }
    let optional = COUNT.replace('}', "optional: true }");
    check(&[iterative, &optional, TOKEN], "input 'COUNT': optional must be false");
    check(&[iterative, COUNT, LIVE], "output: there must be an output 'TOKEN'");
    check(
        &[iterative, COUNT, TOKEN, HAD],
        "output: expected 'TOKEN', 'LIVE' or the output of a state, got 'HAD'",
    );
    check(
        &[iterative, COUNT, &TOKEN.replace("-1", "1")],
        "output 'TOKEN': expected TYPE_INT32 with dims [-1]",
    );
    check(
        &[iterative, COUNT, TOKEN, &LIVE.replace("INT32", "FP32")],
        "output 'LIVE': expected TYPE_INT32 with dims [1]",
    );
    let second = STATE.replace("HAD", "X");
    check(
        &[&batching(&format!("{STATE} {second}")), COUNT, TOKEN],
        "sequence_batching.state: there may be one at most",
    );
    let wide = STATE.replace("dims: [ 1 ]", "dims: [ 2 ]");
    check(
        &[&batching(&wide), COUNT, TOKEN],
        "sequence_batching.state 'HAD_IN': expected TYPE_INT32 with dims [1]",
    );
    let file = STATE.replace("zero_data: true", "data_file: 'x'");
    check(
        &[&batching(&file), COUNT, TOKEN],
        "sequence_batching.state 'HAD_IN': counting begins with zero, not with the data of a file",
    );
    for delay in ["soon", "-1", "4294967296"] {
        let parameter = format!(
            "parameters {{ key: 'DELAY_MICROSECONDS' value: {{ string_value: '{delay}' }} }}"
        );
        let expected = format!(
            "parameter 'DELAY_MICROSECONDS' is '{delay}', which is not a number from 0 to 4294967295"
        );
        check(&[iterative, COUNT, TOKEN, &parameter], &expected);
    }
}

#[test]
fn instances_on_a_gpu_are_refused() {
    let model = load(&[&batching(""), COUNT, TOKEN]).unwrap();
    let at = |device| Placement {
        name: String::from("m_0_0"),
        device,
        host_policy_settings: BTreeMap::new(),
    };
    assert!(model.instance(&at(Device::Gpu(0))).is_err());
    assert!(model.instance(&at(Device::Cpu)).is_ok());
    assert!(model.instance(&at(Device::Model)).is_ok());
}
