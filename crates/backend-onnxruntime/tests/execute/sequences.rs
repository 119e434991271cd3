//! Controls, padding and states.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use galatea_infer::{CancelToken, Code, InferenceRequest, StateTensor};
use galatea_tensor::{Buffer, DataType, Shape};

use crate::support::onnx::{Data, Element, FLOAT, Graph, INT32, INT64, STRING, UINT64};
use crate::support::sequence::{StateStore, named_state, state};
use crate::support::{TestModel, failure, floats, int32s, load, output, request, tensor};

/// Combines the state with `INPUT`. The result is both the new state and `OUTPUT`.
fn accumulator(operator: &str, element: Element, dims: &[i64]) -> Graph {
    Graph::default()
        .input("INPUT", element, dims)
        .input("STATE_IN", element, dims)
        .output("OUTPUT", element, dims)
        .output("STATE_OUT", element, dims)
        .node(operator, &["STATE_IN", "INPUT"], &["STATE_OUT"])
        .node("Identity", &["STATE_OUT"], &["OUTPUT"])
}

fn config(max_batch_size: u32, datatype: &str, dims: &str) -> String {
    format!(
        "max_batch_size: {max_batch_size}
         input [ {{ name: 'INPUT' data_type: {datatype} dims: [ {dims} ] }} ]
         output [ {{ name: 'OUTPUT' data_type: {datatype} dims: [ {dims} ] }} ]
         sequence_batching {{
           state [ {{
             input_name: 'STATE_IN' output_name: 'STATE_OUT' data_type: {datatype} dims: [ {dims} ]
           }} ]
         }}"
    )
}

fn integers(values: &[i32]) -> InferenceRequest {
    let count = i64::try_from(values.len()).unwrap();
    request(vec![tensor("INPUT", DataType::Int32, &[1, count], int32s(values))])
}

fn framed(texts: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    for text in texts {
        data.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
        data.extend(text.as_bytes());
    }
    data
}

/// An accumulator for pairs of integers. Its sequences start at 100 and 200.
fn pairs() -> (TestModel, Arc<StateStore>) {
    let loaded = load(accumulator("Add", INT32, &[-1, 2]), &config(8, "TYPE_INT32", "2"));
    let initial = state(DataType::Int32, &[1, 2], int32s(&[100, 200]));
    (loaded, StateStore::new(vec![initial]))
}

#[test]
fn integer_states_accumulate_in_batches() {
    let (mut loaded, store) = pairs();
    let rows =
        vec![store.row(&loaded, 1, integers(&[1, 2])), store.row(&loaded, 2, integers(&[10, 20]))];
    let results = loaded.steps(rows);
    assert_eq!(output(&results[0], "OUTPUT"), (&[1, 2][..], &int32s(&[101, 202])[..]));
    assert_eq!(output(&results[1], "OUTPUT").1, int32s(&[110, 220]));
    // Batches with other orders and sizes, and a sequence that is just starting.
    let rows = vec![
        store.row(&loaded, 2, integers(&[1, 1])),
        store.row(&loaded, 3, integers(&[5, 6])),
        store.row(&loaded, 1, integers(&[2, 2])),
    ];
    let results = loaded.steps(rows);
    let sums: Vec<_> = results.iter().map(|result| output(result, "OUTPUT").1).collect();
    assert_eq!(sums, [int32s(&[111, 221]), int32s(&[105, 206]), int32s(&[103, 204])]);
    let row = store.row(&loaded, 3, integers(&[1, 1]));
    let results = loaded.steps(vec![row]);
    assert_eq!(output(&results[0], "OUTPUT").1, int32s(&[106, 207]));
    assert_eq!(store.state(3), (vec![1, 2], int32s(&[106, 207])));
    assert_eq!(*loaded.host.batches.lock().unwrap(), [2, 3, 1]);
}

#[test]
fn float_states_accumulate_without_batching() {
    let mut loaded = load(accumulator("Add", FLOAT, &[2]), &config(0, "TYPE_FP32", "2"));
    let store = StateStore::new(vec![state(DataType::Fp32, &[2], floats(&[0., 0.5]))]);
    for (value, expected) in [(1., [1., 1.5]), (2., [3., 3.5])] {
        let input = tensor("INPUT", DataType::Fp32, &[2], floats(&[value, value]));
        let row = store.row(&loaded, 9, request(vec![input]));
        let results = loaded.steps(vec![row]);
        assert_eq!(output(&results[0], "OUTPUT"), (&[2][..], &floats(&expected)[..]));
    }
    assert_eq!(store.state(9), (vec![2], floats(&[3., 3.5])));
}

#[test]
fn a_scalar_state_has_one_element() {
    let config = config(0, "TYPE_FP32", "1");
    let mut loaded = load(accumulator("Add", FLOAT, &[]), &config);
    let store = StateStore::new(vec![state(DataType::Fp32, &[1], floats(&[10.]))]);
    for expected in [11., 12.] {
        let input = tensor("INPUT", DataType::Fp32, &[1], floats(&[1.]));
        let row = store.row(&loaded, 9, request(vec![input]));
        let results = loaded.steps(vec![row]);
        assert_eq!(output(&results[0], "OUTPUT"), (&[1][..], &floats(&[expected])[..]));
        assert_eq!(store.state(9), (vec![1], floats(&[expected])));
    }
}

#[test]
fn string_states_accumulate() {
    let graph = accumulator("StringConcat", STRING, &[-1, 2]);
    let mut loaded = load(graph, &config(4, "TYPE_STRING", "2"));
    let store = StateStore::new(vec![state(DataType::Bytes, &[1, 2], framed(&["", "\u{e4}"]))]);
    let texts =
        |texts: [&str; 2]| request(vec![tensor("INPUT", DataType::Bytes, &[1, 2], framed(&texts))]);
    for (a, b, expected) in [
        (["a", "b"], ["x", ""], [framed(&["a", "\u{e4}b"]), framed(&["x", "\u{e4}"])]),
        (["cc", ""], ["y", "z"], [framed(&["acc", "\u{e4}b"]), framed(&["xy", "\u{e4}z"])]),
    ] {
        let rows = vec![store.row(&loaded, 1, texts(a)), store.row(&loaded, 2, texts(b))];
        let results = loaded.steps(rows);
        for (result, expected) in results.iter().zip(expected) {
            assert_eq!(output(result, "OUTPUT"), (&[1, 2][..], &expected[..]));
        }
    }
    assert_eq!(store.state(1), (vec![1, 2], framed(&["acc", "\u{e4}b"])));
}

/// `A_OUT` is hidden, but `B_OUT` is also an output.
#[test]
fn states_may_be_visible_or_hidden() {
    let graph = Graph::default()
        .input("INPUT", INT32, &[-1, 1])
        .input("A_IN", INT32, &[-1, 1])
        .input("B_IN", INT32, &[-1, 1])
        .output("A_OUT", INT32, &[-1, 1])
        .output("B_OUT", INT32, &[-1, 1])
        .output("OUTPUT", INT32, &[-1, 1])
        .node("Add", &["A_IN", "INPUT"], &["A_OUT"])
        .node("Sub", &["B_IN", "INPUT"], &["B_OUT"])
        .node("Mul", &["A_OUT", "B_OUT"], &["OUTPUT"]);
    let config = "
        max_batch_size: 4
        input [ { name: 'INPUT' data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [
          { name: 'OUTPUT' data_type: TYPE_INT32 dims: [ 1 ] },
          { name: 'B_OUT' data_type: TYPE_INT32 dims: [ 1 ] }
        ]
        sequence_batching { state [
          { input_name: 'A_IN' output_name: 'A_OUT' data_type: TYPE_INT32 dims: [ 1 ] },
          { input_name: 'B_IN' output_name: 'B_OUT' data_type: TYPE_INT32 dims: [ 1 ] }
        ] }";
    let mut loaded = load(graph, config);
    let store = StateStore::new(vec![
        named_state(("A_IN", "A_OUT"), DataType::Int32, &[1, 1], int32s(&[0])),
        named_state(("B_IN", "B_OUT"), DataType::Int32, &[1, 1], int32s(&[10])),
    ]);
    let mut product_only = integers(&[2]);
    product_only.outputs = vec![String::from("OUTPUT")];
    let rows = vec![store.row(&loaded, 1, integers(&[1])), store.row(&loaded, 2, product_only)];
    let results = loaded.steps(rows);
    let named = |index: usize| -> Vec<(&str, &[u8])> {
        let outputs = results[index].outputs.iter();
        outputs.map(|output| (&*output.name, &output.data.host_bytes().unwrap()[..])).collect()
    };
    assert_eq!(named(0), [("B_OUT", &int32s(&[9])[..]), ("OUTPUT", &int32s(&[9])[..])]);
    assert_eq!(named(1), [("OUTPUT", &int32s(&[16])[..])]);
    let values = |sequence: u64| -> Vec<Vec<u8>> {
        let states = store.states(sequence);
        states.iter().map(|state| state.data.host_bytes().unwrap().to_vec()).collect()
    };
    assert_eq!(values(1), [int32s(&[1]), int32s(&[9])]);
    assert_eq!(values(2), [int32s(&[2]), int32s(&[8])]);
    // A request can't get a hidden output.
    let mut hidden = integers(&[1]);
    hidden.outputs = vec![String::from("A_OUT")];
    let row = store.row(&loaded, 1, hidden);
    assert!(loaded.steps(vec![row])[0].outputs.is_empty());
    assert_eq!(values(1), [int32s(&[2]), int32s(&[8])]);
}

/// The state is the history of the inputs.
fn history() -> (TestModel, Arc<StateStore>) {
    let graph = Graph::default()
        .input("INPUT", INT32, &[-1, 1])
        .input("STATE_IN", INT32, &[-1, -1])
        .output("STATE_OUT", INT32, &[-1, -1])
        .output("SUM", INT32, &[-1, 1])
        .initializer("axes", INT64, &[1], Data::Here(&1_i64.to_le_bytes()))
        .node_with("Concat", &["STATE_IN", "INPUT"], &["STATE_OUT"], &[("axis", 1)])
        .node("ReduceSum", &["STATE_OUT", "axes"], &["SUM"]);
    let config = "
        max_batch_size: 8
        input [ { name: 'INPUT' data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [ { name: 'SUM' data_type: TYPE_INT32 dims: [ 1 ] } ]
        sequence_batching { state [ {
          input_name: 'STATE_IN' output_name: 'STATE_OUT' data_type: TYPE_INT32 dims: [ -1 ]
        } ] }";
    let initial = state(DataType::Int32, &[1, 1], int32s(&[0]));
    (load(graph, config), StateStore::new(vec![initial]))
}

#[test]
fn a_batch_with_states_of_different_shapes_executes_in_several_runs() {
    let (mut loaded, store) = history();
    let row = store.row(&loaded, 1, integers(&[10]));
    loaded.steps(vec![row]);
    // The first sequence's state now has two elements, while the others have one.
    let rows = vec![
        store.row(&loaded, 1, integers(&[20])),
        store.padding(integers(&[0])),
        store.row(&loaded, 2, integers(&[5])),
        store.row(&loaded, 3, integers(&[7])),
    ];
    let results = loaded.execute_rows(rows);
    let sum = |index: usize| output(results[index].as_ref().unwrap().as_ref().unwrap(), "SUM").1;
    assert_eq!([sum(0), sum(2), sum(3)], [int32s(&[30]), int32s(&[5]), int32s(&[7])]);
    assert!(results[1].is_none());
    assert_eq!(store.state(1), (vec![1, 3], int32s(&[0, 10, 20])));
    assert_eq!(store.state(2), (vec![1, 2], int32s(&[0, 5])));
    assert_eq!(store.state(3), (vec![1, 2], int32s(&[0, 7])));
    // Padding is not executed if its shape matches no other row.
    let rows = vec![
        store.padding(integers(&[0])),
        store.row(&loaded, 1, integers(&[1])),
        store.row(&loaded, 2, integers(&[2])),
    ];
    assert!(loaded.execute_rows(rows).iter().flatten().all(Result::is_ok));
    let (first, second) = (store.state(1), store.state(2));
    assert_eq!(first, (vec![1, 4], int32s(&[0, 10, 20, 1])));
    assert_eq!(second, (vec![1, 3], int32s(&[0, 5, 2])));
    assert_eq!(*loaded.host.batches.lock().unwrap(), [1, 1, 3, 1, 1]);
    assert_eq!(loaded.host.succeeded.load(Ordering::Relaxed), 6);
}

#[test]
fn a_batch_with_states_of_equal_shapes_executes_in_one_run() {
    let (mut loaded, store) = history();
    for step in 1..4 {
        let rows = (1..4).map(|sequence| {
            store.row(&loaded, sequence, integers(&[i32::try_from(sequence).unwrap()]))
        });
        let results = loaded.steps(rows.collect());
        for (result, sequence) in results.iter().zip(1..) {
            assert_eq!(output(result, "SUM").1, int32s(&[sequence * step]));
        }
    }
    assert_eq!(store.state(2), (vec![1, 4], int32s(&[0, 2, 2, 2])));
    assert_eq!(*loaded.host.batches.lock().unwrap(), [3, 3, 3]);
}

#[test]
fn padding_keeps_the_positions_of_rows() {
    let (mut loaded, store) = pairs();
    let rows = vec![
        store.padding(integers(&[7, 7])),
        store.row(&loaded, 1, integers(&[1, 2])),
        store.padding(integers(&[7, 7])),
        store.row(&loaded, 2, integers(&[3, 4])),
    ];
    let results = loaded.execute_rows(rows);
    let sum = |index: usize| output(results[index].as_ref().unwrap().as_ref().unwrap(), "OUTPUT").1;
    assert_eq!([sum(1), sum(3)], [int32s(&[101, 202]), int32s(&[103, 204])]);
    assert!(results[0].is_none() && results[2].is_none());
    assert_eq!(*loaded.host.batches.lock().unwrap(), [4]);
    assert_eq!(loaded.host.succeeded.load(Ordering::Relaxed), 2);
    assert!(loaded.host.failed.lock().unwrap().is_empty());
}

#[test]
fn a_failed_response_leaves_its_state_unchanged() {
    let times: Vec<u8> = [2_i64, 1].iter().flat_map(|times| times.to_le_bytes()).collect();
    let graph = accumulator("Add", INT32, &[-1, 2])
        .output("TWICE", INT32, &[-1, 2])
        .initializer("times", INT64, &[2], Data::Here(&times))
        .node("Tile", &["INPUT", "times"], &["TWICE"]);
    let twice = "output [ { name: 'TWICE' data_type: TYPE_INT32 dims: [ 2 ] } ]";
    let config = format!("{} {twice}", config(4, "TYPE_INT32", "2"));
    let mut loaded = load(graph, &config);
    let store = StateStore::new(vec![state(DataType::Int32, &[1, 2], int32s(&[0, 0]))]);
    let mut sum_only = integers(&[1, 2]);
    sum_only.outputs = vec![String::from("OUTPUT")];
    let rows = vec![store.padding(integers(&[7, 7])), store.row(&loaded, 1, sum_only)];
    let results = loaded.execute_rows(rows);
    assert_eq!(output(results[1].as_ref().unwrap().as_ref().unwrap(), "OUTPUT").1, int32s(&[1, 2]));
    // A request that wants the output gets an error, and its sequence keeps its state.
    let row = store.row(&loaded, 1, integers(&[3, 4]));
    let (code, message) = failure(loaded.execute_rows(vec![row]).remove(0).unwrap());
    assert_eq!(code, Code::Unsupported);
    assert!(message.contains("'TWICE'"), "{message}");
    assert_eq!(store.state(1), (vec![1, 2], int32s(&[1, 2])));
}

#[test]
fn controls_are_inputs() {
    let graph = Graph::default()
        .input("INPUT", INT32, &[-1, 1])
        .input("START", INT32, &[-1, 1])
        .input("ID", UINT64, &[-1, 1])
        .output("SUM", INT32, &[-1, 1])
        .output("WHO", UINT64, &[-1, 1])
        .node("Add", &["INPUT", "START"], &["SUM"])
        .node("Identity", &["ID"], &["WHO"]);
    let config = "
        max_batch_size: 4
        input [ { name: 'INPUT' data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [
          { name: 'SUM' data_type: TYPE_INT32 dims: [ 1 ] },
          { name: 'WHO' data_type: TYPE_UINT64 dims: [ 1 ] }
        ]
        sequence_batching { control_input [
          { name: 'START'
            control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
          { name: 'ID'
            control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
        ] }";
    let mut loaded = load(graph, config);
    let with_controls = |value: i32, start: i32, id: u64| {
        let mut request = integers(&[value]);
        request.inputs.push(tensor("START", DataType::Int32, &[1, 1], int32s(&[start])));
        let id = id.to_le_bytes().to_vec();
        request.inputs.push(tensor("ID", DataType::Uint64, &[1, 1], id));
        request
    };
    let results = loaded.execute(vec![
        with_controls(10, 1, 7),
        with_controls(20, 0, u64::MAX),
        with_controls(30, 1, 0),
    ]);
    for (result, (sum, id)) in results.into_iter().zip([(11, 7), (20, u64::MAX), (31, 0)]) {
        let result = result.unwrap();
        assert_eq!(output(&result, "SUM"), (&[1, 1][..], &int32s(&[sum])[..]));
        assert_eq!(output(&result, "WHO").1, id.to_le_bytes());
    }
}

/// The state is an index into a table. An index that is out of range makes the run fail.
#[test]
fn a_failed_run_leaves_all_states_unchanged() {
    let graph = Graph::default()
        .input("INPUT", INT32, &[-1, 1])
        .input("STATE_IN", INT32, &[-1, 1])
        .output("STATE_OUT", INT32, &[-1, 1])
        .output("PICK", FLOAT, &[-1, 1])
        .initializer("table", FLOAT, &[3], Data::Here(&floats(&[5., 6., 7.])))
        .node("Add", &["STATE_IN", "INPUT"], &["STATE_OUT"])
        .node("Gather", &["table", "STATE_OUT"], &["PICK"]);
    let config = "
        max_batch_size: 4
        input [ { name: 'INPUT' data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [ { name: 'PICK' data_type: TYPE_FP32 dims: [ 1 ] } ]
        sequence_batching { state [ {
          input_name: 'STATE_IN' output_name: 'STATE_OUT' data_type: TYPE_INT32 dims: [ 1 ]
        } ] }";
    let mut loaded = load(graph, config);
    let store = StateStore::new(vec![state(DataType::Int32, &[1, 1], int32s(&[0]))]);
    let step = |loaded: &mut TestModel, values: [i32; 2]| {
        let rows = vec![
            store.row(loaded, 1, integers(&[values[0]])),
            store.row(loaded, 2, integers(&[values[1]])),
        ];
        loaded.execute_rows(rows)
    };
    assert!(step(&mut loaded, [1, 2]).into_iter().flatten().all(|result| result.is_ok()));
    for result in step(&mut loaded, [1, 9]) {
        assert_eq!(failure(result.unwrap()).0, Code::Internal);
    }
    assert_eq!([store.state(1).1, store.state(2).1], [int32s(&[1]), int32s(&[2])]);
    let results = step(&mut loaded, [1, 0]);
    assert_eq!(output(results[0].as_ref().unwrap().as_ref().unwrap(), "PICK").1, floats(&[7.]));
}

#[test]
fn a_batch_of_cancelled_requests_and_padding_is_not_run() {
    let (mut loaded, store) = pairs();
    let cancel = CancelToken::new();
    cancel.cancel();
    let cancelled = InferenceRequest { cancel, ..integers(&[1, 2]) };
    let rows = vec![store.padding(integers(&[7, 7])), store.row(&loaded, 1, cancelled)];
    let result = loaded.execute_rows(rows).remove(1).unwrap();
    assert_eq!(failure(result).0, Code::Cancelled);
    assert!(loaded.host.batches.lock().unwrap().is_empty());
    assert_eq!(store.state(1), (vec![1, 2], int32s(&[100, 200])));
}

/// The states are slices of the library's tensor, in batch order. Unit tests in `instance::inputs`
/// check that the next batch reads them in place.
#[test]
fn states_are_not_copied_out_of_a_batch() {
    let graph = accumulator("Add", INT32, &[-1, 2]);
    let visible = "output [ { name: 'STATE_OUT' data_type: TYPE_INT32 dims: [ 2 ] } ]";
    let mut loaded = load(graph, &format!("{} {visible}", config(8, "TYPE_INT32", "2")));
    let store = StateStore::new(vec![state(DataType::Int32, &[1, 2], int32s(&[0, 0]))]);
    for sequences in [vec![4, 2, 3], vec![4, 2, 3], vec![2]] {
        let rows =
            sequences.iter().map(|&sequence| store.row(&loaded, sequence, integers(&[1, 2])));
        let results = loaded.steps(rows.collect());
        let row = int32s(&[1, 2]).len();
        let start = store.address(sequences[0]);
        for (place, (result, &sequence)) in results.iter().zip(&sequences).enumerate() {
            assert_eq!(store.address(sequence), start + place * row);
            let shown = output(result, "STATE_OUT").1.as_ptr().addr();
            assert_eq!(shown, store.address(sequence));
        }
    }
    assert_eq!(store.state(2).1, int32s(&[3, 6]));
}

/// Bytes that decrement a counter when they are dropped.
struct DropCounter(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for DropCounter {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn a_new_state_replaces_and_frees_the_old_one() {
    let setting = "use_same_buffer_for_input_output: true";
    let config =
        config(4, "TYPE_INT32", "2").replace("input_name", &format!("{setting} input_name"));
    let mut loaded = load(accumulator("Add", INT32, &[-1, 2]), &config);
    let alive = Arc::new(AtomicUsize::new(1));
    let first = Bytes::from_owner(DropCounter(int32s(&[1, 2]), alive.clone()));
    let initial = StateTensor {
        data: Buffer::from_bytes(first),
        ..state(DataType::Int32, &[1, 2], Vec::new())
    };
    let store = StateStore::new(Vec::new());
    galatea_infer::SequenceReleaseHook::released(&*store, 1, vec![initial]);
    let row = store.row(&loaded, 1, integers(&[1, 1]));
    assert_eq!(alive.load(Ordering::Relaxed), 1);
    loaded.steps(vec![row]);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
    assert_eq!(store.state(1).1, int32s(&[2, 3]));
}

/// The library then returns its input's memory, which consists of two adjacent rows here.
#[test]
fn a_graph_may_return_its_state_unchanged() {
    let graph = Graph::default()
        .input("INPUT", INT32, &[-1, 2])
        .input("SAME", INT32, &[-1, 2])
        .output("OUTPUT", INT32, &[-1, 2])
        .output("SAME", INT32, &[-1, 2])
        .node("Add", &["INPUT", "SAME"], &["OUTPUT"]);
    let config =
        config(4, "TYPE_INT32", "2").replace("STATE_IN", "SAME").replace("STATE_OUT", "SAME");
    let mut loaded = load(graph, &config);
    let store = StateStore::new(Vec::new());
    let both = Bytes::from(int32s(&[1, 2, 3, 4]));
    let start = both.as_ptr().addr();
    for (sequence, range) in [(1, 0..8), (2, 8..16)] {
        let initial = StateTensor {
            shape: Shape::new(&[1, 2]).unwrap(),
            data: Buffer::from_bytes(both.slice(range)),
            ..named_state(("SAME", "SAME"), DataType::Int32, &[1, 2], Vec::new())
        };
        galatea_infer::SequenceReleaseHook::released(&*store, sequence, vec![initial]);
    }
    drop(both);
    let rows = [1, 2].map(|sequence| store.row(&loaded, sequence, integers(&[10, 10])));
    let results = loaded.steps(rows.into());
    assert_eq!(output(&results[1], "OUTPUT").1, int32s(&[13, 14]));
    assert_eq!([store.state(1).1, store.state(2).1], [int32s(&[1, 2]), int32s(&[3, 4])]);
    assert_ne!(store.address(1), start);
    assert_eq!(store.address(2), store.address(1) + 8);
}

#[test]
fn a_fixed_batch_dimension_is_allowed_with_a_max_batch_size_of_one() {
    let graph = Graph::default()
        .input("INPUT", INT32, &[-1, 2])
        .input("STATE_IN", INT32, &[1, 2])
        .output("OUTPUT", INT32, &[-1, 2])
        .output("STATE_OUT", INT32, &[1, 2])
        .node("Add", &["STATE_IN", "INPUT"], &["STATE_OUT"])
        .node("Identity", &["INPUT"], &["OUTPUT"]);
    let mut loaded = load(graph, &config(1, "TYPE_INT32", "2"));
    let store = StateStore::new(vec![state(DataType::Int32, &[1, 2], int32s(&[0, 0]))]);
    let row = store.row(&loaded, 1, integers(&[1, 2]));
    loaded.steps(vec![row]);
    assert_eq!(store.state(1), (vec![1, 2], int32s(&[1, 2])));
}
