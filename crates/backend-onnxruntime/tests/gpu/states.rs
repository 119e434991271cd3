//! Sequence states, which stay in the memory of the GPU that produced them.

use std::sync::Arc;

use galatea_infer::InferenceRequest;
use galatea_tensor::DataType;

use crate::stand_ins::{Gpus, on_gpu, peek, report, with_stand_ins};
use crate::support::onnx::{Graph, INT32};
use crate::support::sequence::{StateStore, named_state, state};
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

/// The GPU and the contents of a sequence's state.
fn kept(gpus: &Gpus, store: &StateStore, sequence: u64) -> (u32, Vec<u8>) {
    let [state] = store.states(sequence).try_into().unwrap();
    (state.data.device_region().unwrap().device, gpus.download(&state.data))
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
        // The rows are in a different order and include a sequence that is just starting.
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
        // The state outlives the session that produced it.
        drop(first);
        let rows = vec![store.row(&loaded, 1, integers(&[1, 1]))];
        let results = loaded.steps(rows);
        assert_eq!(output(&results[0], "OUTPUT").1, int32s(&[102, 202]));
        assert_eq!(kept(&gpus, &store, 1), (1, int32s(&[102, 202])));
    });
}

/// The graph returns its input as the new state.
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

const BLOCK: usize = 2 << 20;

/// The new state is the old state with the input appended.
fn growing_list() -> Graph {
    Graph::default()
        .input("INPUT", INT32, &[-1, -1])
        .input("STATE_IN", INT32, &[-1, -1])
        .output("STATE_OUT", INT32, &[-1, -1])
        .output("OUTPUT", INT32, &[-1, -1])
        .node_with("Concat", &["STATE_IN", "INPUT"], &["STATE_OUT"], &[("axis", 1)])
        .node("Identity", &["INPUT"], &["OUTPUT"])
}

fn growing_config() -> String {
    config("OUTPUT").replace("[ 2 ]", "[ -1 ]").replace(
        "output_name: 'STATE_OUT'",
        "output_name: 'STATE_OUT'
         use_same_buffer_for_input_output: true use_growable_memory: true",
    )
}

fn list_of(count: usize, value: i32) -> InferenceRequest {
    let dims = [1, i64::try_from(count).unwrap()];
    request(vec![tensor("INPUT", DataType::Int32, &dims, int32s(&vec![value; count]))])
}

/// The location of a sequence's state.
fn address(store: &StateStore, sequence: u64) -> (u32, u64, usize) {
    let [state] = store.states(sequence).try_into().unwrap();
    let place = state.data.device_region().unwrap();
    (place.device, place.address, place.byte_size)
}

#[test]
// row: IMP-09
fn a_state_grows_in_place() {
    with_stand_ins("states::a_state_grows_in_place", &[], || {
        let gpus = Gpus::new();
        gpus.devices.limit_growable_buffers(&[(0, 2 * BLOCK as u64 - 1)].into());
        let mut loaded = gpus.load(&Files::model(growing_list()), &growing_config());
        let store = StateStore::new(vec![state(DataType::Int32, &[1, 1], int32s(&[7]))]);
        let mut places = Vec::new();
        let mut expected = [int32s(&[7]), int32s(&[7])];
        for step in 0..3 {
            let rows = (0..2).map(|one| store.row(&loaded, one, list_of(100_000, step)));
            loaded.steps(rows.collect());
            for (sequence, expected) in (0..2).zip(&mut expected) {
                expected.extend(int32s(&vec![step; 100_000]));
                assert_eq!(kept(&gpus, &store, sequence), (0, expected.clone()));
                places.push(address(&store, sequence).1);
            }
        }
        assert_eq!(places[0..2], places[2..4], "the address stays");
        assert_eq!(places[0..2], places[4..6]);
        assert_ne!(places[0], places[1]);
        // Three blocks exceed the configured two.
        let rows = vec![
            store.row(&loaded, 0, list_of(1_000_000, 9)),
            store.row(&loaded, 1, list_of(1_000_000, 9)),
        ];
        for result in loaded.execute_rows(rows) {
            let status = result.unwrap().unwrap_err();
            let bytes = 4 * 1_300_001;
            let text = format!(
                "state 'STATE_OUT': Failed to resize the GrowableMemory. The requested size is \
                 larger than the virtual page size. requested size: {bytes}, \
                 virtual_address_size:{}",
                2 * BLOCK
            );
            assert!(status.message().ends_with(&text), "{}", status.message());
        }
        assert_eq!(kept(&gpus, &store, 0), (0, expected[0].clone()), "nothing was written");
    });
}

#[test]
// row: IMP-09
fn a_growing_state_moves_to_another_gpu() {
    with_stand_ins("states::a_growing_state_moves_to_another_gpu", &[], || {
        let gpus = Gpus::new();
        let files = Files::model(growing_list());
        let mut loaded = gpus.load(&files, &growing_config());
        let store = StateStore::new(vec![state(DataType::Int32, &[1, 1], int32s(&[0]))]);
        let row = store.row(&loaded, 1, list_of(2, 1));
        loaded.steps(vec![row]);
        let first =
            std::mem::replace(&mut loaded.instance, on_gpu(loaded.model.as_ref(), 1).unwrap());
        drop(first);
        for value in [2, 3] {
            let row = store.row(&loaded, 1, list_of(1, value));
            loaded.steps(vec![row]);
        }
        assert_eq!(kept(&gpus, &store, 1), (1, int32s(&[0, 1, 1, 2, 3])));
    });
}

/// There is no room for the second state, so the first one also stays unchanged.
#[test]
// row: IMP-09
fn a_request_without_room_changes_no_state() {
    let memory = ((64 << 20) + 2 * BLOCK).to_string();
    let test = "states::a_request_without_room_changes_no_state";
    with_stand_ins(test, &[("STAND_IN_MEMORY", &memory)], || {
        let gpus = Gpus::new();
        let graph = growing_list()
            .input("OTHER_IN", INT32, &[-1, -1])
            .output("OTHER_OUT", INT32, &[-1, -1])
            .node_with("Concat", &["OTHER_IN", "INPUT"], &["OTHER_OUT"], &[("axis", 1)]);
        let config = growing_config().replacen(
            "state [ {",
            "state [ { input_name: 'OTHER_IN' output_name: 'OTHER_OUT' data_type: TYPE_INT32
               dims: [ -1 ] use_same_buffer_for_input_output: true use_growable_memory: true },
             {",
            1,
        );
        let mut loaded = gpus.load(&Files::model(graph), &config);
        let states = [("OTHER_IN", "OTHER_OUT"), ("STATE_IN", "STATE_OUT")];
        let states = states.map(|names| named_state(names, DataType::Int32, &[1, 1], int32s(&[0])));
        let store = StateStore::new(states.into());
        let row = store.row(&loaded, 1, list_of(1, 1));
        let response = loaded.execute_rows(vec![row]).remove(0).unwrap();
        let status = response.unwrap_err();
        assert!(status.message().contains("out of memory"), "{}", status.message());
        assert!(store.states(1).iter().all(|state| state.data.device_region().is_none()));
    });
}

#[test]
// row: IMP-09
fn a_state_has_grown_when_its_request_ends() {
    let variables = [("STAND_IN_READABLE", "1"), ("STAND_IN_DELAY_US", "20000")];
    with_stand_ins("states::a_state_has_grown_when_its_request_ends", &variables, || {
        let gpus = Gpus::new();
        let mut loaded = gpus.load(&Files::model(growing_list()), &growing_config());
        let store = StateStore::new(vec![state(DataType::Int32, &[1, 1], int32s(&[0]))]);
        for (step, expected) in [(1, &[0, 1][..]), (2, &[0, 1, 2])] {
            let row = store.row(&loaded, 1, list_of(1, step));
            loaded.steps(vec![row]);
            let [state] = store.states(1).try_into().unwrap();
            assert_eq!(peek(&state.data), int32s(expected));
        }
    });
}
