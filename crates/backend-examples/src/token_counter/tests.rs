//! Tests models end to end, from the configuration to the response. A stand-in for the scheduler
//! executes rescheduled requests again, together with new ones.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use galatea_backend::{Backend, Device, ExecutionPolicy, Instance, Model};
use galatea_infer::{
    AdmissionTimes, Backpressure, CancelToken, CongestionPoint, CorrelationId, InferenceRequest,
    InputTensor, PendingRequest, Reply, ResponseSender, ResumeHook, SequenceContext, SequenceFlags,
    SequenceReleaseHook, StateTensor, Status,
};
use galatea_tensor::{Buffer, DataType, Shape};

use crate::testing::{NoFiles, RecordingHost, placement, spec};
use crate::token_counter::TokenCounterBackend;
use crate::token_counter::instance::TokenCounterInstance;
use crate::token_counter::interface::Interface;
use crate::token_counter::token_counts::TokenCounts;

/// Collects the requests that the backend reschedules.
#[derive(Debug, Default)]
struct TestSequenceOwner {
    rescheduled: Mutex<Vec<(u64, PendingRequest, Vec<StateTensor>)>>,
    done: Mutex<Vec<u64>>,
}

impl SequenceReleaseHook for TestSequenceOwner {
    fn released(&self, key: u64, _: Vec<StateTensor>) {
        self.done.lock().unwrap().push(key);
    }

    fn rescheduled(&self, key: u64, request: PendingRequest, states: Vec<StateTensor>) {
        self.rescheduled.lock().unwrap().push((key, request, states));
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

fn int32(name: &str, dims: &[i64], value: i32) -> InputTensor {
    InputTensor {
        name: name.to_owned(),
        datatype: DataType::Int32,
        shape: Shape::new(dims).unwrap(),
        data: Buffer::from_vec(value.to_le_bytes().to_vec()),
    }
}

/// The correlation ID for every request. The backend must not depend on it.
const SAME_ID: CorrelationId = CorrelationId::Number(7);

/// One instance of a model, and the requests for its next execution.
struct TestScheduler {
    instance: TokenCounterInstance,
    host: Arc<RecordingHost>,
    owner: Arc<TestSequenceOwner>,
    replies: Arc<Mutex<Vec<String>>>,
    waiting: Vec<PendingRequest>,
    next_key: u64,
    dims: Vec<i64>,
    has_state: bool,
    /// The backpressure for the next request.
    backpressure: Backpressure,
}

impl TestScheduler {
    fn new(parts: &[&str]) -> Self {
        let spec = spec(&config(parts));
        let interface = Interface::new(&spec).unwrap();
        let host = Arc::<RecordingHost>::default();
        let instance = TokenCounterInstance {
            token_counts: TokenCounts::new(interface.state.clone()),
            interface: Arc::new(interface),
            host: host.clone(),
        };
        Self {
            instance,
            host,
            owner: Arc::default(),
            replies: Arc::default(),
            waiting: Vec::new(),
            next_key: 1,
            dims: if spec.max_batch_size > 0 { vec![1, 1] } else { vec![1] },
            has_state: !spec.sequence_states().is_empty(),
            backpressure: Backpressure::default(),
        }
    }

    /// Adds a request to the next execution.
    fn add(&mut self, id: &str, count: i32) -> CancelToken {
        let key = self.next_key;
        self.next_key += 1;
        let cancel = CancelToken::new();
        let request = InferenceRequest {
            id: id.to_owned(),
            model_name: String::from("m"),
            inputs: vec![int32("COUNT", &self.dims, count)],
            correlation_id: SAME_ID,
            cancel: cancel.clone(),
            backpressure: self.backpressure.clone(),
            ..InferenceRequest::default()
        };
        let (replies, name) = (self.replies.clone(), id.to_owned());
        let sender = ResponseSender::new(Box::new(move |reply: Reply| {
            replies.lock().unwrap().push(format!("{name}: {}", describe(&reply)));
        }));
        let times = AdmissionTimes { arrival: Instant::now(), queued: Instant::now() };
        let request = PendingRequest::new(request, sender, 1, times, self.host.clone());
        let states = if self.has_state { vec![self.state()] } else { Vec::new() };
        self.queue(key, request, states, true);
        cancel
    }

    /// The state at the start of a sequence is garbage, which the backend must not read.
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
        request.begin_sequence_step(Box::new(SequenceContext {
            correlation_id: SAME_ID,
            flags: SequenceFlags { start, end: false },
            states,
            owner: self.owner.clone(),
            key,
            iterative: true,
        }));
        self.waiting.push(request);
    }

    /// Executes all waiting requests and returns the replies.
    fn execute(&mut self) -> Vec<String> {
        self.instance.execute(std::mem::take(&mut self.waiting)).unwrap();
        let rescheduled = std::mem::take(&mut *self.owner.rescheduled.lock().unwrap());
        for (key, request, states) in rescheduled {
            self.queue(key, request, states, false);
        }
        std::mem::take(&mut *self.replies.lock().unwrap())
    }

    fn done(&self) -> Vec<u64> {
        self.owner.done.lock().unwrap().clone()
    }

    fn ends(&self) -> Vec<&'static str> {
        self.host.ends.lock().unwrap().clone()
    }
}

fn describe(reply: &Reply) -> String {
    let end = if reply.is_final() { " end" } else { "" };
    match reply {
        Reply::Finished => String::from("nothing end"),
        Reply::Response { result: Err(status), .. } => format!("{}{end}", status.message()),
        Reply::Response { result: Ok(response), .. } => {
            assert_eq!((&*response.model_name, response.model_version), ("m", 3));
            let outputs = response.outputs.iter().map(|output| {
                let bytes = output.data.host_bytes().unwrap();
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

/// The three ways to configure where a model stores its counts.
fn count_stores() -> [String; 3] {
    let unspecified = "state { input_name: 'HAD_IN' output_name: 'HAD' data_type: TYPE_INT32
                       dims: [ 1 ] }";
    [batching(""), batching(STATE), batching(&format!("{unspecified} direct {{ }}"))]
}

#[test]
fn requests_join_and_leave_at_every_execution() {
    for store in count_stores() {
        let mut scheduler =
            TestScheduler::new(&["max_batch_size: 4", &store, COUNT, TOKEN, LIVE, DECOUPLED]);
        let token = |token: i32, live: i32| format!("TOKEN [1, 1] [{token}], LIVE [1, 1] [{live}]");
        scheduler.add("a", 3);
        assert_eq!(scheduler.execute(), [format!("a: {}", token(0, 1))]);
        scheduler.add("b", 1);
        assert_eq!(
            scheduler.execute(),
            [format!("a: {}", token(1, 2)), format!("b: {} end", token(0, 2))]
        );
        assert_eq!(scheduler.done(), [2]);
        scheduler.add("c", 2);
        assert_eq!(
            scheduler.execute(),
            [format!("a: {} end", token(2, 2)), format!("c: {}", token(0, 2))]
        );
        assert_eq!(scheduler.execute(), [format!("c: {} end", token(1, 1))]);
        assert_eq!(scheduler.done(), [2, 1, 3]);
        assert_eq!(*scheduler.host.batch_sizes.lock().unwrap(), [1, 2, 2, 1]);
        assert_eq!(scheduler.ends(), ["success"; 3]);
        assert_eq!(scheduler.instance.token_counts.len(), 0);
    }
}

/// Congestion that the test controls, and the hooks that wait for its end.
#[derive(Default)]
struct TestCongestion(Mutex<(bool, Vec<ResumeHook>)>);

impl CongestionPoint for TestCongestion {
    fn is_congested(&self) -> bool {
        self.0.lock().unwrap().0
    }

    fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook> {
        self.0.lock().unwrap().1.push(hook);
        None
    }
}

#[test]
fn a_congested_request_pauses_and_others_continue() {
    for store in count_stores() {
        let mut scheduler =
            TestScheduler::new(&["max_batch_size: 4", &store, COUNT, TOKEN, DECOUPLED]);
        let congestion = Arc::<TestCongestion>::default();
        congestion.0.lock().unwrap().0 = true;
        scheduler.backpressure = Backpressure::default().with_congestion_point(congestion.clone());
        scheduler.add("a", 2);
        scheduler.backpressure = Backpressure::default();
        scheduler.add("b", 3);
        assert_eq!(scheduler.execute(), ["a: TOKEN [1, 1] [0]", "b: TOKEN [1, 1] [0]"]);
        assert_eq!(scheduler.execute(), ["b: TOKEN [1, 1] [1]"]);
        let hooks = {
            let mut congestion = congestion.0.lock().unwrap();
            congestion.0 = false;
            std::mem::take(&mut congestion.1)
        };
        hooks.into_iter().for_each(|hook| hook());
        // A request that is being rescheduled is only queued after the next execution.
        let mut replies = scheduler.execute();
        replies.extend(scheduler.execute());
        replies.sort();
        assert_eq!(replies, ["a: TOKEN [1, 1] [1] end", "b: TOKEN [1, 1] [2] end"]);
    }
}

#[test]
fn a_model_that_is_not_decoupled_sends_one_response() {
    for store in count_stores() {
        let mut scheduler = TestScheduler::new(&["max_batch_size: 4", &store, COUNT, TOKEN, LIVE]);
        scheduler.add("a", 3);
        scheduler.add("b", 1);
        scheduler.add("c", 0);
        assert_eq!(
            scheduler.execute(),
            ["b: TOKEN [1, 1] [0], LIVE [1, 1] [3] end", "c: TOKEN [1, 0] [], LIVE [1, 1] [3] end"]
        );
        assert_eq!(scheduler.execute(), <[String; 0]>::default());
        assert_eq!(scheduler.execute(), ["a: TOKEN [1, 3] [0, 1, 2], LIVE [1, 1] [1] end"]);
        assert_eq!(scheduler.ends(), ["success"; 3]);
    }
}

#[test]
fn a_decoupled_request_for_no_tokens_gets_only_the_final_flag() {
    let mut scheduler = TestScheduler::new(&[&batching(""), COUNT, TOKEN, DECOUPLED]);
    scheduler.add("a", 0);
    assert_eq!(scheduler.execute(), ["a: nothing end"]);
    assert_eq!((scheduler.done(), scheduler.ends()), (vec![1], vec!["success"]));
}

#[test]
fn a_model_without_batching_has_no_batch_dimension() {
    let mut scheduler = TestScheduler::new(&[&batching(STATE), COUNT, TOKEN, LIVE, HAD, DECOUPLED]);
    scheduler.add("a", 2);
    assert_eq!(scheduler.execute(), ["a: TOKEN [1] [0], LIVE [1] [1], HAD [1] [1]"]);
    assert_eq!(scheduler.execute(), ["a: TOKEN [1] [1], LIVE [1] [1], HAD [1] [2] end"]);
}

#[test]
fn counts_out_of_range_are_refused() {
    for count in [-1, i32::MIN, (1 << 20) + 1, i32::MAX] {
        let mut scheduler = TestScheduler::new(&[&batching(""), COUNT, TOKEN, DECOUPLED]);
        scheduler.add("a", count);
        scheduler.add("b", 1);
        let expected = format!(
            "a: [request id: a] input 'COUNT' is {count}, which is not from 0 to 1048576 end"
        );
        assert_eq!(scheduler.execute(), [expected.as_str(), "b: TOKEN [1] [0] end"]);
        assert_eq!((scheduler.done(), scheduler.ends()), (vec![1, 2], vec!["BACKEND", "success"]));
    }
}

#[test]
fn a_cancelled_request_ends_and_its_count_is_removed() {
    for store in count_stores() {
        let mut scheduler =
            TestScheduler::new(&["max_batch_size: 4", &store, COUNT, TOKEN, DECOUPLED]);
        let cancel = scheduler.add("a", 1000);
        scheduler.add("b", 1000);
        scheduler.execute();
        cancel.cancel();
        let replies = scheduler.execute();
        assert_eq!(replies, ["a: [request id: a] Request cancelled end", "b: TOKEN [1, 1] [1]"]);
        assert_eq!((scheduler.done(), scheduler.ends()), (vec![1], vec!["CANCELED"]));
        let stored = |scheduler: &TestScheduler| scheduler.instance.token_counts.len();
        assert_eq!(stored(&scheduler), usize::from(!scheduler.has_state), "the count of b remains");
        // The scheduler drops a request that is cancelled between two executions.
        let cancel = scheduler.add("c", 1000);
        scheduler.execute();
        cancel.cancel();
        drop(scheduler.waiting.pop());
        scheduler.add("d", 1000);
        scheduler.execute();
        assert_eq!(
            stored(&scheduler),
            2 * usize::from(!scheduler.has_state),
            "the counts of b and d remain"
        );
    }
}

#[test]
// row: ITER-03
fn a_sequence_start_resets_the_count() {
    for store in count_stores() {
        let mut scheduler =
            TestScheduler::new(&["max_batch_size: 4", &store, COUNT, TOKEN, DECOUPLED]);
        scheduler.add("a", 9);
        scheduler.execute();
        assert_eq!(scheduler.execute(), ["a: TOKEN [1, 1] [1]"]);
        assert!(scheduler.waiting.pop().unwrap().reschedule().is_ok());
        let (key, request, states) = scheduler.owner.rescheduled.lock().unwrap().pop().unwrap();
        scheduler.queue(key, request, states, true);
        assert_eq!(scheduler.execute(), ["a: TOKEN [1, 1] [0]"]);
    }
}

#[test]
fn padding_rows_are_ignored() {
    let mut scheduler =
        TestScheduler::new(&["max_batch_size: 4", &batching(""), COUNT, TOKEN, LIVE]);
    scheduler.waiting.push(PendingRequest::new_padding(InferenceRequest::default()));
    scheduler.add("a", 1);
    assert_eq!(scheduler.execute(), ["a: TOKEN [1, 1] [0], LIVE [1, 1] [1] end"]);
    assert_eq!(*scheduler.host.batch_sizes.lock().unwrap(), [1]);
}

#[test]
fn a_request_outside_a_sequence_gets_an_error() {
    let mut scheduler = TestScheduler::new(&[&batching(""), COUNT, TOKEN]);
    scheduler.add("a", 5);
    let request = scheduler.waiting.pop().unwrap();
    assert!(request.reschedule().is_ok());
    let (_, request, _) = scheduler.owner.rescheduled.lock().unwrap().pop().unwrap();
    scheduler.waiting.push(request);
    let expected = "a: the number of the request's next token is unknown: it is no step of a \
                    sequence end";
    assert_eq!(scheduler.execute(), [expected]);
}

#[test]
fn execution_is_blocking_and_lasts_the_configured_delay() {
    let spec = spec(&config(&[&batching(""), COUNT, TOKEN]));
    assert_eq!(TokenCounterBackend.execution_policy(&spec), ExecutionPolicy::Blocking);
    let parameter = "parameters { key: 'DELAY_MICROSECONDS' value: { string_value: '1500' } }";
    let slow = self::spec(&config(&[&batching(""), COUNT, TOKEN, parameter]));
    assert_eq!(Interface::new(&spec).unwrap().delay, Duration::ZERO);
    assert_eq!(Interface::new(&slow).unwrap().delay, Duration::from_micros(1500));
}

fn load(parts: &[&str]) -> Result<Box<dyn Model>, Status> {
    let host = Arc::<RecordingHost>::default();
    TokenCounterBackend.load(Arc::new(spec(&config(parts))), &NoFiles, host)
}

#[test]
fn unusable_configurations_are_refused() {
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
fn an_instance_may_be_anywhere() {
    let model = load(&[&batching(""), COUNT, TOKEN]).unwrap();
    assert!(model.create_instance(&placement(Device::Gpu(0))).is_ok());
    assert!(model.create_instance(&placement(Device::Cpu)).is_ok());
    assert!(model.create_instance(&placement(Device::Model)).is_ok());
}
