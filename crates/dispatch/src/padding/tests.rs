use std::any::Any;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use galatea_config::SupportedFeatures;
use galatea_gate::ledger::MemoryLedger;
use galatea_infer::{
    AdmissionTimes, ExecutionReadings, ExecutionSummary, ExecutionTimes, FailureReason,
    InferenceResponse, OutputTensor, Reply, RequestObserver, ResponseSender, ResponseSink, Status,
};
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::DataType;

use super::*;
use crate::admission::Admission;

const MODEL: &str = r#"
    name: "m" backend: "b" max_batch_size: 8 dynamic_batching { }
    input { name: "ids" data_type: TYPE_INT16 dims: [ -1 ] }
    input { name: "sound" data_type: TYPE_UINT8 dims: [ 2, -1, 3 ] }
    input { name: "mask" data_type: TYPE_INT32 dims: [ -1 ] }
    input { name: "rest" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "out" data_type: TYPE_INT16 dims: [ 2, -1, -1 ] }
    output { name: "whole" data_type: TYPE_INT16 dims: [ -1 ] }
    parameters { key: "batch_padding" value { string_value: "ids=-1, sound=0" } }
    parameters { key: "batch_padding_mask" value { string_value: "mask" } }
    parameters {
        key: "batch_padding_outputs" value { string_value: "out=2, out=3, whole=whole" }
    }
"#;

fn spec() -> ModelSpec {
    let draft = parse_config_draft("config.pbtxt", MODEL).unwrap();
    draft.into_validated_spec(&SupportedFeatures::default()).unwrap()
}

fn input(name: &str, datatype: DataType, dims: &[i64], data: &[u8]) -> InputTensor {
    let shape = Shape::new(dims).unwrap();
    let data = Buffer::from_vec(data.to_vec());
    InputTensor { name: name.to_owned(), datatype, shape, data }
}

/// A request with an input `ids`, whose elements count up from 1, and an input `rest`.
fn request(rows: i64, length: i64) -> InferenceRequest {
    let ids: Vec<u8> =
        (1..=rows * length).flat_map(|id| i16::try_from(id).unwrap().to_le_bytes()).collect();
    let sound = vec![7; usize::try_from(rows * 2 * length * 3).unwrap()];
    let rest = vec![0; usize::try_from(rows * 4 * 5).unwrap()];
    let inputs = vec![
        input("ids", DataType::Int16, &[rows, length], &ids),
        input("sound", DataType::Uint8, &[rows, 2, length, 3], &sound),
        input("rest", DataType::Fp32, &[rows, 5], &rest),
    ];
    InferenceRequest { inputs, ..InferenceRequest::default() }
}

fn admission() -> Admission {
    Admission::new(&spec())
}

fn ids(pending: &PendingRequest, name: &str) -> (Vec<i64>, Vec<i64>) {
    let input = pending.request().input(name).unwrap();
    let bytes = input.data.host_bytes().unwrap();
    let size = input.datatype.byte_size().unwrap();
    let number = |one: &[u8]| match *one {
        [one] => i64::from(one),
        [a, b] => i64::from(i16::from_le_bytes([a, b])),
        [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
        _ => unreachable!(),
    };
    (input.shape.dims().to_vec(), bytes.chunks(size).map(number).collect())
}

fn pad(lengths: &[(i64, i64)]) -> Vec<PendingRequest> {
    let admission = admission();
    let requests = lengths.iter().map(|(rows, length)| {
        let admitted = admission.admit(request(*rows, *length)).unwrap();
        PendingRequest::read_only_copy(admitted.request, admitted.batch_size)
    });
    together(requests.collect())
}

/// A padded batch, with enough memory.
fn together(requests: Vec<PendingRequest>) -> Vec<PendingRequest> {
    match padding(None).pad_batch(requests) {
        AssembledBatch::Together(requests) => requests,
        AssembledBatch::Apart(_) => panic!("there is memory"),
    }
}

/// Padding with this memory limit.
fn padding(bytes_max: Option<usize>) -> BatchPadding {
    let account = MemoryAccount::of_server(Arc::new(MemoryLedger::new(bytes_max)));
    BatchPadding::new(&spec(), &Arc::new(account)).unwrap()
}

/// The number of padded bytes in the test below: 2 rows of `ids`, `sound` and `mask` of length
/// 9000.
const PADDED_BYTES: usize = 2 * 9000 * (2 + 2 * 3 + 4);

fn unequal() -> Vec<PendingRequest> {
    let admitted = [1, 9000].map(|length| admission().admit(request(1, length)).unwrap());
    admitted.map(|one| PendingRequest::read_only_copy(one.request, 1)).into()
}

#[test]
fn padded_inputs_are_charged_until_the_last_of_them_is_gone() {
    let padding = padding(Some(PADDED_BYTES));
    let held = || padding.account.held();
    let AssembledBatch::Together(mut requests) = padding.pad_batch(unequal()) else {
        panic!("there is just enough memory")
    };
    assert_eq!(held(), PADDED_BYTES);
    assert!(requests.iter().all(|one| one.request().input("ids").unwrap().data.is_charged()));
    let kept = requests.pop().unwrap().request().input("mask").unwrap().data.clone();
    drop(requests);
    assert_eq!(held(), 2 * 9000 * 4);
    drop(kept);
    assert_eq!(held(), 0);
}

#[test]
fn without_memory_requests_are_executed_apart_as_they_came() {
    let padding = padding(Some(PADDED_BYTES - 1));
    let AssembledBatch::Apart(requests) = padding.pad_batch(unequal()) else {
        panic!("there is not enough memory")
    };
    assert_eq!(padding.account.held(), 0);
    assert_eq!(ids(&requests[0], "ids"), (vec![1, 1], vec![1]));
    assert_eq!(ids(&requests[1], "mask").0, [1, 9000]);
    // Batches that need no padding are executed as usual.
    let equal = [1, 1].map(|length| {
        let admitted = admission().admit(request(1, length)).unwrap();
        PendingRequest::read_only_copy(admitted.request, 1)
    });
    assert!(matches!(padding.pad_batch(equal.into()), AssembledBatch::Together(_)));
}

/// Checks that a plug-in recognizes its own channel through the sink.
#[test]
fn a_cut_sender_is_recognized() {
    struct Known(Arc<u8>);
    impl ResponseSink for Known {
        fn deliver(&mut self, _: Reply) {}
        fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
            Some(self.0.clone())
        }
    }
    let now = std::time::Instant::now();
    let requests = [1, 2].map(|length| {
        let admitted = admission().admit(request(1, length)).unwrap();
        let sender = ResponseSender::new(Box::new(Known(Arc::new(7))));
        let times = AdmissionTimes { arrival: now, queued: now };
        PendingRequest::new(admitted.request, sender, 1, times, Arc::new(Counted::default()))
    });
    for mut pending in together(requests.into()) {
        let known = pending.take_responder().unwrap().backing_object().unwrap();
        assert_eq!(known.downcast::<u8>().ok(), Some(Arc::new(7)));
    }
}

#[test]
fn shorter_requests_are_padded_in_their_dimension() {
    let padded = pad(&[(1, 2), (2, 1), (1, 3)]);
    assert_eq!(ids(&padded[0], "ids"), (vec![1, 3], vec![1, 2, -1]));
    assert_eq!(ids(&padded[1], "ids"), (vec![2, 3], vec![1, -1, -1, 2, -1, -1]));
    assert_eq!(ids(&padded[2], "ids"), (vec![1, 3], vec![1, 2, 3]));
    assert_eq!(ids(&padded[1], "mask"), (vec![2, 3], vec![1, 0, 0, 1, 0, 0]));
    assert_eq!(ids(&padded[2], "mask"), (vec![1, 3], vec![1; 3]));
    let six = |value: i64, count: usize| vec![value; count];
    let rows = [six(7, 6), six(0, 3), six(7, 6), six(0, 3)].concat();
    assert_eq!(ids(&padded[0], "sound"), (vec![1, 2, 3, 3], rows));
    assert_eq!(ids(&padded[0], "rest").0, [1, 5]);
}

#[test]
fn padded_requests_are_adjacent_and_others_are_not_copied() {
    let at = |one: &PendingRequest| {
        let data = one.request().input("ids").unwrap().data.host_bytes().unwrap().clone();
        data.as_ptr().addr()..data.as_ptr().addr() + data.len()
    };
    let padded = pad(&[(1, 2), (1, 3)]);
    assert_eq!(at(&padded[0]).end, at(&padded[1]).start);
    let equal = vec![request(1, 2), request(1, 2)];
    let equal: Vec<PendingRequest> =
        equal.into_iter().map(|one| PendingRequest::read_only_copy(one, 1)).collect();
    let before: Vec<_> = equal.iter().map(at).collect();
    let after = together(equal);
    assert_eq!(after.iter().map(at).collect::<Vec<_>>(), before);
}

#[test]
fn a_request_without_elements_is_all_padding() {
    let padded = pad(&[(1, 0), (1, 2)]);
    assert_eq!(ids(&padded[0], "ids"), (vec![1, 2], vec![-1, -1]));
    assert_eq!(ids(&padded[0], "mask"), (vec![1, 2], vec![0, 0]));
    assert_eq!(pad(&[(1, 0), (1, 0)]).len(), 2);
}

#[test]
fn lengths_are_no_part_of_the_shape_class_unless_they_differ_within_a_request() {
    let admission = admission();
    let class = |request: InferenceRequest| {
        let admitted = admission.admit(request).unwrap();
        (admitted.shape_class, admitted.length)
    };
    assert_eq!(class(request(1, 2)).0, class(request(2, 5)).0);
    assert_eq!(class(request(1, 7)).1, 7);
    let mut mixed = request(1, 2);
    mixed.inputs[0] = input("ids", DataType::Int16, &[1, 4], &[0; 8]);
    assert_ne!(class(mixed.clone()).0, class(request(1, 2)).0);
    assert_eq!(class(mixed).1, 4);
    let mut other = request(1, 2);
    other.inputs[2] = input("rest", DataType::Fp32, &[1, 4], &[0; 16]);
    assert_ne!(class(other).0, class(request(1, 2)).0);
}

#[test]
fn a_mask_of_a_client_is_kept() {
    let mut own = request(1, 3);
    let data: Vec<u8> = [1_i32, 0, 1].into_iter().flat_map(i32::to_le_bytes).collect();
    own.inputs.push(input("mask", DataType::Int32, &[1, 3], &data));
    let admitted = admission().admit(own).unwrap();
    let names: Vec<&str> = admitted.request.inputs.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["ids", "sound", "mask", "rest"]);
    let pending = PendingRequest::read_only_copy(admitted.request, 1);
    assert_eq!(ids(&pending, "mask").1, [1, 0, 1]);
}

#[test]
fn other_inputs_are_still_required() {
    let mut short = request(1, 2);
    short.inputs.remove(2);
    let refused = admission().admit(short).unwrap_err();
    assert!(refused.message().contains("expected number of inputs between 3 and 4"), "{refused:?}");
    assert!(refused.message().contains("missing required input(s) ['rest']"), "{refused:?}");
}

/// Counts of successful and failed requests.
#[derive(Debug, Default)]
struct Counted([AtomicU32; 2]);

impl Counted {
    fn counts(&self) -> [u32; 2] {
        self.0.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

impl RequestObserver for Counted {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {
        self.0[0].fetch_add(1, Ordering::Relaxed);
    }
    fn failed(&self, _: &AdmissionTimes, _: FailureReason) {
        self.0[1].fetch_add(1, Ordering::Relaxed);
    }
}

/// The replies to two requests of these lengths. The backend replies to them with an output `out`
/// of these dimensions and with `whole`. Also checks the counts.
fn replies(lengths: [i64; 2], dims: &[i64]) -> Vec<Result<InferenceResponse, Status>> {
    let replies: Arc<Mutex<Vec<Result<InferenceResponse, Status>>>> = Arc::default();
    let counted = Arc::new(Counted::default());
    let now = std::time::Instant::now();
    let requests = lengths.map(|length| {
        let admitted = admission().admit(request(1, length)).unwrap();
        let sink = replies.clone();
        let sender = ResponseSender::new(Box::new(move |reply: Reply| {
            if let Reply::Response { result, .. } = reply {
                sink.lock().unwrap().push(result);
            }
        }));
        let times = AdmissionTimes { arrival: now, queued: now };
        PendingRequest::new(admitted.request, sender, 1, times, counted.clone())
    });
    let times = ExecutionTimes::from(ExecutionReadings {
        start: now,
        compute_start: now,
        compute_end: now,
        end: now,
    });
    for pending in together(requests.into()) {
        let output = |name: &str, dims: &[i64]| {
            let shape = Shape::new(dims).unwrap();
            let count = i16::try_from(shape.element_count()).unwrap();
            let data = (0..count).flat_map(i16::to_le_bytes).collect();
            let data = Buffer::from_vec(data);
            OutputTensor { name: Arc::from(name), datatype: DataType::Int16, shape, data }
        };
        let response = InferenceResponse {
            model_name: Arc::from("m"),
            model_version: 1,
            id: String::new(),
            parameters: Default::default(),
            outputs: vec![output("out", dims), output("whole", &[1, 3])],
        };
        pending.complete(Ok(response), &times);
    }
    let replies = std::mem::take(&mut *replies.lock().unwrap());
    let succeeded = replies.iter().filter(|reply| reply.is_ok()).count();
    assert_eq!(counted.counts().map(|count| count as usize), [succeeded, 2 - succeeded]);
    replies
}

fn elements(output: &OutputTensor) -> Vec<i16> {
    let bytes = output.data.host_bytes().unwrap();
    bytes.chunks(2).map(|one| i16::from_le_bytes([one[0], one[1]])).collect()
}

#[test]
fn outputs_are_cut_back_in_each_named_dimension() {
    let replies = replies([2, 3], &[1, 2, 3, 3]);
    let short = &replies[0].as_ref().unwrap().outputs;
    assert_eq!(short[0].shape.dims(), [1, 2, 2, 2]);
    assert_eq!(elements(&short[0]), [0, 1, 3, 4, 9, 10, 12, 13]);
    assert_eq!((short[1].shape.dims(), elements(&short[1])), (&[1, 3][..], vec![0, 1, 2]));
    let long = &replies[1].as_ref().unwrap().outputs;
    assert_eq!((long[0].shape.dims(), elements(&long[0])), (&[1, 2, 3, 3][..], (0..18).collect()));
}

#[test]
fn an_output_of_another_size_is_an_error_and_never_a_wrong_answer() {
    let replies = replies([2, 3], &[1, 2, 3, 5]);
    assert_eq!(
        replies[0].as_ref().unwrap_err().message(),
        "output 'out' of shape [1,2,2,5] can't be cut from 3 to 2 in dimension 3: it is not as \
         long as the padded inputs"
    );
    assert!(replies[1].is_ok());
}

/// Covers backends that respond before reporting the execution's duration, and those that respond
/// after it.
#[test]
fn a_response_that_can_not_be_cut_counts_as_a_failure_in_any_order() {
    let now = std::time::Instant::now();
    let times = AdmissionTimes { arrival: now, queued: now };
    let execution = ExecutionTimes::from(ExecutionReadings {
        start: now,
        compute_start: now,
        compute_end: now,
        end: now,
    });
    let execution = ExecutionSummary::from(&execution);
    for (is_cut, expected) in [(true, [1, 0]), (false, [0, 1])] {
        for is_cut_first in [true, false] {
            let counted = Arc::new(Counted::default());
            let statistics = CutStatistics::new(counted.clone());
            if is_cut_first {
                statistics.cut(is_cut);
            }
            statistics.succeeded(1, &times, &execution);
            statistics.cut(is_cut);
            // The sink is dropped.
            statistics.cut(true);
            assert_eq!(counted.counts(), expected);
        }
    }
    let counted = Arc::new(Counted::default());
    let statistics = CutStatistics::new(counted.clone());
    statistics.failed(&times, FailureReason::Backend);
    statistics.cut(true);
    assert_eq!(counted.counts(), [0, 1]);
}
