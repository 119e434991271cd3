//! Ragged inputs, batch inputs, and outputs that are split by shapes.
//!
//! The expected values in `every_kind_of_batch_input_is_computed` were compared with Triton's.

use galatea_infer::{Code, InferenceRequest, InferenceResponse};
use galatea_tensor::DataType;

use crate::support::onnx::{Data, Element, FLOAT, Graph, INT32, INT64, STRING};
use crate::support::{failure, floats, load, output, request, tensor};

/// The batch input kinds whose tensors have one dimension.
const KINDS: [&str; 5] = [
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_ITEM_SHAPE_FLATTEN",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
];
const ITEM_SHAPE: &str = "BATCH_ITEM_SHAPE";

/// The input and output names for a kind.
fn names(kind: &str) -> [String; 2] {
    ["IN", "OUT"].map(|side| format!("{kind}_{side}"))
}

/// A graph that returns, for every batch element, all elements of `RAGGED` and of each batch input.
/// If only a tensor's shape matters, the graph returns its size instead.
fn shapes_graph(element: Element) -> Graph {
    let numbers = |values: &[i64]| -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    };
    let [item, item_shown] = names(ITEM_SHAPE);
    let mut graph = Graph::default()
        .input("RAGGED", FLOAT, &[-1])
        .input(&item, element, &[-1, 2])
        .output("FLAT", FLOAT, &[-1, -1])
        .output(&item_shown, element, &[-1, 2])
        .initializer("first", INT64, &[1], Data::Here(&numbers(&[0])))
        .initializer("second", INT64, &[1], Data::Here(&numbers(&[1])))
        .initializer("row", INT64, &[2], Data::Here(&numbers(&[1, -1])))
        .node("Identity", &[&item], &[&item_shown])
        .node("Shape", &[&item], &["size"])
        .node("Slice", &["size", "first", "second"], &["batch"])
        .node_with("Concat", &["batch", "second"], &["column"], &[("axis", 0)])
        .node("Reshape", &["RAGGED", "row"], &["flat"])
        .node("Expand", &["flat", "column"], &["FLAT"]);
    for kind in KINDS {
        let [name, shown] = names(kind);
        let is_shape = kind.ends_with("AS_SHAPE");
        let shown_element = if is_shape { INT64 } else { element };
        let values = format!("{kind}_values");
        let (row, operator) = (format!("{kind}_row"), if is_shape { "Shape" } else { "Identity" });
        graph = graph
            .input(&name, element, &[-1])
            .output(&shown, shown_element, &[-1, -1])
            .node(operator, &[&name], &[&values])
            .node("Reshape", &[&values, "row"], &[&row])
            .node("Expand", &[&row, "column"], &[&shown]);
    }
    graph
}

fn shapes_config(datatype: &str) -> String {
    let mut config = String::from(
        "max_batch_size: 8
         input [ { name: 'RAGGED' data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true } ]
         output [ { name: 'FLAT' data_type: TYPE_FP32 dims: [ -1 ] } ]",
    );
    for kind in KINDS.into_iter().chain([ITEM_SHAPE]) {
        let [name, shown] = names(kind);
        let dims = if kind == ITEM_SHAPE { "2" } else { "-1" };
        let shown_datatype = if kind.ends_with("AS_SHAPE") { "TYPE_INT64" } else { datatype };
        config += &format!(
            " output [ {{ name: '{shown}' data_type: {shown_datatype} dims: [ {dims} ] }} ]
              batch_input [ {{
                kind: {kind} target_name: '{name}' data_type: {datatype} source_input: 'RAGGED'
              }} ]"
        );
    }
    config
}

/// A request with consecutive numbers from `first` in this shape.
fn ragged(dims: &[i64], first: i32) -> InferenceRequest {
    let count = i32::try_from(dims.iter().product::<i64>()).unwrap();
    let values: Vec<f32> = (first..first + count).map(|value| value as f32).collect();
    request(vec![tensor("RAGGED", DataType::Fp32, dims, floats(&values))])
}

fn numbers(response: &InferenceResponse, name: &str) -> (Vec<i64>, Vec<i64>) {
    let output = response.outputs.iter().find(|output| *output.name == *name).unwrap();
    let bytes = output.data.host_bytes().unwrap();
    let size = output.datatype.byte_size().unwrap();
    let number = |element: &[u8]| match output.datatype {
        DataType::Fp32 => f32::from_le_bytes(element.try_into().unwrap()) as i64,
        DataType::Int32 => i64::from(i32::from_le_bytes(element.try_into().unwrap())),
        DataType::Int64 => i64::from_le_bytes(element.try_into().unwrap()),
        other => panic!("{other}"),
    };
    (output.shape.dims().to_vec(), bytes.chunks(size).map(number).collect())
}

#[test]
// row: RAG-02
fn every_kind_of_batch_input_is_computed() {
    for (datatype, element) in [("TYPE_INT32", INT32), ("TYPE_FP32", FLOAT)] {
        let mut loaded = load(shapes_graph(element), &shapes_config(datatype));
        let batch = vec![ragged(&[2, 1, 2], 0), ragged(&[1, 1, 2], 4), ragged(&[1, 2, 2], 6)];
        let results = loaded.execute(batch);
        let rows = [2, 1, 1];
        let items: [&[i64]; 3] = [&[1, 2, 1, 2], &[1, 2], &[2, 2]];
        for ((result, rows), item) in results.iter().zip(rows).zip(items) {
            let result = result.as_ref().unwrap();
            let check = |name: &str, expected: &[i64]| {
                let dims = vec![i64::try_from(rows).unwrap(), expected.len() as i64];
                assert_eq!(numbers(result, name), (dims, expected.repeat(rows)), "{name}");
            };
            check("FLAT", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
            check("BATCH_ELEMENT_COUNT_OUT", &[4, 2, 4]);
            check("BATCH_ACCUMULATED_ELEMENT_COUNT_OUT", &[4, 6, 10]);
            check("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO_OUT", &[0, 4, 6, 10]);
            check("BATCH_ITEM_SHAPE_FLATTEN_OUT", &[1, 2, 1, 2, 1, 2, 2, 2]);
            check("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE_OUT", &[4]);
            let dims = vec![i64::try_from(rows).unwrap(), 2];
            assert_eq!(numbers(result, "BATCH_ITEM_SHAPE_OUT"), (dims, item.to_vec()));
        }
        assert_eq!(*loaded.host.batches.lock().unwrap(), [4]);
        // A smaller batch must not see values from the larger batch before it.
        let result = loaded.execute_one(ragged(&[1, 1, 1], 3)).unwrap();
        assert_eq!(numbers(&result, "FLAT"), (vec![1, 1], vec![3]));
        let counts = numbers(&result, "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO_OUT");
        assert_eq!(counts, (vec![1, 2], vec![0, 1]));
        assert_eq!(numbers(&result, "BATCH_ITEM_SHAPE_OUT"), (vec![1, 2], vec![1, 1]));
    }
}

#[test]
// row: RAG-04
fn a_batch_input_may_have_several_targets() {
    let graph = Graph::default()
        .input("RAGGED", FLOAT, &[-1])
        .input("A", INT32, &[-1])
        .input("B", INT32, &[-1])
        .output("SUM", INT32, &[-1])
        .output("SAME", FLOAT, &[-1])
        .node("Add", &["A", "B"], &["SUM"])
        .node("Identity", &["RAGGED"], &["SAME"]);
    let config = "
        max_batch_size: 4
        input [ { name: 'RAGGED' data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
        output [ { name: 'SUM' data_type: TYPE_INT32 dims: [ 1 ] reshape: { shape: [ ] } } ]
        batch_input [ {
          kind: BATCH_ELEMENT_COUNT target_name: [ 'A', 'B' ] data_type: TYPE_INT32
          source_input: 'RAGGED'
        } ]";
    let mut loaded = load(graph, config);
    let results = loaded.execute(vec![ragged(&[1, 3], 0), ragged(&[1, 0], 0), ragged(&[1, 2], 0)]);
    let sums = results.iter().map(|result| numbers(result.as_ref().unwrap(), "SUM"));
    let expected = [6, 0, 4].map(|sum| (vec![1], vec![sum]));
    assert_eq!(sums.collect::<Vec<_>>(), expected);
}

fn scatter_config(datatype: &str, source_dims: &str, dims: &str) -> String {
    format!(
        "max_batch_size: 8
         input [ {{
           name: 'RAGGED' data_type: {datatype} dims: [ {source_dims} ] allow_ragged_batch: true
         }} ]
         output [ {{ name: 'OUTPUT' data_type: {datatype} dims: [ {dims} ] }} ]
         batch_output [ {{
           target_name: 'OUTPUT' kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: 'RAGGED'
         }} ]"
    )
}

fn doubled(shape: &[i64]) -> Graph {
    Graph::default().input("RAGGED", FLOAT, &[-1]).output("OUTPUT", FLOAT, shape).node(
        "Add",
        &["RAGGED", "RAGGED"],
        &["OUTPUT"],
    )
}

#[test]
fn an_output_is_split_by_the_shapes_of_an_input() {
    let mut loaded = load(doubled(&[-1]), &scatter_config("TYPE_FP32", "-1, -1", "-1, -1"));
    let mut nothing = ragged(&[1, 3, 1], 4);
    nothing.outputs = vec![String::from("ANOTHER")];
    let batch = vec![ragged(&[2, 1, 2], 0), nothing, ragged(&[1, 0, 5], 0), ragged(&[1, 2, 2], 7)];
    let results = loaded.execute(batch);
    let result = |index: usize| results[index].as_ref().unwrap();
    assert_eq!(numbers(result(0), "OUTPUT"), (vec![2, 1, 2], vec![0, 2, 4, 6]));
    assert!(result(1).outputs.is_empty());
    assert_eq!(numbers(result(2), "OUTPUT"), (vec![1, 0, 5], vec![]));
    assert_eq!(numbers(result(3), "OUTPUT"), (vec![1, 2, 2], vec![14, 16, 18, 20]));
    // The parts are slices of one tensor.
    let address = |index: usize| output(result(index), "OUTPUT").1.as_ptr().addr();
    assert_eq!(address(3) - address(0), 7 * 4);
}

#[test]
fn a_split_output_keeps_its_configured_dimensions() {
    // The model reduces each pair to a single number.
    let graph = Graph::default()
        .input("RAGGED", FLOAT, &[-1])
        .output("OUTPUT", FLOAT, &[-1])
        .initializer("pairs", INT64, &[2], Data::Here(&[-1_i64, 2].map(i64::to_le_bytes).concat()))
        .initializer("axes", INT64, &[1], Data::Here(&1_i64.to_le_bytes()))
        .node("Reshape", &["RAGGED", "pairs"], &["matrix"])
        .node_with("ReduceSum", &["matrix", "axes"], &["OUTPUT"], &[("keepdims", 0)]);
    let mut loaded = load(graph, &scatter_config("TYPE_FP32", "-1, 2", "-1, 1"));
    let results = loaded.execute(vec![ragged(&[1, 2, 2], 0), ragged(&[2, 1, 2], 10)]);
    let result = |index: usize| numbers(results[index].as_ref().unwrap(), "OUTPUT");
    assert_eq!(result(0), (vec![1, 2, 1], vec![1, 5]));
    assert_eq!(result(1), (vec![2, 1, 1], vec![21, 25]));
}

#[test]
fn ragged_inputs_may_be_strings() {
    let graph = Graph::default().input("RAGGED", STRING, &[-1]).output("OUTPUT", STRING, &[-1]);
    let graph = graph.node("Identity", &["RAGGED"], &["OUTPUT"]);
    let mut loaded = load(graph, &scatter_config("TYPE_STRING", "-1", "-1"));
    let framed = |texts: &[&str]| -> Vec<u8> {
        let framed = |text: &&str| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        texts.iter().flat_map(framed).collect()
    };
    let texts = |texts: &[&str]| {
        let dims = [1, texts.len() as i64];
        request(vec![tensor("RAGGED", DataType::Bytes, &dims, framed(texts))])
    };
    let batch: [&[&str]; 3] = [&["a", "", "cc"], &[], &["ddd"]];
    let results = loaded.execute(batch.iter().map(|strings| texts(strings)).collect());
    for (result, strings) in results.iter().zip(batch) {
        let dims = [1, strings.len() as i64];
        let expected = framed(strings);
        assert_eq!(output(result.as_ref().unwrap(), "OUTPUT"), (&dims[..], &expected[..]));
    }
}

#[test]
fn a_ragged_input_is_allowed_without_batching() {
    let config = scatter_config("TYPE_FP32", "-1, -1", "-1, -1").replace("size: 8", "size: 0");
    let mut loaded = load(doubled(&[-1]), &config);
    let result = loaded.execute_one(ragged(&[2, 2], 1)).unwrap();
    assert_eq!(numbers(&result, "OUTPUT"), (vec![2, 2], vec![2, 4, 6, 8]));
}

#[test]
fn an_output_with_too_few_elements_fails_the_requests_it_is_too_short_for() {
    let graph = Graph::default()
        .input("RAGGED", FLOAT, &[-1])
        .output("OUTPUT", FLOAT, &[-1])
        .initializer("from", INT64, &[1], Data::Here(&0_i64.to_le_bytes()))
        .initializer("to", INT64, &[1], Data::Here(&3_i64.to_le_bytes()))
        .node("Slice", &["RAGGED", "from", "to"], &["OUTPUT"]);
    let mut loaded = load(graph, &scatter_config("TYPE_FP32", "-1", "-1"));
    let batch = vec![ragged(&[1, 2], 0), ragged(&[1, 2], 2), ragged(&[1, 1], 4)];
    let mut results = loaded.execute(batch).into_iter();
    assert_eq!(numbers(&results.next().unwrap().unwrap(), "OUTPUT"), (vec![1, 2], vec![0, 1]));
    // The positions of all later parts are unknown.
    for result in results {
        let (code, message) = failure(result);
        assert_eq!(code, Code::Unsupported);
        assert_eq!(
            message,
            "[request id: r] failed to split the output tensor 'OUTPUT' in responses: a part of \
             shape [1,2] behind 2 elements is not in the model output of shape [3]"
        );
    }
}

#[test]
fn an_omitted_source_input_fails_the_batch() {
    let graph = Graph::default()
        .input("INPUT", FLOAT, &[1])
        .input("COUNT", INT32, &[-1])
        .input("EXTRA", FLOAT, &[2])
        .initializer("EXTRA", FLOAT, &[2], Data::Here(&floats(&[1., 2.])))
        .output("OUTPUT", INT32, &[-1])
        .node("Identity", &["COUNT"], &["OUTPUT"]);
    let config = "
        input [
          { name: 'INPUT' data_type: TYPE_FP32 dims: [ 1 ] },
          { name: 'EXTRA' data_type: TYPE_FP32 dims: [ 2 ] optional: true }
        ]
        output [ { name: 'OUTPUT' data_type: TYPE_INT32 dims: [ -1 ] } ]
        batch_input [ {
          kind: BATCH_ELEMENT_COUNT target_name: 'COUNT' data_type: TYPE_INT32
          source_input: 'EXTRA'
        } ]";
    let mut loaded = load(graph, config);
    let one = || request(vec![tensor("INPUT", DataType::Fp32, &[1], floats(&[1.]))]);
    let (code, message) = failure(loaded.execute_one(one()));
    assert_eq!(code, Code::InvalidArgument);
    assert_eq!(message, "batch input 'COUNT' describes input 'EXTRA', which a request leaves out");
    let mut both = one();
    both.inputs.push(tensor("EXTRA", DataType::Fp32, &[2], floats(&[1., 2.])));
    assert_eq!(numbers(&loaded.execute_one(both).unwrap(), "OUTPUT"), (vec![1], vec![2]));
}
