//! Failing runs and inconsistent batches.

use galatea_infer::{Code, InferenceRequest};
use galatea_tensor::DataType;

use crate::batches::{CONFIG, graph, pair};
use crate::support::onnx::{Data, FLOAT, Graph, INT64, STRING, identity};
use crate::support::{failure, floats, int32s, load, output, request, tensor};

#[test]
fn a_failing_node_fails_the_batch_and_the_instance_stays_usable() {
    let graph = Graph::default()
        .input("INDEX", INT64, &[-1])
        .output("OUTPUT0", FLOAT, &[-1])
        .initializer("table", FLOAT, &[2], Data::Here(&floats(&[5., 6.])))
        .node("Gather", &["table", "INDEX"], &["OUTPUT0"]);
    let config = "
        max_batch_size: 4
        input [ { name: 'INDEX' data_type: TYPE_INT64 dims: [ 1 ] reshape: { shape: [ ] } } ]
        output [ { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 1 ] reshape: { shape: [ ] } } ]";
    let mut loaded = load(graph, config);
    let index = |value: i64| -> InferenceRequest {
        request(vec![tensor("INDEX", DataType::Int64, &[1], value.to_le_bytes().to_vec())])
    };
    for result in loaded.execute(vec![index(0), index(9)]) {
        let (code, message) = failure(result);
        assert_eq!(code, Code::Internal);
        assert!(message.starts_with("onnx runtime error "), "{message}");
        assert!(message.contains("Gather"), "{message}");
    }
    assert!(loaded.host.batches.lock().unwrap().is_empty());
    let results = loaded.execute(vec![index(0), index(1)]);
    assert_eq!(output(results[1].as_ref().unwrap(), "OUTPUT0").1, floats(&[6.]));
    assert_eq!(*loaded.host.batches.lock().unwrap(), [2]);
}

#[test]
fn an_output_of_another_batch_size_is_an_error() {
    let times: Vec<u8> = [2_i64, 1].iter().flat_map(|times| times.to_le_bytes()).collect();
    let graph = Graph::default()
        .input("INPUT0", FLOAT, &[-1, 2])
        .output("OUTPUT0", FLOAT, &[-1, 2])
        .output("TWICE", FLOAT, &[-1, 2])
        .initializer("times", INT64, &[2], Data::Here(&times))
        .node("Identity", &["INPUT0"], &["OUTPUT0"])
        .node("Tile", &["INPUT0", "times"], &["TWICE"]);
    let config = "
        max_batch_size: 4
        input [ { name: 'INPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]
        output [
          { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 2 ] },
          { name: 'TWICE' data_type: TYPE_FP32 dims: [ 2 ] }
        ]";
    let mut loaded = load(graph, config);
    let wants = |names: &[&str]| InferenceRequest {
        outputs: names.iter().map(|&name| name.to_owned()).collect(),
        ..request(vec![tensor("INPUT0", DataType::Fp32, &[1, 2], floats(&[1., 2.]))])
    };
    let mut results = loaded.execute(vec![wants(&["OUTPUT0"]), wants(&[])]);
    assert_eq!(
        failure(results.remove(1)),
        (
            Code::Unsupported,
            String::from(
                "[request id: r] failed to split the output tensor 'TWICE' in responses: expected \
                 batch size of 2 in model output, got shape [4,2]"
            )
        )
    );
    assert_eq!(output(results[0].as_ref().unwrap(), "OUTPUT0").1, floats(&[1., 2.]));
}

/// Such batches never get past admission and the scheduler.
#[test]
fn inconsistent_batches_are_refused_before_the_run() {
    let check = |requests: Vec<InferenceRequest>, expected: &str| {
        let mut loaded = load(graph(), CONFIG);
        for result in loaded.execute(requests) {
            assert_eq!(failure(result), (Code::Internal, expected.to_owned()));
        }
        assert!(loaded.execute_one(pair(&[1, 2], &[3, 4])).is_ok());
    };
    let good = || pair(&[1, 2], &[3, 4]);
    let with = |change: fn(&mut InferenceRequest)| {
        let mut request = good();
        change(&mut request);
        request
    };
    let short = with(|request| request.inputs[1].data = galatea_tensor::Buffer::empty());
    check(vec![good(), short.clone()], "input 'INPUT1' has another size than its shape says");
    // The sizes are wrong, but their sum is correct.
    let long = with(|request| {
        request.inputs[1].data = galatea_tensor::Buffer::from_vec(int32s(&[1, 2, 3, 4]));
    });
    check(vec![short.clone(), long], "input 'INPUT1' has another size than its shape says");
    check(
        vec![with(|request| drop(request.inputs.pop())), good()],
        "input 'INPUT1' is missing in some requests of a batch",
    );
    let wide = request(vec![
        tensor("INPUT0", DataType::Int32, &[1, 3], int32s(&[1, 2, 3])),
        tensor("INPUT1", DataType::Int32, &[1, 3], int32s(&[1, 2, 3])),
    ]);
    check(vec![good(), wide], "input 'INPUT0' has different shapes in a batch");
    let other = with(|request| request.inputs[0].datatype = DataType::Fp32);
    check(vec![other], "input 'INPUT0' has the wrong datatype");
    let mut loaded = load(graph(), CONFIG);
    let (code, message) = failure(loaded.execute_one(short));
    assert_eq!(code, Code::Internal);
    assert!(message.contains("0 bytes"), "{message}");
    let missing = with(|request| drop(request.inputs.pop()));
    let (code, message) = failure(loaded.execute_one(missing));
    assert_eq!(code, Code::Internal);
    assert!(message.contains("INPUT1"), "{message}");
}

#[test]
fn a_model_without_batches_takes_one_request() {
    let config = "
        input [ { name: 'INPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]
        output [ { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]";
    let mut loaded = load(identity(FLOAT, &[2]), config);
    let one = || request(vec![tensor("INPUT0", DataType::Fp32, &[2], floats(&[1., 2.]))]);
    assert!(loaded.execute_one(one()).is_ok());
    for result in loaded.execute(vec![one(), one()]) {
        let (code, message) = failure(result);
        assert_eq!(code, Code::Internal);
        assert!(message.starts_with("2 requests with "), "{message}");
    }
}

#[test]
fn the_number_of_strings_must_match_the_shape() {
    let config = "
        input [ { name: 'INPUT0' data_type: TYPE_STRING dims: [ 2 ] } ]
        output [ { name: 'OUTPUT0' data_type: TYPE_STRING dims: [ 2 ] } ]";
    let mut loaded = load(identity(STRING, &[2]), config);
    for (empty_strings, expected) in [(1, "1 strings for [2]"), (3, "more than 2 strings for [2]")]
    {
        let data = vec![0; 4 * empty_strings];
        let one = request(vec![tensor("INPUT0", DataType::Bytes, &[2], data)]);
        let (code, message) = failure(loaded.execute_one(one));
        assert_eq!(code, Code::Internal);
        assert!(message.contains(expected), "{message}");
    }
}
