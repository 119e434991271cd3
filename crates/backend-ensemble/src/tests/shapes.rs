//! Tensors between models with batches and models without.

use galatea_infer::{InferenceRequest, InputTensor};
use galatea_tensor::{Buffer, DataType, Shape};

use super::{Asked, World, request, response};

/// A chain of two models: `ensemble, first, second` say `batch dims` each.
fn chain(ensemble: &str, first: &str, second: &str) -> World {
    let side = |text: &str, input: &str, output: &str| {
        let (batch, dims) = text.split_once(' ').unwrap();
        format!("{batch} {input}:{dims} > {output}:{dims}")
    };
    World::new(
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

fn answer(asked: Asked, dims: &[i64]) {
    let mut response = response(&asked.request, "Y=0");
    let InputTensor { shape, data, .. } = zeros(dims);
    (response.outputs[0].shape, response.outputs[0].data) = (shape, data);
    asked.sender.send_final(Ok(response));
}

/// What the shapes of the first and the second model's input and of the output
/// are, if the first model answers with `made` and the second with `last`.
fn check(world: &World, sent: &[i64], made: &[i64], last: &[i64], expected: [&[i64]; 3]) {
    let request = InferenceRequest { inputs: vec![zeros(sent)], ..request("", true) };
    let client = world.send_request(request);
    let first = world.take("first");
    assert_eq!(first.request.inputs[0].shape.dims(), expected[0]);
    answer(first, made);
    let second = world.take("second");
    assert_eq!(second.request.inputs[0].shape.dims(), expected[1]);
    answer(second, last);
    assert_eq!(client.response().outputs[0].shape.dims(), expected[2]);
}

#[test]
fn models_with_batches_pass_them_on() {
    let world = chain("4 3", "4 3", "8 3");
    check(&world, &[2, 3], &[2, 3], &[2, 3], [&[2, 3], &[2, 3], &[2, 3]]);
}

#[test]
fn a_tensor_becomes_a_batch_of_one() {
    let world = chain("0 3", "4 3", "4 3");
    check(&world, &[3], &[1, 3], &[1, 3], [&[1, 3], &[1, 3], &[3]]);
    let world = chain("0 3", "0 3", "4 3");
    check(&world, &[3], &[3], &[1, 3], [&[3], &[1, 3], &[3]]);
}

#[test]
fn a_batch_of_one_becomes_a_tensor() {
    let world = chain("4 3", "0 3", "4 3");
    check(&world, &[1, 3], &[3], &[1, 3], [&[3], &[1, 3], &[1, 3]]);
    let world = chain("4 3", "0 3", "0 3");
    check(&world, &[1, 3], &[3], &[3], [&[3], &[3], &[1, 3]]);
}

#[test]
fn a_batch_is_one_tensor_if_the_model_says_so() {
    let world = chain("4 3", "0 -1,3", "4 3");
    check(&world, &[2, 3], &[2, 3], &[2, 3], [&[2, 3], &[2, 3], &[2, 3]]);
    check(&world, &[1, 3], &[1, 3], &[1, 3], [&[1, 3], &[1, 3], &[1, 3]]);
    // A tensor with the batch dimension that the next model expects is a batch.
    let world = chain("0 -1,3", "0 -1,3", "4 3");
    check(&world, &[2, 3], &[2, 3], &[2, 3], [&[2, 3], &[2, 3], &[2, 3]]);
}

/// The engine makes the client's shape of the one that the ensemble's models see.
#[test]
fn an_ensembles_own_reshape_says_what_its_models_see() {
    let world = chain("4 2,3=>6", "4 6", "0 6");
    check(&world, &[1, 6], &[1, 6], &[6], [&[1, 6], &[6], &[1, 6]]);
}

#[test]
fn a_larger_batch_stays_what_it_is() {
    // The model refuses it, and says which shape it wants.
    let world = chain("4 3", "0 3", "0 3");
    check(&world, &[2, 3], &[2, 3], &[2, 3], [&[2, 3], &[2, 3], &[2, 3]]);
}
