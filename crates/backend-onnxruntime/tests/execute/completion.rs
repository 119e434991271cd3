//! Tests that complete configurations from models.

use galatea_backend::Backend;
use galatea_config::{ConfigDraft, SupportedFeatures};
use galatea_pbtxt::parse_config_draft;

use crate::support::onnx::{FLOAT, Graph, INT32, INT64, STRING, identity};
use crate::support::{Files, backend_with, failure};

/// Completes `config` and describes the result.
fn complete(graph: Graph, config: &str) -> Result<Vec<String>, String> {
    let files = Files::model(graph);
    let mut draft = parse_config_draft("config.pbtxt", config).unwrap();
    draft.resolve_name_and_backend("m", &["model.onnx".to_owned()]).unwrap();
    let backend = backend_with(&[("default-max-batch-size", "5")]);
    backend
        .auto_complete_config(&mut draft, &files)
        .map_err(|status| status.message().to_owned())?;
    let scheduler = if draft.scheduling_is_set() { "scheduler" } else { "none" };
    let mut facts = vec![format!("{} {scheduler}", draft.max_batch_size())];
    for (kind, tensors) in [("in", draft.inputs()), ("out", draft.outputs())] {
        for tensor in tensors {
            let datatype = tensor.datatype.unwrap();
            let reshape = tensor.reshape.map(|dims| format!(" as {dims:?}")).unwrap_or_default();
            facts.push(format!("{kind} {} {datatype} {:?}{reshape}", tensor.name, tensor.dims));
        }
    }
    draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
    Ok(facts)
}

fn check(graph: Graph, config: &str, expected: &[&str]) {
    assert_eq!(complete(graph, config).unwrap(), expected);
}

fn two_outputs() -> Graph {
    Graph::default()
        .input("A", INT64, &[-1, 3])
        .input("B", INT64, &[-1, 3])
        .output("SUM", INT64, &[-1, 3])
        .output("SAME", INT64, &[-1, 3])
        .node("Add", &["A", "B"], &["SUM"])
        .node("Identity", &["A"], &["SAME"])
}

#[test]
fn an_empty_configuration_is_completed() {
    check(
        two_outputs(),
        "",
        &[
            "5 scheduler",
            "in B INT64 [3]",
            "in A INT64 [3]",
            "out SAME INT64 [3]",
            "out SUM INT64 [3]",
        ],
    );
    check(
        identity(STRING, &[2, -1]),
        "",
        &["0 none", "in INPUT0 BYTES [2, -1]", "out OUTPUT0 BYTES [2, -1]"],
    );
    check(identity(FLOAT, &[]), "", &["0 none", "in INPUT0 FP32 [1]", "out OUTPUT0 FP32 [1]"]);
    check(
        identity(FLOAT, &[-1]),
        "",
        &["5 scheduler", "in INPUT0 FP32 [1] as []", "out OUTPUT0 FP32 [1] as []"],
    );
}

#[test]
fn configured_values_stay() {
    let output = "output [ { name: 'SUM' data_type: TYPE_INT64 dims: [ 3 ] } ]";
    check(
        two_outputs(),
        &format!("max_batch_size: 1 {output}"),
        &["1 none", "in B INT64 [3]", "in A INT64 [3]", "out SUM INT64 [3]"],
    );
    let batching = "max_batch_size: 7 dynamic_batching { max_queue_delay_microseconds: 3 }";
    check(
        identity(INT32, &[-1, 2]),
        batching,
        &["7 scheduler", "in INPUT0 INT32 [2]", "out OUTPUT0 INT32 [2]"],
    );
}

#[test]
fn a_complete_configuration_needs_no_model() {
    let files = Files::new(&[("model.onnx", b"not a model")]);
    let config = "
        input [ { name: 'INPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]
        output [ { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]";
    let mut draft = parse_config_draft("config.pbtxt", config).unwrap();
    let backend = backend_with(&[]);
    backend.auto_complete_config(&mut draft, &files).unwrap();
    let (_, message) = failure(backend.auto_complete_config(&mut ConfigDraft::empty(), &files));
    assert!(message.starts_with("failed to open '"), "{message}");
}

#[test]
// row: ONNX-02
fn a_model_without_a_batch_dimension_is_not_batched() {
    let message = complete(identity(FLOAT, &[3]), "max_batch_size: 2").unwrap_err();
    assert_eq!(
        message,
        "autofill failed for model 'm': model does not support batching while non-zero \
         max_batch_size is specified"
    );
}

#[test]
fn controls_and_states_are_not_added_as_inputs_and_outputs() {
    let graph = Graph::default()
        .input("X", INT32, &[-1, 2])
        .input("START", INT32, &[-1, 1])
        .input("S_IN", INT32, &[-1, 2])
        .output("Y", INT32, &[-1, 2])
        .output("S_OUT", INT32, &[-1, 2])
        .node("Add", &["X", "S_IN"], &["S_OUT"])
        .node("Mul", &["X", "START"], &["Y"]);
    let sequence = "max_batch_size: 3 sequence_batching {
        control_input [ { name: 'START' control [ {
          kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]
        } ] } ]
        state [ { input_name: 'S_IN' output_name: 'S_OUT' data_type: TYPE_INT32 dims: [ 2 ] } ]
      }";
    check(graph.clone(), sequence, &["3 scheduler", "in X INT32 [2]", "out Y INT32 [2]"]);
    // A listed state counts as an output, so no other output is added.
    let listed = "output [ { name: 'S_OUT' data_type: TYPE_INT32 dims: [ 2 ] } ]";
    check(
        graph,
        &format!("{sequence} {listed}"),
        &["3 scheduler", "in X INT32 [2]", "out S_OUT INT32 [2]"],
    );
}

#[test]
fn inputs_of_ragged_batches_must_be_listed() {
    let graph = Graph::default()
        .input("RAGGED", FLOAT, &[-1])
        .input("COUNT", INT32, &[-1])
        .output("Y", FLOAT, &[-1, 1])
        .node("Unsqueeze", &["RAGGED", "axes"], &["Y"])
        .initializer("axes", INT64, &[1], crate::support::onnx::Data::Here(&1_i64.to_le_bytes()));
    let count = "batch_input [ {
        kind: BATCH_ELEMENT_COUNT target_name: 'COUNT' data_type: TYPE_INT32
        source_input: 'RAGGED'
      } ]";
    let ragged =
        "input [ { name: 'RAGGED' data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]";
    check(
        graph.clone(),
        &format!("max_batch_size: 2 {ragged} {count}"),
        &["2 scheduler", "in RAGGED FP32 [-1]", "out Y FP32 [1]"],
    );
    let files = Files::model(graph);
    let mut draft = parse_config_draft("config.pbtxt", count).unwrap();
    draft.resolve_name_and_backend("m", &["model.onnx".to_owned()]).unwrap();
    backend_with(&[]).auto_complete_config(&mut draft, &files).unwrap();
    assert!(draft.inputs().is_empty());
    let errors = draft.into_validated_spec(&SupportedFeatures::default()).unwrap_err().to_string();
    assert!(errors.contains("RAGGED"), "{errors}");
}
