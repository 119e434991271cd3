//! Requests that a model executes repeatedly, and states of different lengths in one run.

#![allow(clippy::unwrap_used, reason = "a test may fail in any line")]

mod support;

use std::sync::Arc;

use galatea_infer::{CancelToken, Code, InferenceRequest, Reply, Status};
use galatea_runtime::SessionInterface;
use galatea_tensor::DataType;

use support::fake::{Elements, Value, info, interface};
use support::{States, TestModel, failure, int32s, load, numbers, output, try_load};

/// `Y` shows the state as the model sees it; `MORE` is true until the state has `X` elements.
fn counter() -> SessionInterface {
    let (rows, flags) = ([-1, -1], [-1, 1]);
    interface(
        vec![info("X", DataType::Int32, &flags), info("STATE_IN", DataType::Int32, &rows)],
        vec![
            info("Y", DataType::Int32, &rows),
            info("STATE_OUT", DataType::Int32, &rows),
            info("MORE", DataType::Bool, &flags),
        ],
    )
}

/// Appends the number of nonzero elements to each state.
fn count(inputs: &[Option<Value>]) -> Result<Vec<Value>, Status> {
    let [limits, state] = [0, 1].map(|index| inputs[index].clone().unwrap());
    let [rows, length] = state.dims[..] else { panic!("a matrix") };
    let (limits, elements) = (limits.numbers(), state.numbers());
    let (mut grown, mut more) = (Vec::new(), Vec::new());
    for (row, limit) in elements.chunks(usize::try_from(length).unwrap()).zip(limits) {
        let number = i32::try_from(row.iter().filter(|element| **element != 0).count()).unwrap();
        grown.extend(row);
        grown.push(number + 1);
        more.push(u8::from(number + 1 < limit));
    }
    let grown = Value::int32s(&[rows, length + 1], &grown);
    let elements = Elements::Fixed(more);
    let more = Value { datatype: DataType::Bool, dims: vec![rows, 1], elements };
    Ok(vec![grown.clone(), grown, more])
}

fn config(rest: &str) -> String {
    format!(
        "max_batch_size: 8
         input [ {{ name: 'X' data_type: TYPE_INT32 dims: [ 1 ] }} ]
         output [ {{ name: 'Y' data_type: TYPE_INT32 dims: [ -1 ] }} ]
         sequence_batching {{
           iterative_sequence: true
           state [ {{
             input_name: 'STATE_IN' output_name: 'STATE_OUT' data_type: TYPE_INT32 dims: [ -1 ]
           }} ]
         }}
         {rest}"
    )
}

fn parameter(name: &str, value: &str) -> String {
    format!("parameters {{ key: '{name}' value {{ string_value: '{value}' }} }}\n")
}

/// A model with both parameters, and sequences whose initial state is a zero.
fn counting(rest: &str) -> (TestModel, Arc<States>) {
    let both = parameter("continue_output", "MORE") + &parameter("state_padding", "start") + rest;
    let states = States::new(DataType::Int32, &[1, 1], int32s(&[0]));
    (load(counter(), count, &config(&both)), states)
}

fn limits(limits: &[i32]) -> Vec<(u64, InferenceRequest)> {
    (1..).zip(limits.iter().map(|limit| numbers(&[1, 1], &[*limit]))).collect()
}

/// The elements of `Y` in each response; a final reply without a response is empty.
fn shown(replies: Vec<Reply>) -> Vec<Vec<u8>> {
    let shown = |reply| match reply {
        Reply::Response { result, .. } => output(&result.unwrap(), "Y").1.to_vec(),
        Reply::Finished => Vec::new(),
    };
    replies.into_iter().map(shown).collect()
}

#[test]
fn requests_are_executed_while_their_output_says_so() {
    let (mut loaded, states) = counting("");
    let replies: Vec<_> = loaded.iterate(&states, limits(&[1, 3])).into_iter().map(shown).collect();
    assert_eq!(replies, [vec![int32s(&[0, 1])], vec![int32s(&[0, 1, 2, 3])]]);
    assert_eq!(*loaded.host.batches.lock().unwrap(), [2, 1, 1]);
}

#[test]
fn a_decoupled_model_responds_in_each_execution() {
    let (mut loaded, states) = counting("model_transaction_policy { decoupled: true }");
    let mut replies = loaded.iterate(&states, limits(&[3])).remove(0);
    assert!(replies.last().unwrap().is_final());
    let last = shown(vec![replies.pop().unwrap()]);
    let all = [shown(replies), last].concat();
    assert_eq!(all, [&[0, 1][..], &[0, 1, 2], &[0, 1, 2, 3]].map(int32s));
}

#[test]
fn a_cancelled_request_is_not_rescheduled() {
    let (mut loaded, states) = counting("");
    let cancel = CancelToken::new();
    cancel.cancel();
    let mut requests = limits(&[5, 2]);
    requests[0].1.cancel = cancel;
    let mut replies = loaded.iterate(&states, requests);
    let Reply::Response { result, .. } = replies[0].remove(0) else { panic!("an error") };
    assert_eq!(result.unwrap_err().code(), Code::Cancelled);
    assert_eq!(shown(replies.remove(1)), [int32s(&[0, 1, 2])]);
}

#[test]
fn states_of_different_lengths_share_a_run() {
    let (mut loaded, states) = counting("");
    let first = |sequence| vec![(sequence, numbers(&[1, 1], &[1]))];
    for sequence in [1, 1, 2] {
        loaded.step(&states, first(sequence)).remove(0).unwrap();
    }
    let both = [1, 2].map(|sequence| first(sequence).remove(0)).to_vec();
    let results = loaded.step(&states, both);
    let of = |index: usize| output(results[index].as_ref().unwrap(), "Y").1.to_vec();
    // The model sees the shorter state with a zero before it, which isn't part of the new state.
    assert_eq!([of(0), of(1)], [&[0, 1, 2, 3][..], &[0, 0, 1, 2]].map(int32s));
    let state = |sequence| {
        let state = states.state(sequence);
        (state.shape.dims().to_vec(), state.data.host_bytes().unwrap().to_vec())
    };
    assert_eq!(state(1), (vec![1, 4], int32s(&[0, 1, 2, 3])));
    assert_eq!(state(2), (vec![1, 3], int32s(&[0, 1, 2])));
    assert_eq!(*loaded.host.batches.lock().unwrap(), [1, 1, 1, 2]);
}

#[test]
fn first_executions_have_their_own_run() {
    let (mut loaded, states) = counting("");
    loaded.step(&states, limits(&[1])).remove(0).unwrap();
    loaded.step(&states, limits(&[1, 1, 1]));
    assert_eq!(*loaded.host.batches.lock().unwrap(), [1, 1, 2]);
}

#[test]
fn wrong_parameters_are_refused() {
    let refused = |text: &str| failure(try_load(counter(), count, text));
    let not_iterative =
        config(&parameter("continue_output", "MORE")).replace("iterative_sequence: true", "");
    for (text, expected) in [
        (not_iterative, "parameter 'continue_output' needs 'iterative_sequence: true'"),
        (config(&parameter("continue_output", "Z")), "unexpected inference output 'Z'"),
        (config(&parameter("continue_output", "Y")), "expects datatype TYPE_BOOL for output 'Y'"),
        (config(&parameter("state_padding", "end")), "'end', which is not 'start'"),
        (
            config(&parameter("state_padding", "start"))
                .replace("TYPE_INT32 dims: [ -1 ]\n           }", "TYPE_INT32 dims: [ 3 ] }"),
            "needs a state of numbers or Booleans",
        ),
    ] {
        let message = refused(&text);
        assert!(message.contains(expected), "{message}");
    }
}
