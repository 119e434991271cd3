//! Tests of configurations that contradict their model.

use galatea_config::SupportedFeatures;
use galatea_infer::Code;
use galatea_pbtxt::parse_config_draft;

use super::*;

const TENSORS: &str = "input { name: 'a' data_type: TYPE_FP32 dims: [ 3 ] }
                       output { name: 'y' data_type: TYPE_FP32 dims: [ 2 ] }";
const BATCHED: &str = "max_batch_size: 8";

fn spec(config: &str) -> ModelSpec {
    let text = format!("backend: 'tensorflow' platform: 'tensorflow_savedmodel' {config}");
    let mut draft = parse_config_draft("config.pbtxt", &text).unwrap();
    draft.resolve_name_and_backend("m", &[]).unwrap();
    draft.into_validated_spec(&SupportedFeatures::default()).unwrap()
}

fn tensor(name: &str, datatype: DataType, dims: &[i64]) -> SignatureTensor {
    let (name, graph_name) = (name.to_owned(), format!("{name}:0"));
    SignatureTensor { name, graph_name, datatype, dims: dims.to_vec() }
}

/// Compares a configuration with inputs `a` and others, and an output `y`.
fn checked(config: &str, inputs: &[(&str, &[i64])], output: &[i64]) -> Result<(), (Code, String)> {
    let input = |(name, dims): &(&str, &[i64])| tensor(name, DataType::Fp32, dims);
    let inputs = inputs.iter().map(input).collect();
    let outputs = vec![tensor("y", DataType::Fp32, output)];
    check_signature(&spec(config), &Signature { inputs, outputs })
        .map_err(|status| (status.code(), status.message().to_owned()))
}

fn invalid(text: &str) -> Result<(), (Code, String)> {
    Err((Code::InvalidArgument, text.to_owned()))
}

#[test]
fn fitting_configurations_pass() {
    assert_eq!(checked(TENSORS, &[("a", &[3])], &[2]), Ok(()));
    assert_eq!(checked(TENSORS, &[("a", &[-1])], &[2]), Ok(()));
    assert_eq!(checked(&format!("{BATCHED} {TENSORS}"), &[("a", &[-1, 3])], &[-1, 2]), Ok(()));
    // The model doesn't specify the number of dimensions.
    assert_eq!(checked(&format!("{BATCHED} {TENSORS}"), &[("a", &[])], &[]), Ok(()));
}

#[test]
fn names_precede_the_number_of_inputs() {
    let expected = "unexpected inference input 'a', allowed inputs are: b, c";
    assert_eq!(checked(TENSORS, &[("c", &[3]), ("b", &[3])], &[2]), invalid(expected));
    let expected = "unable to load model 'm', configuration expects 1 inputs, model provides 2";
    assert_eq!(checked(TENSORS, &[("a", &[3]), ("b", &[3])], &[2]), invalid(expected));
    let config = TENSORS.replace("'y'", "'z'");
    let expected = "unexpected inference output 'z', allowed outputs are: y";
    assert_eq!(checked(&config, &[("a", &[3])], &[2]), invalid(expected));
}

#[test]
fn dimensions_are_compared() {
    let batched = format!("{BATCHED} {TENSORS}");
    let expected = "model 'm', tensor 'a': for the model to support batching the shape should have \
                    at least 1 dimension and the first dimension must be -1; but shape expected by \
                    the model is [2,3]";
    assert_eq!(checked(&batched, &[("a", &[2, 3])], &[-1, 2]), invalid(expected));
    let expected = "model 'm', tensor 'a': the model expects 3 dimensions (shape [-1,3,1]) but the \
                    model configuration specifies 2 dimensions (an initial batch dimension because \
                    max_batch_size > 0 followed by the explicit tensor shape, making complete \
                    shape [-1,3])";
    assert_eq!(checked(&batched, &[("a", &[-1, 3, 1])], &[-1, 2]), invalid(expected));
    // An output's size must not be fixed by the configuration alone.
    let expected = "model 'm', tensor 'y': the model expects 1 dimensions (shape [-1]) but the \
                    model configuration specifies 1 dimensions (shape [2])";
    assert_eq!(checked(TENSORS, &[("a", &[3])], &[-1]), invalid(expected));
}

#[test]
fn datatypes_are_compared_after_dimensions() {
    let config = TENSORS.replace("TYPE_FP32 dims: [ 3 ]", "TYPE_INT32 dims: [ 3 ]");
    let expected = "unable to load model 'm', configuration expects datatype TYPE_INT32 for input \
                    'a', model provides TYPE_FP32";
    assert_eq!(checked(&config, &[("a", &[3])], &[2]), invalid(expected));
    let text = checked(&config, &[("a", &[4])], &[2]).unwrap_err().1;
    assert!(text.contains("dimensions"), "{text}");
}

#[test]
fn ragged_inputs_have_one_dimension() {
    let ragged = TENSORS.replace("dims: [ 3 ]", "dims: [ -1 ] allow_ragged_batch: true");
    let config = format!("{BATCHED} {ragged}");
    assert_eq!(checked(&config, &[("a", &[-1])], &[-1, 2]), Ok(()));
    let expected = "unable to load model 'm', configuration expects model provides input with \
                    shape [-1]  for ragged input 'a', model provides [-1,3]";
    assert_eq!(checked(&config, &[("a", &[-1, 3])], &[-1, 2]), invalid(expected));
}

#[test]
fn controls_come_first() {
    let control = "sequence_batching { control_input { name: 's' control {
                     kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } } }";
    let config = format!("{BATCHED} {TENSORS} {control}");
    let inputs: &[(&str, &[i64])] = &[("a", &[-1, 3]), ("s", &[-1, 1])];
    assert_eq!(checked(&config, inputs, &[-1, 2]), Ok(()));
    let expected = "configuration specified sequence control 's', but model does not provide that \
                    input";
    let found = checked(&config, &[("a", &[-1, 3])], &[-1, 2]);
    assert_eq!(found, Err((Code::Internal, expected.to_owned())));
    let expected = "unable to load model 'm', sequence control 's': model 'm', tensor 's': the \
                    model expects 2 dimensions (shape [-1,2]) but the model configuration \
                    specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 \
                    followed by the explicit tensor shape, making complete shape [-1,1])";
    assert_eq!(checked(&config, &[("a", &[-1, 3]), ("s", &[-1, 2])], &[-1, 2]), invalid(expected));
    let config = config.replace("fp32_false_true", "int32_false_true");
    let expected = "unable to load model 'm', sequence control 's': the model expects TYPE_FP32 \
                    but the model configuration specifies data-type TYPE_INT32";
    assert_eq!(checked(&config, inputs, &[-1, 2]), invalid(expected));
}

#[test]
fn a_graph_has_only_names() {
    let names = |inputs: &[&str], outputs: &[&str]| NodeNames {
        inputs: inputs.iter().map(|&name| name.to_owned()).collect(),
        outputs: outputs.iter().map(|&name| name.to_owned()).collect(),
    };
    let check = |inputs: &[&str], outputs: &[&str]| {
        let found = check_graph(&spec(TENSORS), &names(inputs, outputs));
        found.map_err(|status| (status.code(), status.message().to_owned()))
    };
    assert_eq!(check(&["a", "other"], &["x", "y"]), Ok(()));
    let expected =
        "unable to load model 'm', configuration expects 1 inputs, model provides at most 0";
    assert_eq!(check(&[], &["y"]), invalid(expected));
    let expected = "unexpected inference input 'a', allowed inputs are: b";
    assert_eq!(check(&["b"], &["y"]), invalid(expected));
    let expected = "unexpected inference output 'y', allowed outputs are: w, x";
    assert_eq!(check(&["a"], &["x", "w"]), invalid(expected));
}

#[test]
fn tensors_with_too_many_dimensions_are_refused() {
    let with = |batch: &str, rank: usize| {
        let dims = vec!["1"; rank].join(", ");
        check_ranks(&spec(&format!("{batch} {}", TENSORS.replace("[ 3 ]", &format!("[ {dims} ]")))))
            .map_err(|status| (status.code(), status.message().to_owned()))
    };
    assert_eq!(with("", 254), Ok(()));
    assert_eq!(with(BATCHED, 253), Ok(()));
    let expected = "unable to load model 'm', tensor 'a' has 255 dimensions, but TensorFlow \
                    supports at most 254";
    assert_eq!(with("", 255), invalid(expected));
    assert_eq!(with(BATCHED, 254), invalid(expected));
}

#[test]
fn composite_outputs_are_refused_only_if_they_are_listed() {
    let mut signature = Signature {
        inputs: vec![tensor("a", DataType::Fp32, &[3])],
        outputs: vec![tensor("y", DataType::Fp32, &[2]), tensor("z", DataType::Fp32, &[2])],
    };
    signature.outputs[1].graph_name.clear();
    assert_eq!(check_signature(&spec(TENSORS), &signature), Ok(()));
    let status = check_signature(&spec(&TENSORS.replace("'y'", "'z'")), &signature).unwrap_err();
    let expected = "unable to process output 'z' for 'm', a sparse or composite tensor";
    assert_eq!(status.message(), expected);
}

#[test]
fn strings_of_the_model_are_called_bytes() {
    let inputs = vec![tensor("a", DataType::Bytes, &[3])];
    let outputs = vec![tensor("y", DataType::Fp32, &[2])];
    let status = check_signature(&spec(TENSORS), &Signature { inputs, outputs }).unwrap_err();
    let expected = "unable to load model 'm', configuration expects datatype TYPE_FP32 for input \
                    'a', model provides TYPE_BYTES";
    assert_eq!(status.message(), expected);
}
