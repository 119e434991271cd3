//! Tests of completed configurations.

use galatea_config::ConfigDraft;
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::DataType;

use super::*;

fn tensor(name: &str, dims: &[i64]) -> SignatureTensor {
    SignatureTensor {
        name: name.to_owned(),
        graph_name: format!("{name}:0"),
        datatype: DataType::Fp32,
        dims: dims.to_vec(),
    }
}

fn signature(inputs: &[(&str, &[i64])], outputs: &[(&str, &[i64])]) -> Signature {
    let tensors =
        |all: &[(&str, &[i64])]| all.iter().map(|(name, dims)| tensor(name, dims)).collect();
    Signature { inputs: tensors(inputs), outputs: tensors(outputs) }
}

/// Completes a configuration and describes the result: the batch size, the scheduler, and each
/// tensor with its dimensions, and those of its reshape if it has one.
fn completed(config: &str, signature: &Signature, default: i32) -> Result<String, String> {
    let text = format!("backend: 'tensorflow' platform: 'tensorflow_savedmodel' {config}");
    let mut draft = parse_config_draft("config.pbtxt", &text).unwrap();
    draft.rename("m");
    complete(&mut draft, signature, default).map_err(|status| status.message().to_owned())?;
    Ok(described(&draft))
}

fn described(draft: &ConfigDraft) -> String {
    let scheduler = if draft.scheduling_is_set() { "batcher" } else { "none" };
    let mut words = vec![draft.max_batch_size().to_string(), scheduler.to_owned()];
    for tensor in draft.inputs().into_iter().chain(draft.outputs()) {
        let datatype = tensor.datatype.map_or_else(String::new, |one| one.to_string());
        let reshape = tensor.reshape.map_or_else(String::new, |shape| format!(">{shape:?}"));
        words.push(format!("{} {datatype}{:?}{reshape}", tensor.name, tensor.dims));
    }
    words.join(", ")
}

#[test]
fn an_empty_configuration_gets_everything() {
    let batched = signature(&[("a", &[-1, 3]), ("b", &[-1])], &[("y", &[-1, -1, 2])]);
    let expected = "4, batcher, a FP32[3], b FP32[1]>[], y FP32[-1, 2]";
    assert_eq!(completed("", &batched, 4), Ok(expected.to_owned()));
    let expected = "1, none, a FP32[3], b FP32[1]>[], y FP32[-1, 2]";
    assert_eq!(completed("", &batched, 1), Ok(expected.to_owned()));
    // Without a default size, the first dimension stays a dimension of the tensor.
    let expected = "0, none, a FP32[-1, 3], b FP32[-1], y FP32[-1, -1, 2]";
    assert_eq!(completed("", &batched, 0), Ok(expected.to_owned()));
    let fixed = signature(&[("a", &[2, 3])], &[("y", &[-1, 2])]);
    assert_eq!(completed("", &fixed, 4), Ok("0, none, a FP32[2, 3], y FP32[-1, 2]".to_owned()));
}

#[test]
fn given_settings_stay() {
    let batched =
        signature(&[("a", &[-1, 3]), ("b", &[-1, 1])], &[("y", &[-1, 2]), ("z", &[-1, 4])]);
    let config = "max_batch_size: 8 input { name: 'b' dims: [ 1 ] } output { name: 'z' }";
    let expected = "8, batcher, b FP32[1], a FP32[3], z FP32[4]";
    assert_eq!(completed(config, &batched, 4), Ok(expected.to_owned()));
    let config = "max_batch_size: 8 sequence_batching { control_input { name: 'b' } }";
    let expected = "8, batcher, a FP32[3], y FP32[2], z FP32[4]";
    assert_eq!(completed(config, &batched, 4), Ok(expected.to_owned()));
    let config = "input { name: 'a' data_type: TYPE_INT32 dims: [ 3 ] }";
    let expected = "4, batcher, a INT32[3], b FP32[1], y FP32[2], z FP32[4]";
    assert_eq!(completed(config, &batched, 4), Ok(expected.to_owned()));
}

#[test]
fn listed_tensors_decide_about_batches() {
    let batched = signature(&[("a", &[-1, 3])], &[("y", &[-1, 2])]);
    let config = "input { name: 'a' dims: [ -1, 3 ] }";
    let expected = "0, none, a FP32[-1, 3], y FP32[-1, 2]";
    assert_eq!(completed(config, &batched, 4), Ok(expected.to_owned()));
    // A tensor without dimensions is a weaker hint.
    let config = "input { name: 'a' } output { name: 'y' dims: [ -1, 2 ] }";
    let expected = "0, none, a FP32[-1, 3], y FP32[-1, 2]";
    assert_eq!(completed(config, &batched, 4), Ok(expected.to_owned()));
    let config = "input { name: 'a' dims: [ 3 ] } output { name: 'y' dims: [ -1, 2 ] }";
    let expected = "unable to autofill for 'm', model tensor configurations are contradicting each \
                    other in terms of whether batching is supported";
    assert_eq!(completed(config, &batched, 4), Err(expected.to_owned()));
    let config = "input { name: 'a' dims: [ 1 ] reshape { shape: [ 3 ] } }";
    let expected = "4, batcher, a FP32[1]>[3], y FP32[2]";
    assert_eq!(completed(config, &batched, 4), Ok(expected.to_owned()));
}

#[test]
fn ragged_inputs_mean_batches() {
    let ragged = signature(&[("a", &[-1]), ("n", &[-1])], &[("y", &[-1, 2])]);
    let config = "input { name: 'a' data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
                  batch_input { kind: BATCH_ELEMENT_COUNT target_name: 'n' source_input: 'a' }";
    let expected = "4, batcher, a FP32[-1], y FP32[2]";
    assert_eq!(completed(config, &ragged, 4), Ok(expected.to_owned()));
}

#[test]
fn impossible_configurations_are_refused_in_tritons_words() {
    let fixed = signature(&[("a", &[2, 3])], &[("y", &[-1, 2])]);
    let expected = "unable to autofill for 'm', configuration specified max-batch 8 but model \
                    signature does not support batching";
    assert_eq!(completed("max_batch_size: 8", &fixed, 4), Err(expected.to_owned()));
    let scalar = signature(&[("a", &[])], &[("y", &[-1, 2])]);
    let expected = "Unable to autofill for 'm': the rank of model tensor 'a' is 0 and dimensions \
                    are not defined";
    assert_eq!(completed("", &scalar, 4), Err(expected.to_owned()));
    let config = "input { name: 'a' data_type: TYPE_FP32 dims: [ 1 ] }";
    let expected = "0, none, a FP32[1], y FP32[-1, 2]";
    assert_eq!(completed(config, &scalar, 4), Ok(expected.to_owned()));
    let scalar = signature(&[("a", &[-1, 3])], &[("y", &[])]);
    let expected =
        "Unable to autofill for 'm': the rank of model tensor 'y' is 0 which is not supported";
    assert_eq!(completed("", &scalar, 4), Err(expected.to_owned()));
}
