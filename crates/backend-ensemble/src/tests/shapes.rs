//! Tensors that are passed between models with and without batching.

use galatea_infer::{InferenceRequest, InputTensor};
use galatea_tensor::{Buffer, DataType, Shape};

use super::{ModelRequest, TestEnsemble, request, response};

/// A chain of two models. The arguments specify `max_batch_size dims` for the ensemble and each
/// model.
fn chain(ensemble: &str, first: &str, second: &str) -> TestEnsemble {
    let side = |text: &str, input: &str, output: &str| {
        let (batch, dims) = text.split_once(' ').unwrap();
        format!("{batch} {input}:{dims} > {output}:{dims}")
    };
    TestEnsemble::new(
        &side(ensemble, "IN", "OUT"),
        &[
            &format!("first {}", side(first, "X", "Y")),
            &format!("second {}", side(second, "X", "Y")),
        ],
        &["first X=IN > Y=mid", "second X=mid > Y=OUT"],
        0,
    )
}

fn zeros(dims: &[i64]) -> InputTensor {
    let shape = Shape::new(dims).unwrap();
    let bytes = usize::try_from(shape.element_count() * 4).unwrap();
    let data = Buffer::from_vec(vec![0; bytes]);
    InputTensor { name: String::from("IN"), datatype: DataType::Int32, shape, data }
}

fn complete(call: ModelRequest, dims: &[i64]) {
    let mut response = response(&call.request, "Y=0");
    let InputTensor { shape, data, .. } = zeros(dims);
    (response.outputs[0].shape, response.outputs[0].data) = (shape, data);
    call.sender.send_final(Ok(response));
}

/// Checks the shapes of the first model's input, the second model's input, and the output, if the
/// first model responds with shape `first_output` and the second model with `last`.
fn check(
    ensemble: &TestEnsemble,
    sent: &[i64],
    first_output: &[i64],
    last: &[i64],
    expected: [&[i64]; 3],
) {
    let request = InferenceRequest { inputs: vec![zeros(sent)], ..request("", true) };
    let client = ensemble.send_request(request);
    let first = ensemble.take("first");
    assert_eq!(first.request.inputs[0].shape.dims(), expected[0]);
    complete(first, first_output);
    let second = ensemble.take("second");
    assert_eq!(second.request.inputs[0].shape.dims(), expected[1]);
    complete(second, last);
    assert_eq!(client.response().outputs[0].shape.dims(), expected[2]);
}

#[test]
fn models_with_batches_pass_batches_on() {
    let ensemble = chain("4 3", "4 3", "8 3");
    check(&ensemble, &[2, 3], &[2, 3], &[2, 3], [&[2, 3], &[2, 3], &[2, 3]]);
}

#[test]
fn a_tensor_becomes_a_batch_of_one() {
    let ensemble = chain("0 3", "4 3", "4 3");
    check(&ensemble, &[3], &[1, 3], &[1, 3], [&[1, 3], &[1, 3], &[3]]);
    let ensemble = chain("0 3", "0 3", "4 3");
    check(&ensemble, &[3], &[3], &[1, 3], [&[3], &[1, 3], &[3]]);
}

#[test]
fn a_batch_of_one_becomes_a_tensor() {
    let ensemble = chain("4 3", "0 3", "4 3");
    check(&ensemble, &[1, 3], &[3], &[1, 3], [&[3], &[1, 3], &[1, 3]]);
    let ensemble = chain("4 3", "0 3", "0 3");
    check(&ensemble, &[1, 3], &[3], &[3], [&[3], &[3], &[1, 3]]);
}

#[test]
fn a_batch_is_one_tensor_if_the_models_dimensions_allow_it() {
    let ensemble = chain("4 3", "0 -1,3", "4 3");
    check(&ensemble, &[2, 3], &[2, 3], &[2, 3], [&[2, 3], &[2, 3], &[2, 3]]);
    check(&ensemble, &[1, 3], &[1, 3], &[1, 3], [&[1, 3], &[1, 3], &[1, 3]]);
    // A tensor with the batch dimension that the next model expects is treated as a batch.
    let ensemble = chain("0 -1,3", "0 -1,3", "4 3");
    check(&ensemble, &[2, 3], &[2, 3], &[2, 3], [&[2, 3], &[2, 3], &[2, 3]]);
}

/// The engine restores the client's shape.
#[test]
fn an_ensembles_reshape_determines_the_shape_for_its_models() {
    let ensemble = chain("4 2,3=>6", "4 6", "0 6");
    check(&ensemble, &[1, 6], &[1, 6], &[6], [&[1, 6], &[6], &[1, 6]]);
}

#[test]
fn a_larger_batch_keeps_its_shape() {
    // The model refuses the shape with its own error.
    let ensemble = chain("4 3", "0 3", "0 3");
    check(&ensemble, &[2, 3], &[2, 3], &[2, 3], [&[2, 3], &[2, 3], &[2, 3]]);
}
