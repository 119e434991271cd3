//! Memory ownership of inputs, outputs and models.

use bytes::Bytes;
use galatea_backend::Backend;
use galatea_infer::InferenceRequest;
use galatea_tensor::{Buffer, DataType};

use crate::batches::{CONFIG, graph, pair};
use crate::support::onnx::{Data, FLOAT, Graph, identity};
use crate::support::{Files, floats, int32s, load, output, request, tensor, try_load};

const FLOATS: &str = "
    max_batch_size: 4
    input [ { name: 'INPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]";

fn numbers(values: &[f32]) -> InferenceRequest {
    let rows = i64::try_from(values.len() / 2).unwrap();
    request(vec![tensor("INPUT0", DataType::Fp32, &[rows, 2], floats(values))])
}

#[test]
fn outputs_of_a_batch_are_slices_of_one_tensor() {
    let mut loaded = load(graph(), CONFIG);
    let results = loaded.execute(vec![pair(&[1, 2], &[3, 4]), pair(&[5, 6], &[7, 8])]);
    let address = |index: usize| output(results[index].as_ref().unwrap(), "SUM").1.as_ptr().addr();
    assert_eq!(address(1) - address(0), int32s(&[1, 2]).len());
}

#[test]
fn outputs_outlive_the_instance_and_the_model() {
    let mut loaded = load(graph(), CONFIG);
    let results = loaded.execute(vec![pair(&[1, 2], &[3, 4]), pair(&[5, 6], &[7, 8])]);
    drop(loaded);
    assert_eq!(output(results[0].as_ref().unwrap(), "SUM").1, int32s(&[4, 6]));
    assert_eq!(output(results[1].as_ref().unwrap(), "SUM").1, int32s(&[12, 14]));
}

#[test]
fn inputs_may_begin_at_any_address() {
    let mut loaded = load(identity(FLOAT, &[-1, 2]), FLOATS);
    let mut region = vec![0];
    region.extend(floats(&[1.5, 2.5]));
    let mut unaligned = numbers(&[0., 0.]);
    unaligned.inputs[0].data = Buffer::from_bytes(Bytes::from(region).slice(1..));
    let results = loaded.execute(vec![unaligned.clone()]);
    assert_eq!(output(results[0].as_ref().unwrap(), "OUTPUT0").1, floats(&[1.5, 2.5]));
    let results = loaded.execute(vec![numbers(&[3., 4.]), unaligned]);
    assert_eq!(output(results[1].as_ref().unwrap(), "OUTPUT0").1, floats(&[1.5, 2.5]));
}

/// The library returns the input's memory, which is freed with the request.
#[test]
fn a_graph_may_return_its_input() {
    let graph = Graph::default().input("SAME", FLOAT, &[-1, 2]).output("SAME", FLOAT, &[-1, 2]);
    let config = FLOATS.replace("INPUT0", "SAME").replace("OUTPUT0", "SAME");
    let mut loaded = load(graph, &config);
    let mut request = numbers(&[1., 2.]);
    request.inputs[0].name = String::from("SAME");
    let given = request.inputs[0].data.host_bytes().unwrap().as_ptr();
    let result = loaded.execute_one(request).unwrap();
    let (dims, bytes) = output(&result, "SAME");
    assert_eq!((dims, bytes), (&[1, 2][..], &floats(&[1., 2.])[..]));
    assert_ne!(bytes.as_ptr(), given);
}

#[test]
fn an_instance_reuses_its_memory_for_any_batch() {
    let mut loaded = load(identity(FLOAT, &[-1, 2]), FLOATS);
    for size in [3_usize, 1, 2, 4] {
        let requests: Vec<_> = (0..size).map(|row| numbers(&[size as f32, row as f32])).collect();
        for (row, result) in loaded.execute(requests).into_iter().enumerate() {
            let expected = floats(&[size as f32, row as f32]);
            assert_eq!(output(&result.unwrap(), "OUTPUT0").1, expected);
        }
    }
}

#[test]
// row: ONNX-01
fn weights_may_be_in_another_file() {
    let graph = Graph::default()
        .input("INPUT0", FLOAT, &[-1, 2])
        .output("OUTPUT0", FLOAT, &[-1, 2])
        .initializer("W", FLOAT, &[2], Data::File("weights.bin"))
        .node("Mul", &["INPUT0", "W"], &["OUTPUT0"])
        .bytes();
    let weights = floats(&[2., 3.]);
    let beside = Files::new(&[("model.onnx", &graph), ("weights.bin", &weights)]);
    let within =
        Files::new(&[("model.onnx/model.onnx", &graph), ("model.onnx/weights.bin", &weights)]);
    for files in [beside, within] {
        let result = try_load(&files, FLOATS).unwrap().execute_one(numbers(&[1., 1.])).unwrap();
        assert_eq!(output(&result, "OUTPUT0").1, floats(&[2., 3.]));
    }
}

#[test]
// row: ONNX-01
fn a_model_file_may_have_another_name() {
    let files = Files::new(&[("other.onnx", &identity(FLOAT, &[-1, 2]).bytes())]);
    let config = format!("{FLOATS} backend: 'onnxruntime' default_model_filename: 'other.onnx'");
    let result = try_load(&files, &config).unwrap().execute_one(numbers(&[1., 2.])).unwrap();
    assert_eq!(output(&result, "OUTPUT0").1, floats(&[1., 2.]));
}

#[test]
fn models_can_be_loaded_again_and_again() {
    let backend = crate::support::backend();
    let files = Files::model(identity(FLOAT, &[-1, 2]));
    for _ in 0..3 {
        let host = std::sync::Arc::new(crate::support::RecordingHost::default());
        let spec = std::sync::Arc::new(crate::support::spec(FLOATS));
        drop(backend.load(spec, &files, host).unwrap());
    }
}
