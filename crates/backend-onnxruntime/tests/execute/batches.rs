//! Several requests in one run.

use std::thread;

use galatea_infer::{CancelToken, Code, FailureReason, InferenceRequest};
use galatea_tensor::DataType;

use crate::support::onnx::{Graph, INT32};
use crate::support::{cpu, execute, failure, int32s, load, output, request, tensor};

pub(crate) const CONFIG: &str = "
    max_batch_size: 8
    input [
      { name: 'INPUT0' data_type: TYPE_INT32 dims: [ 2 ] },
      { name: 'INPUT1' data_type: TYPE_INT32 dims: [ 2 ] }
    ]
    output [
      { name: 'SUM' data_type: TYPE_INT32 dims: [ 2 ] },
      { name: 'DIFFERENCE' data_type: TYPE_INT32 dims: [ 2 ] }
    ]";

/// Adds and subtracts pairs of numbers.
pub(crate) fn graph() -> Graph {
    Graph::default()
        .input("INPUT0", INT32, &[-1, 2])
        .input("INPUT1", INT32, &[-1, 2])
        .output("SUM", INT32, &[-1, 2])
        .output("DIFFERENCE", INT32, &[-1, 2])
        .node("Add", &["INPUT0", "INPUT1"], &["SUM"])
        .node("Sub", &["INPUT0", "INPUT1"], &["DIFFERENCE"])
}

pub(crate) fn pair(a: &[i32], b: &[i32]) -> InferenceRequest {
    let rows = i64::try_from(a.len() / 2).unwrap();
    request(vec![
        tensor("INPUT0", DataType::Int32, &[rows, 2], int32s(a)),
        tensor("INPUT1", DataType::Int32, &[rows, 2], int32s(b)),
    ])
}

#[test]
fn each_request_gets_its_rows_and_its_wanted_outputs() {
    let mut loaded = load(graph(), CONFIG);
    let mut sum_only = pair(&[1, 2, 3, 4], &[10, 20, 30, 40]);
    sum_only.outputs = vec![String::from("SUM")];
    let results = loaded.execute(vec![sum_only, pair(&[5, 6], &[1, 1]), pair(&[7, 8], &[2, 3])]);
    let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    assert_eq!(output(&results[0], "SUM"), (&[2, 2][..], &int32s(&[11, 22, 33, 44])[..]));
    assert_eq!(output(&results[1], "SUM"), (&[1, 2][..], &int32s(&[6, 7])[..]));
    assert_eq!(output(&results[2], "DIFFERENCE"), (&[1, 2][..], &int32s(&[5, 5])[..]));
    let names = |index: usize| -> Vec<&str> {
        results[index].outputs.iter().map(|output| &*output.name).collect()
    };
    assert_eq!(names(0), ["SUM"]);
    assert_eq!(names(1), ["DIFFERENCE", "SUM"]);
    // The part keeps all four rows' memory alive.
    let part = &results[1].outputs[1].data;
    assert_eq!((part.len(), part.retained_bytes()), (8, 32));
    let first = &results[0];
    assert_eq!((&*first.model_name, first.model_version, &*first.id), ("m", 1, "r"));
    assert_eq!(*loaded.host.batches.lock().unwrap(), [4]);
}

#[test]
fn an_output_that_no_request_wants_is_not_computed() {
    let mut loaded = load(graph(), CONFIG);
    let mut sum_only = pair(&[1, 2], &[3, 4]);
    sum_only.outputs = vec![String::from("SUM")];
    let result = loaded.execute_one(sum_only).unwrap();
    assert_eq!(result.outputs.len(), 1);
    assert_eq!(output(&result, "SUM").1, int32s(&[4, 6]));
}

#[test]
fn instances_share_a_session_and_run_at_the_same_time() {
    let config = format!("{CONFIG} instance_group [ {{ count: 4 kind: KIND_CPU }} ]");
    let loaded = load(graph(), &config);
    let (model, host) = (loaded.model.as_ref(), &loaded.host);
    thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                let mut instance = model.create_instance(&cpu()).unwrap();
                for value in 0..50 {
                    let requests =
                        vec![pair(&[seed, value], &[1, 2]), pair(&[value, seed], &[3, 4])];
                    let results = execute(instance.as_mut(), host, requests);
                    let sums: Vec<_> = results
                        .iter()
                        .map(|result| output(result.as_ref().unwrap(), "SUM").1.to_vec())
                        .collect();
                    assert_eq!(sums[0], int32s(&[seed + 1, value + 2]));
                    assert_eq!(sums[1], int32s(&[value + 3, seed + 4]));
                }
            });
        }
    });
}

#[test]
fn a_batch_of_cancelled_requests_is_not_run() {
    let mut loaded = load(graph(), CONFIG);
    let cancelled = || {
        let cancel = CancelToken::new();
        cancel.cancel();
        InferenceRequest { cancel, ..pair(&[1, 2], &[3, 4]) }
    };
    for result in loaded.execute(vec![cancelled(), cancelled()]) {
        assert_eq!(failure(result).0, Code::Cancelled);
    }
    assert!(loaded.host.batches.lock().unwrap().is_empty());
    assert_eq!(*loaded.host.failed.lock().unwrap(), [FailureReason::Canceled; 2]);
    let results = loaded.execute(vec![cancelled(), pair(&[1, 2], &[3, 4])]);
    assert!(results[1].is_ok());
}
