//! Completes configurations from interfaces.

#![allow(clippy::unwrap_used, reason = "a test may fail in any line")]

mod support;

use galatea_infer::Status;
use galatea_pbtxt::parse_config_draft;
use galatea_runtime::auto_complete::{complete_config, is_config_complete};
use galatea_runtime::{BatchingSupport, ElementKind, SessionInterface};
use galatea_tensor::DataType;

use support::fake::{info, interface};

/// Completes a configuration, and returns its tensors in order.
fn completed(
    interface: &SessionInterface,
    batching: BatchingSupport,
    config: &str,
) -> Result<(i32, Vec<String>), String> {
    let mut draft = parse_config_draft("config.pbtxt", config).unwrap();
    draft.resolve_name_and_backend("m", &["model.onnx".to_owned()]).unwrap();
    complete_config(&mut draft, interface, batching, 4)
        .map_err(|status| status.message().to_owned())?;
    assert!(is_config_complete(&draft));
    let tensors = draft.inputs().into_iter().chain(draft.outputs());
    let text = |name: &str, dims: &[i64]| format!("{name} {dims:?}");
    Ok((draft.max_batch_size(), tensors.map(|one| text(&one.name, &one.dims)).collect()))
}

fn two_inputs() -> SessionInterface {
    let of = |name| info(name, DataType::Fp32, &[-1, 3]);
    interface(vec![of("A"), of("B")], vec![of("C")])
}

#[test]
fn tensors_come_in_the_order_of_the_interface() {
    let two = two_inputs();
    assert_eq!(two.batching_by_first_dimension(), BatchingSupport::Possible);
    let found = completed(&two, BatchingSupport::Possible, "");
    assert_eq!(found, Ok((4, ["A [3]", "B [3]", "C [3]"].map(String::from).to_vec())));
    let found = completed(&two.reversed(), BatchingSupport::Impossible, "");
    assert_eq!(found, Ok((0, ["B [-1, 3]", "A [-1, 3]", "C [-1, 3]"].map(String::from).to_vec())));
}

#[test]
fn inputs_with_a_default_are_not_added() {
    let mut interface = two_inputs();
    interface.required_inputs = 1;
    let (_, tensors) = completed(&interface.reversed(), BatchingSupport::Possible, "").unwrap();
    assert_eq!(tensors, ["A [3]", "C [3]"]);
}

#[test]
fn a_fixed_first_dimension_means_no_batches() {
    let mut interface = two_inputs();
    interface.outputs[0].dims = vec![3];
    let batching = interface.batching_by_first_dimension();
    assert_eq!(batching, BatchingSupport::Impossible);
    let message = completed(&interface, batching, "max_batch_size: 2").unwrap_err();
    assert!(message.starts_with("autofill failed for model 'm'"), "{message}");
}

#[test]
fn a_file_that_says_nothing_about_batches_leaves_them_to_the_configuration() {
    let two = two_inputs();
    let found = completed(&two, BatchingSupport::NotStated, "max_batch_size: 2");
    assert_eq!(found, Ok((2, ["A [3]", "B [3]", "C [3]"].map(String::from).to_vec())));
    assert_eq!(completed(&two, BatchingSupport::NotStated, "").unwrap().0, 0);
}

#[test]
fn tensors_that_requests_cannot_have_are_refused() {
    let mut interface = two_inputs();
    interface.inputs[1].element = ElementKind::Unknown(String::from("an odd type"));
    let message = completed(&interface, BatchingSupport::Possible, "").unwrap_err();
    assert_eq!(message, "tensor 'B' has an odd type");
    interface.inputs[1].element = ElementKind::NotATensor(Status::unsupported("a map"));
    assert_eq!(completed(&interface, BatchingSupport::Possible, ""), Err(String::from("a map")));
}
