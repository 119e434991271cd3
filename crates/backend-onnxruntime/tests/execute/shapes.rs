//! Scalars, empty tensors and variable dimensions.

use galatea_infer::InferenceRequest;
use galatea_tensor::DataType;

use crate::support::onnx::{Data, FLOAT, Graph, INT64, identity};
use crate::support::{floats, load, output, request, tensor};

fn check(graph: Graph, config: &str, request: InferenceRequest, dims: &[i64], values: &[f32]) {
    let result = load(graph, config).execute_one(request).unwrap();
    assert_eq!(output(&result, "OUTPUT0"), (dims, &floats(values)[..]));
}

fn numbers(dims: &[i64], values: &[f32]) -> InferenceRequest {
    request(vec![tensor("INPUT0", DataType::Fp32, dims, floats(values))])
}

/// A configuration with `INPUT0` and `OUTPUT0`, which have these dimensions.
fn config(max_batch_size: u32, input: &str, output: &str) -> String {
    format!(
        "max_batch_size: {max_batch_size}
         input [ {{ name: 'INPUT0' data_type: TYPE_FP32 {input} }} ]
         output [ {{ name: 'OUTPUT0' data_type: TYPE_FP32 {output} }} ]"
    )
}

#[test]
// row: ONNX-07
fn a_scalar_is_one_element_for_clients() {
    let config = config(0, "dims: [ 1 ]", "dims: [ 1 ]");
    check(identity(FLOAT, &[]), &config, numbers(&[1], &[2.5]), &[1], &[2.5]);
}

#[test]
fn the_graph_gets_a_scalar() {
    let graph = Graph::default()
        .input("INPUT0", FLOAT, &[])
        .output("OUTPUT0", FLOAT, &[1])
        .initializer("axes", INT64, &[1], Data::Here(&[0; 8]))
        .node("Unsqueeze", &["INPUT0", "axes"], &["OUTPUT0"]);
    let config = config(0, "dims: [ 1, 1 ]", "dims: [ 1 ]");
    check(graph, &config, numbers(&[1, 1], &[2.5]), &[1], &[2.5]);
}

#[test]
fn a_graph_may_return_a_scalar() {
    let shape = Data::Here(&[]);
    let graph = Graph::default()
        .input("INPUT0", FLOAT, &[1])
        .output("OUTPUT0", FLOAT, &[])
        .initializer("shape", INT64, &[0], shape)
        .node("Reshape", &["INPUT0", "shape"], &["OUTPUT0"]);
    let config = config(0, "dims: [ 1 ]", "dims: [ 1, 1 ]");
    check(graph, &config, numbers(&[1], &[2.5]), &[1, 1], &[2.5]);
}

#[test]
fn a_batch_element_may_be_one_number() {
    let config =
        config(4, "dims: [ 1 ] reshape: { shape: [ ] }", "dims: [ 1 ] reshape: { shape: [ ] }");
    // The engine removes the client's dimension beforehand and restores it afterwards.
    check(identity(FLOAT, &[-1]), &config, numbers(&[3], &[1., 2., 3.]), &[3], &[1., 2., 3.]);
}

#[test]
fn variable_dimensions_take_any_size() {
    let config = config(0, "dims: [ -1, 2 ]", "dims: [ -1, 2 ]");
    let graph = identity(FLOAT, &[-1, 2]);
    check(graph.clone(), &config, numbers(&[1, 2], &[1., 2.]), &[1, 2], &[1., 2.]);
    check(graph, &config, numbers(&[0, 2], &[]), &[0, 2], &[]);
}

#[test]
fn rows_without_elements() {
    let config = config(4, "dims: [ -1 ]", "dims: [ -1 ]");
    let mut loaded = load(identity(FLOAT, &[-1, -1]), &config);
    let results = loaded.execute(vec![numbers(&[1, 0], &[]), numbers(&[2, 0], &[])]);
    assert_eq!(output(results[0].as_ref().unwrap(), "OUTPUT0"), (&[1, 0][..], &[][..]));
    assert_eq!(output(results[1].as_ref().unwrap(), "OUTPUT0"), (&[2, 0][..], &[][..]));
}

#[test]
// row: CFG-12
fn an_input_with_a_default_may_be_left_out() {
    let graph = Graph::default()
        .input("INPUT0", FLOAT, &[2])
        .input("SCALE", FLOAT, &[1])
        .initializer("SCALE", FLOAT, &[1], Data::Here(&floats(&[10.])))
        .output("OUTPUT0", FLOAT, &[2])
        .node("Mul", &["INPUT0", "SCALE"], &["OUTPUT0"]);
    let config = "
        input [
          { name: 'INPUT0' data_type: TYPE_FP32 dims: [ 2 ] },
          { name: 'SCALE' data_type: TYPE_FP32 dims: [ 1 ] optional: true }
        ]
        output [ { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]";
    check(graph.clone(), config, numbers(&[2], &[1., 2.]), &[2], &[10., 20.]);
    let mut scaled = numbers(&[2], &[1., 2.]);
    scaled.inputs.push(tensor("SCALE", DataType::Fp32, &[1], floats(&[3.])));
    check(graph, config, scaled, &[2], &[3., 6.]);
}
