//! Configurations and files that can't be loaded.

use galatea_infer::Code;

use crate::batches::{CONFIG, graph};
use crate::support::onnx::{FLOAT, FLOAT8, Graph, identity};
use crate::support::{Files, failure, library_path, try_load};

fn check(graph: Graph, config: &str, expected: &str) {
    let (_, message) = failure(try_load(&Files::model(graph), config));
    assert!(message.contains(expected), "{message}\n  lacks\n{expected}");
}

fn pair(max_batch_size: u32, input: &str, output: &str) -> String {
    format!("max_batch_size: {max_batch_size} input [ {{ {input} }} ] output [ {{ {output} }} ]")
}

const INPUT: &str = "name: 'INPUT0' data_type: TYPE_FP32 dims: [ 2 ]";
const OUTPUT: &str = "name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 2 ]";

#[test]
// row: ONNX-08
fn names_and_types_that_the_model_contradicts() {
    let batched = || identity(FLOAT, &[-1, 2]);
    let one_input =
        CONFIG.replace(",\n      { name: 'INPUT1' data_type: TYPE_INT32 dims: [ 2 ] }", "");
    check(
        graph(),
        &one_input,
        "unable to load model 'm', configuration expects 1 inputs, model provides 2: INPUT0, INPUT1",
    );
    check(
        batched(),
        &pair(4, &INPUT.replace("INPUT0", "X"), OUTPUT),
        "unexpected inference input 'X', allowed inputs are: INPUT0",
    );
    check(
        batched(),
        &pair(4, INPUT, &OUTPUT.replace("OUTPUT0", "Y")),
        "unexpected inference output 'Y', allowed outputs are: OUTPUT0",
    );
    check(
        batched(),
        &pair(4, &INPUT.replace("FP32", "INT64"), OUTPUT),
        "unable to load model 'm', configuration expects datatype TYPE_INT64 for input 'INPUT0', \
         model provides TYPE_FP32",
    );
    check(
        batched(),
        &pair(4, INPUT, &OUTPUT.replace("FP32", "STRING")),
        "unable to load model 'm', configuration expects datatype TYPE_STRING for output \
         'OUTPUT0', model provides TYPE_FP32",
    );
    check(
        identity(FLOAT8, &[-1, 2]),
        &pair(4, INPUT, OUTPUT),
        "model provides ONNX element type 17, which has no counterpart",
    );
}

#[test]
// row: ONNX-08
fn dimensions_that_the_model_contradicts() {
    check(
        identity(FLOAT, &[-1, 3]),
        &pair(4, INPUT, OUTPUT),
        "model 'm', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,3]) but the model \
         configuration specifies 2 dimensions (an initial batch dimension because max_batch_size > \
         0 followed by the explicit tensor shape, making complete shape [-1,2])",
    );
    check(
        identity(FLOAT, &[1, 2]),
        &pair(4, INPUT, OUTPUT),
        "model 'm', tensor 'INPUT0': for the model to support batching the shape should have at \
         least 1 dimension and the first dimension must be -1; but shape expected by the model is \
         [1,2]",
    );
    check(
        identity(FLOAT, &[1, 2]),
        &pair(0, INPUT, OUTPUT),
        "model 'm', tensor 'INPUT0': the model expects 2 dimensions (shape [1,2]) but the model \
         configuration specifies 1 dimensions (shape [2])",
    );
    check(
        identity(FLOAT, &[]),
        &pair(0, INPUT, OUTPUT),
        "unable to load model 'm', scalar tensor 'INPUT0', should only provide 1 in the model \
         configuration when the model doesn't support batching. Model configuration provided: [2].",
    );
    // An input may be narrower than the model's input, but an output may not.
    check(
        identity(FLOAT, &[-1]),
        &pair(0, INPUT, OUTPUT),
        "model 'm', tensor 'OUTPUT0': the model expects 1 dimensions (shape [-1]) but the model \
         configuration specifies 1 dimensions (shape [2])",
    );
}

#[test]
fn optional_inputs_need_a_model_without_batching() {
    check(
        identity(FLOAT, &[2]),
        &pair(0, &format!("{INPUT} optional: true"), OUTPUT),
        "configuration expects 0 inputs, model provides 1: INPUT0",
    );
    let graph = Graph::default()
        .input("INPUT0", FLOAT, &[-1, 2])
        .input("SCALE", FLOAT, &[-1, 2])
        .initializer("SCALE", FLOAT, &[1, 2], crate::support::onnx::Data::Here(&[0; 8]))
        .output("OUTPUT0", FLOAT, &[-1, 2])
        .node("Mul", &["INPUT0", "SCALE"], &["OUTPUT0"]);
    let scale = "name: 'SCALE' data_type: TYPE_FP32 dims: [ 2 ] optional: true";
    check(
        graph,
        &pair(4, &format!("{INPUT} }}, {{ {scale}"), OUTPUT),
        "optional input 'SCALE' is not supported for models that support batching",
    );
}

#[test]
fn an_onnx_sequence_is_no_output() {
    let graph = || {
        identity(FLOAT, &[-1, 2]).sequence_output("LIST", FLOAT).node(
            "SequenceConstruct",
            &["INPUT0"],
            &["LIST"],
        )
    };
    let list = "name: 'LIST' data_type: TYPE_FP32 dims: [ 2 ]";
    check(
        graph(),
        &pair(4, INPUT, list),
        "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'LIST', expected 'ONNX_TYPE_TENSOR'.",
    );
    // The model can be loaded if the configuration doesn't mention the tensor.
    try_load(&Files::model(graph()), &pair(4, INPUT, OUTPUT)).unwrap();
}

#[test]
fn files_that_are_no_models() {
    let config = pair(4, INPUT, OUTPUT);
    let good = identity(FLOAT, &[-1, 2]).bytes();
    for bytes in [&b""[..], b"not a model", &good[..good.len() / 2]] {
        let files = Files::new(&[("model.onnx", bytes)]);
        let (code, message) = failure(try_load(&files, &config));
        assert_eq!(code, Code::Internal);
        assert!(message.starts_with("failed to load '"), "{message}");
        assert!(message.contains("onnx runtime error"), "{message}");
    }
    let (code, message) = failure(try_load(&Files::new(&[("other", b"")]), &config));
    assert_eq!(code, Code::NotFound);
    assert_eq!(message, "unable to find 'model.onnx' for model 'm': no such file");
    let empty_folder = Files::new(&[("model.onnx/weights", b"")]);
    assert_eq!(failure(try_load(&empty_folder, &config)).0, Code::NotFound);
}

#[test]
fn files_that_are_no_onnx_runtime() {
    let files = Files::new(&[("library.so", b"not a library")]);
    let path = galatea_backend::ModelFiles::resolve(&files, "library.so").unwrap();
    let (code, message) = failure(galatea_backend_onnxruntime::OrtLibrary::open(&path));
    assert_eq!(code, Code::Unavailable);
    assert!(message.contains("library.so"), "{message}");
    let folder = library_path().parent().unwrap().to_owned();
    let other = folder.join("libonnxruntime_providers_shared.so");
    if other.exists() {
        let (_, message) = failure(galatea_backend_onnxruntime::OrtLibrary::open(&other));
        assert!(message.contains("OrtGetApiBase"), "{message}");
    }
}
