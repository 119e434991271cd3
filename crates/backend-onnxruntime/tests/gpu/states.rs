//! States of sequences, which stay in the memory of the GPU that made them.

use std::sync::Arc;

use galatea_infer::InferenceRequest;
use galatea_tensor::DataType;

use crate::stand_ins::{Gpus, on_gpu, report, with_stand_ins};
use crate::support::onnx::{Graph, INT32};
use crate::support::sequence::{StateStore, state};
use crate::support::{Files, TestModel, int32s, output, request, tensor};

fn accumulator() -> Graph {
    Graph::default()
        .input("INPUT", INT32, &[-1, 2])
        .input("STATE_IN", INT32, &[-1, 2])
        .output("OUTPUT", INT32, &[-1, 2])
        .output("STATE_OUT", INT32, &[-1, 2])
        .node("Add", &["STATE_IN", "INPUT"], &["STATE_OUT"])
        .node("Identity", &["STATE_OUT"], &["OUTPUT"])
}

fn config(output: &str) -> String {
    format!(
        "max_batch_size: 8
         input [ {{ name: 'INPUT' data_type: TYPE_INT32 dims: [ 2 ] }} ]
         output [ {{ name: '{output}' data_type: TYPE_INT32 dims: [ 2 ] }} ]
         instance_group [ {{ kind: KIND_GPU }} ]
         sequence_batching {{
           state [ {{
             input_name: 'STATE_IN' output_name: 'STATE_OUT' data_type: TYPE_INT32 dims: [ 2 ]
           }} ]
         }}"
    )
}

fn pairs(gpus: &Gpus, files: &Files, output: &str) -> (TestModel, Arc<StateStore>) {
    let loaded = gpus.load(files, &config(output));
    let initial = state(DataType::Int32, &[1, 2], int32s(&[100, 200]));
    (loaded, StateStore::new(vec![initial]))
}

fn integers(values: &[i32]) -> InferenceRequest {
    request(vec![tensor("INPUT", DataType::Int32, &[1, 2], int32s(values))])
}

/// The GPU and the content of a sequence's state.
fn kept(gpus: &Gpus, store: &StateStore, sequence: u64) -> (u32, Vec<u8>) {
    let [state] = store.states(sequence).try_into().unwrap();
    (state.data.device().unwrap().device, gpus.download(&state.data))
}

#[test]
// row: ONNX-06
fn states_stay_on_the_gpu() {
    with_stand_ins("states::states_stay_on_the_gpu", &[], || {
        let gpus = Gpus::new();
        let files = Files::model(accumulator());
        let (mut loaded, store) = pairs(&gpus, &files, "OUTPUT");
        let rows = vec![
            store.row(&loaded, 1, integers(&[1, 2])),
            store.row(&loaded, 2, integers(&[10, 20])),
        ];
        let results = loaded.steps(rows);
        assert_eq!(output(&results[1], "OUTPUT").1, int32s(&[110, 220]));
        assert_eq!(kept(&gpus, &store, 1), (0, int32s(&[101, 202])));
        assert_eq!(
            report("onnxruntime").pop().unwrap(),
            "run 1 inputs 2 of 2 on device, outputs hd"
        );
        // In another order, with a sequence that begins.
        let rows = vec![
            store.row(&loaded, 2, integers(&[1, 1])),
            store.row(&loaded, 3, integers(&[5, 6])),
            store.row(&loaded, 1, integers(&[2, 2])),
        ];
        let results = loaded.steps(rows);
        let sums: Vec<_> = results.iter().map(|result| output(result, "OUTPUT").1).collect();
        assert_eq!(sums, [int32s(&[111, 221]), int32s(&[105, 206]), int32s(&[103, 204])]);
    });
}

#[test]
fn a_state_that_clients_want_is_copied_for_them() {
    with_stand_ins("states::a_state_that_clients_want_is_copied_for_them", &[], || {
        let gpus = Gpus::new();
        let files = Files::model(accumulator());
        let (mut loaded, store) = pairs(&gpus, &files, "STATE_OUT");
        for sum in [101, 102] {
            let rows = vec![store.row(&loaded, 1, integers(&[1, 0]))];
            let results = loaded.steps(rows);
            assert_eq!(output(&results[0], "STATE_OUT").1, int32s(&[sum, 200]));
            assert_eq!(kept(&gpus, &store, 1), (0, int32s(&[sum, 200])));
        }
    });
}

#[test]
fn a_sequence_that_moves_takes_its_state_along() {
    with_stand_ins("states::a_sequence_that_moves_takes_its_state_along", &[], || {
        let gpus = Gpus::new();
        let files = Files::model(accumulator());
        let (mut loaded, store) = pairs(&gpus, &files, "OUTPUT");
        let rows = vec![store.row(&loaded, 1, integers(&[1, 1]))];
        loaded.steps(rows);
        let first =
            std::mem::replace(&mut loaded.instance, on_gpu(loaded.model.as_ref(), 1).unwrap());
        // The state outlives the session that made it.
        drop(first);
        let rows = vec![store.row(&loaded, 1, integers(&[1, 1]))];
        let results = loaded.steps(rows);
        assert_eq!(output(&results[0], "OUTPUT").1, int32s(&[102, 202]));
        assert_eq!(kept(&gpus, &store, 1), (1, int32s(&[102, 202])));
    });
}

/// The graph returns its input as its state.
#[test]
fn a_state_that_is_an_input_is_copied() {
    with_stand_ins("states::a_state_that_is_an_input_is_copied", &[], || {
        let gpus = Gpus::new();
        let graph = Graph::default()
            .input("INPUT", INT32, &[-1, 2])
            .input("STATE_IN", INT32, &[-1, 2])
            .output("OUTPUT", INT32, &[-1, 2])
            .output("STATE_OUT", INT32, &[-1, 2])
            .node("Add", &["STATE_IN", "INPUT"], &["OUTPUT"])
            .node("Identity", &["INPUT"], &["STATE_OUT"]);
        let mut loaded = gpus.load(&Files::model(graph), &config("OUTPUT"));
        let store = StateStore::new(vec![state(DataType::Int32, &[1, 2], int32s(&[0, 0]))]);
        for (input, sum) in [(1, 1), (2, 3), (5, 7)] {
            let rows = vec![store.row(&loaded, 1, integers(&[input, input]))];
            let results = loaded.steps(rows);
            assert_eq!(output(&results[0], "OUTPUT").1, int32s(&[sum, sum]));
        }
    });
}
