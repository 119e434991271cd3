//! Executes batches in the same way as instances: gathers, binds, runs and splits them, with models
//! that are Rust functions.

#![allow(clippy::unwrap_used, reason = "a test may fail in any line")]

mod support;

use galatea_backend::{Device, Model};
use galatea_infer::{CancelToken, Code, FailureReason, InferenceRequest, Status};
use galatea_runtime::SessionInterface;
use galatea_tensor::DataType;

use support::fake::{Compute, Value, info, interface};
use support::{
    States, TestModel, at, failure, framed, int32s, load, numbers, output, request, tensor,
    try_load,
};

const PAIRS: &str = "
    max_batch_size: 8
    input [ { name: 'X' data_type: TYPE_INT32 dims: [ 2 ] } ]
    output [ { name: 'Y' data_type: TYPE_INT32 dims: [ 2 ] } ]";

/// An interface with an input `X` and an output `Y`.
fn x_to_y(dims: &[i64]) -> SessionInterface {
    let [input, output] = ["X", "Y"].map(|name| info(name, DataType::Int32, dims));
    interface(vec![input], vec![output])
}

fn given(inputs: &[Option<Value>], index: usize) -> Value {
    inputs[index].clone().expect("the input is given")
}

/// Adds 100 to each element.
fn add_hundred(inputs: &[Option<Value>]) -> Result<Vec<Value>, Status> {
    let input = given(inputs, 0);
    let sums: Vec<i32> = input.numbers().iter().map(|number| number + 100).collect();
    Ok(vec![Value::int32s(&input.dims, &sums)])
}

fn pairs() -> TestModel {
    load(x_to_y(&[-1, 2]), add_hundred, PAIRS)
}

#[test]
fn a_single_request_is_bound_in_place() {
    let mut loaded = pairs();
    let request = numbers(&[1, 2], &[1, 2]);
    let address = request.inputs[0].data.host_bytes().unwrap().as_ptr().addr();
    let result = loaded.execute(vec![request]).remove(0).unwrap();
    assert_eq!(output(&result, "Y"), (&[1, 2][..], &int32s(&[101, 102])[..]));
    assert_eq!((result.model_version, result.id.as_str()), (7, "r"));
    assert_eq!(loaded.places(), [(address, 8)]);
}

#[test]
fn a_batch_is_gathered_and_its_outputs_are_slices_of_one_tensor() {
    let mut loaded = pairs();
    let batch =
        vec![numbers(&[1, 2], &[1, 2]), numbers(&[2, 2], &[3, 4, 5, 6]), numbers(&[1, 2], &[7, 8])];
    let results: Vec<_> = loaded.execute(batch).into_iter().map(Result::unwrap).collect();
    let parts: Vec<_> = results.iter().map(|result| output(result, "Y")).collect();
    assert_eq!(parts[0], (&[1, 2][..], &int32s(&[101, 102])[..]));
    assert_eq!(parts[1], (&[2, 2][..], &int32s(&[103, 104, 105, 106])[..]));
    assert_eq!(parts[2], (&[1, 2][..], &int32s(&[107, 108])[..]));
    let start = parts[0].1.as_ptr().addr();
    assert_eq!(parts[1].1.as_ptr().addr() - start, 8);
    assert_eq!(parts[2].1.as_ptr().addr() - start, 24);
    let [(address, size)] = loaded.places()[..] else { panic!("one input") };
    assert_eq!((address % 64, size), (0, 32));
    assert_eq!(*loaded.host.batches.lock().unwrap(), [4]);
    // The next batch is gathered in the same memory.
    loaded.execute(vec![numbers(&[1, 2], &[1, 2]), numbers(&[1, 2], &[3, 4])]);
    assert_eq!(loaded.places(), [(address, 16)]);
}

#[test]
fn only_wanted_outputs_are_computed() {
    let outputs = vec![info("A", DataType::Int32, &[-1]), info("B", DataType::Int32, &[-1])];
    let twice: Compute = |inputs| Ok(vec![given(inputs, 0), given(inputs, 0)]);
    let config = "
        input [ { name: 'X' data_type: TYPE_INT32 dims: [ -1 ] } ]
        output [ { name: 'A' data_type: TYPE_INT32 dims: [ -1 ] },
                 { name: 'B' data_type: TYPE_INT32 dims: [ -1 ] } ]";
    let interface = interface(vec![info("X", DataType::Int32, &[-1])], outputs);
    let mut loaded = load(interface, twice, config);
    let wants_b =
        InferenceRequest { outputs: vec![String::from("B")], ..numbers(&[3], &[1, 2, 3]) };
    let result = loaded.execute(vec![wants_b]).remove(0).unwrap();
    assert_eq!(result.outputs.len(), 1);
    assert_eq!(output(&result, "B"), (&[3][..], &int32s(&[1, 2, 3])[..]));
    assert_eq!(*loaded.journal.requested.lock().unwrap(), [[1]]);
}

#[test]
fn an_input_with_a_default_may_be_left_out() {
    let mut interface = x_to_y(&[2]);
    interface.inputs.push(info("BIAS", DataType::Int32, &[1]));
    let add: Compute = |inputs| {
        let bias = inputs[1].as_ref().map_or(1000, |bias| bias.numbers()[0]);
        let input = given(inputs, 0);
        let sums: Vec<i32> = input.numbers().iter().map(|number| number + bias).collect();
        Ok(vec![Value::int32s(&input.dims, &sums)])
    };
    let config = "
        input [ { name: 'X' data_type: TYPE_INT32 dims: [ 2 ] },
                { name: 'BIAS' data_type: TYPE_INT32 dims: [ 1 ] optional: true } ]
        output [ { name: 'Y' data_type: TYPE_INT32 dims: [ 2 ] } ]";
    let mut loaded = load(interface, add, config);
    let without = numbers(&[2], &[1, 2]);
    let mut with = without.clone();
    with.inputs.push(tensor("BIAS", DataType::Int32, &[1], int32s(&[5])));
    for (one, expected) in [(without, [1001, 1002]), (with, [6, 7])] {
        let result = loaded.execute(vec![one]).remove(0).unwrap();
        assert_eq!(output(&result, "Y").1, int32s(&expected));
    }
}

#[test]
fn a_scalar_is_one_element_for_clients() {
    let config = "
        input [ { name: 'X' data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [ { name: 'Y' data_type: TYPE_INT32 dims: [ 1 ] } ]";
    let scalar: Compute = |inputs| {
        assert!(given(inputs, 0).dims.is_empty());
        add_hundred(inputs)
    };
    let mut loaded = load(x_to_y(&[]), scalar, config);
    let result = loaded.execute(vec![numbers(&[1], &[3])]).remove(0).unwrap();
    assert_eq!(output(&result, "Y"), (&[1][..], &int32s(&[103])[..]));
}

#[test]
fn ragged_inputs_are_joined_and_split_again_by_their_shapes() {
    let config = "
        max_batch_size: 8
        input [ { name: 'X' data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true } ]
        output [ { name: 'Y' data_type: TYPE_INT32 dims: [ -1 ] } ]
        batch_input [ {
          kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: 'ENDS' data_type: TYPE_INT32
          source_input: 'X'
        } ]
        batch_output [ {
          kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: 'Y' source_input: 'X'
        } ]";
    let mut interface = x_to_y(&[-1]);
    interface.inputs.push(info("ENDS", DataType::Int32, &[-1]));
    interface.required_inputs = 2;
    let check: Compute = |inputs| {
        assert_eq!(given(inputs, 0).dims, [6]);
        assert_eq!(given(inputs, 1), Value::int32s(&[3], &[2, 2, 6]));
        add_hundred(inputs)
    };
    let mut loaded = load(interface, check, config);
    let batch =
        vec![numbers(&[1, 2], &[1, 2]), numbers(&[1, 0], &[]), numbers(&[1, 4], &[3, 4, 5, 6])];
    let results: Vec<_> = loaded.execute(batch).into_iter().map(Result::unwrap).collect();
    assert_eq!(output(&results[0], "Y"), (&[1, 2][..], &int32s(&[101, 102])[..]));
    assert_eq!(output(&results[1], "Y"), (&[1, 0][..], &[][..]));
    assert_eq!(output(&results[2], "Y"), (&[1, 4][..], &int32s(&[103, 104, 105, 106])[..]));
}

#[test]
fn strings_are_converted_both_ways() {
    let config = "
        max_batch_size: 4
        input [ { name: 'X' data_type: TYPE_STRING dims: [ -1 ] } ]
        output [ { name: 'Y' data_type: TYPE_STRING dims: [ -1 ] } ]";
    let [input, shown] = ["X", "Y"].map(|name| info(name, DataType::Bytes, &[-1, -1]));
    let double: Compute = |inputs| {
        let input = given(inputs, 0);
        let twice = input.texts().iter().map(|text| text.repeat(2)).collect();
        Ok(vec![Value::strings(&input.dims, twice)])
    };
    let mut loaded = load(interface(vec![input], vec![shown]), double, config);
    let texts = |texts: &[&str]| {
        let count = i64::try_from(texts.len()).unwrap();
        request(vec![tensor("X", DataType::Bytes, &[1, count], framed(texts))])
    };
    let results = loaded.execute(vec![texts(&["a", ""]), texts(&["\u{e4}b\0", "c"])]);
    let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    assert_eq!(output(&results[0], "Y"), (&[1, 2][..], &framed(&["aa", ""])[..]));
    let expected = framed(&["\u{e4}b\0\u{e4}b\0", "cc"]);
    assert_eq!(output(&results[1], "Y"), (&[1, 2][..], &expected[..]));
    let wrong = request(vec![tensor("X", DataType::Bytes, &[1, 2], framed(&["only"]))]);
    assert_eq!(failure(loaded.execute(vec![wrong]).remove(0)), "1 strings for [1,2]");
}

fn accumulator(dims: &[i64]) -> SessionInterface {
    let of = |name| info(name, DataType::Int32, dims);
    interface(vec![of("X"), of("STATE_IN")], vec![of("Y"), of("STATE_OUT")])
}

fn accumulator_config(dims: &str) -> String {
    format!(
        "max_batch_size: 8
         input [ {{ name: 'X' data_type: TYPE_INT32 dims: [ {dims} ] }} ]
         output [ {{ name: 'Y' data_type: TYPE_INT32 dims: [ {dims} ] }} ]
         sequence_batching {{
           state [ {{
             input_name: 'STATE_IN' output_name: 'STATE_OUT' data_type: TYPE_INT32 dims: [ {dims} ]
           }} ]
         }}"
    )
}

/// Adds the state to the input; the sum is both the output and the new state. Fails for a negative
/// number.
fn accumulate(inputs: &[Option<Value>]) -> Result<Vec<Value>, Status> {
    let (input, state) = (given(inputs, 0), given(inputs, 1));
    let (added, before) = (input.numbers(), state.numbers());
    if added.iter().any(|number| *number < 0) {
        return Err(Status::internal("a number below zero"));
    }
    let sums: Vec<i32> = added.iter().zip(&before).map(|(a, b)| a + b).collect();
    Ok(vec![Value::int32s(&input.dims, &sums); 2])
}

#[test]
fn states_stay_in_place_while_their_sequences_continue_together() {
    let mut loaded = load(accumulator(&[-1, 2]), accumulate, &accumulator_config("2"));
    let states = States::new(DataType::Int32, &[1, 2], int32s(&[100, 200]));
    let rows = |values: [[i32; 2]; 2]| -> Vec<(u64, InferenceRequest)> {
        (1..).zip(values.map(|value| numbers(&[1, 2], &value))).collect()
    };
    for (added, expected) in [([1, 2], [101, 202]), ([5, 5], [106, 207])] {
        let results = loaded.step(&states, rows([added, [0, 0]]));
        assert_eq!(output(results[0].as_ref().unwrap(), "Y").1, int32s(&expected));
    }
    // The first run gathered both initial states. The second run found the states that the first
    // one had produced.
    let made = states.state(1).data.host_bytes().unwrap().as_ptr().addr();
    assert_eq!(states.state(2).data.host_bytes().unwrap().as_ptr().addr() - made, 8);
    loaded.step(&states, rows([[0, 0], [0, 0]]));
    assert_eq!(loaded.places()[1], (made, 16));
    // If the order changes, the states are gathered.
    let mut swapped = rows([[0, 0], [0, 0]]);
    swapped.reverse();
    let made = states.state(2).data.host_bytes().unwrap().as_ptr().addr();
    loaded.step(&states, swapped);
    assert_ne!(loaded.places()[1].0, made);
    assert_eq!(states.state(1).data.host_bytes().unwrap()[..], int32s(&[106, 207]));
}

#[test]
fn a_failed_run_leaves_states_unchanged() {
    let mut loaded = load(accumulator(&[-1, 1]), accumulate, &accumulator_config("1"));
    let states = States::new(DataType::Int32, &[1, 1], int32s(&[0]));
    let step = |loaded: &mut TestModel, number| {
        loaded.step(&states, vec![(1, numbers(&[1, 1], &[number]))]).remove(0)
    };
    step(&mut loaded, 4).unwrap();
    assert_eq!(failure(step(&mut loaded, -1)), "a number below zero");
    assert_eq!(output(&step(&mut loaded, 2).unwrap(), "Y").1, int32s(&[6]));
    assert_eq!(*loaded.host.batches.lock().unwrap(), [1, 1]);
}

#[test]
fn states_of_different_sizes_execute_apart() {
    let append: Compute = |inputs| {
        let (input, state) = (given(inputs, 0), given(inputs, 1));
        let [rows, length] = state.dims[..] else { panic!("a matrix") };
        let (added, before) = (input.numbers(), state.numbers());
        let length = usize::try_from(length).unwrap();
        let kept = |row: usize| before[row * length..(row + 1) * length].to_vec();
        let joined: Vec<i32> =
            (0..added.len()).flat_map(|row| [kept(row), vec![added[row]]].concat()).collect();
        let dims = [rows, i64::try_from(length + 1).unwrap()];
        Ok(vec![Value::int32s(&dims, &joined); 2])
    };
    let config = accumulator_config("-1");
    let mut loaded = load(accumulator(&[-1, -1]), append, &config);
    let states = States::new(DataType::Int32, &[1, 0], Vec::new());
    let one = |sequence, number| (sequence, numbers(&[1, 1], &[number]));
    loaded.step(&states, vec![one(1, 10)]);
    let results = loaded.step(&states, vec![one(1, 11), one(2, 20), one(3, 30)]);
    let shown = |index: usize| output(results[index].as_ref().unwrap(), "Y").1.to_vec();
    assert_eq!([shown(0), shown(1), shown(2)], [&[10, 11][..], &[20], &[30]].map(int32s));
    assert_eq!(*loaded.host.batches.lock().unwrap(), [1, 1, 2]);
    assert_eq!(states.state(1).shape.dims(), [1, 2]);
}

#[test]
fn cancelled_requests_are_not_executed() {
    let mut loaded = pairs();
    let cancelled = || {
        let cancel = CancelToken::new();
        cancel.cancel();
        InferenceRequest { cancel, ..numbers(&[1, 2], &[1, 2]) }
    };
    let results = loaded.execute(vec![cancelled(), cancelled()]);
    for result in results {
        let status = result.unwrap_err();
        let expected = (Code::Cancelled, "request cancelled before its execution");
        assert_eq!((status.code(), status.message()), expected);
    }
    assert!(loaded.journal.runs.lock().unwrap().is_empty());
    assert_eq!(*loaded.host.failed.lock().unwrap(), [FailureReason::Canceled; 2]);
    // A batch with at least one live request is executed.
    let results = loaded.execute(vec![cancelled(), numbers(&[1, 2], &[1, 2])]);
    assert!(results[1].is_ok());
}

#[test]
fn the_terminator_is_the_sessions() {
    let mut loaded = pairs();
    let terminator = loaded.instance.terminator().unwrap();
    terminator.terminate();
    let result = loaded.execute(vec![numbers(&[1, 2], &[1, 2])]).remove(0);
    assert_eq!(failure(result), "the run was ended");
    terminator.reset();
    assert!(loaded.execute(vec![numbers(&[1, 2], &[1, 2])])[0].is_ok());
}

#[test]
fn outputs_of_the_wrong_size_or_type_fail_their_requests() {
    let check = |compute: Compute, expected: &str| {
        let mut loaded = load(x_to_y(&[-1, 2]), compute, PAIRS);
        let batch = vec![numbers(&[1, 2], &[1, 2]), numbers(&[1, 2], &[3, 4])];
        for result in loaded.execute(batch) {
            assert_eq!(failure(result), format!("[request id: r] {expected}"));
        }
    };
    check(
        |_| Ok(vec![Value::int32s(&[3, 2], &[0; 6])]),
        "failed to split the output tensor 'Y' in responses: expected batch size of 2 in model \
         output, got shape [3,2]",
    );
    check(
        |_| Ok(vec![Value::strings(&[2, 2], vec![Vec::new(); 4])]),
        "output tensor 'Y' has datatype BYTES, expected INT32",
    );
}

#[test]
fn instances_on_the_cpu_share_a_loaded_model() {
    let loaded = pairs();
    loaded.model.create_instance(&at(Device::Model)).unwrap();
    assert_eq!(loaded.journal.loads.load(std::sync::atomic::Ordering::Relaxed), 1);
    let refused = loaded.model.create_instance(&at(Device::Gpu(2)));
    assert_eq!(failure(refused), "there are no instances on GPUs, such as GPU 2");
}

#[test]
fn a_configuration_that_the_model_contradicts_is_refused() {
    let refused = |interface: SessionInterface, config: &str| {
        failure(try_load(interface, add_hundred, config).map(|_| ()))
    };
    let message = refused(x_to_y(&[-1, 3]), PAIRS);
    assert!(message.contains("the model expects 2 dimensions (shape [-1,3])"), "{message}");
    let message = refused(x_to_y(&[-1, 2]), &PAIRS.replace("'Y'", "'Z'"));
    assert_eq!(message, "unexpected inference output 'Z', allowed outputs are: Y");
}
