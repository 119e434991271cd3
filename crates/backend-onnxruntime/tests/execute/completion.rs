//! Configurations that the model completes.

use galatea_backend::Backend;
use galatea_config::{ConfigDraft, Support};

use crate::support::onnx::{FLOAT, Graph, INT32, INT64, STRING, identity};
use crate::support::{Files, backend_with, failure};

/// Completes `config` and returns what came of it, a word per fact.
fn complete(graph: Graph, config: &str) -> Result<Vec<String>, String> {
    let files = Files::model(graph);
    let mut draft = ConfigDraft::from_pbtxt("config.pbtxt", config).unwrap();
    draft.resolve_identity("m", &["model.onnx".to_owned()]).unwrap();
    let backend = backend_with(&[("default-max-batch-size", "5")]);
    backend.complete_config(&mut draft, &files).map_err(|status| status.message().to_owned())?;
    let scheduler = if draft.scheduling_is_set() { "scheduler" } else { "none" };
    let mut facts = vec![format!("{} {scheduler}", draft.max_batch_size())];
    for (kind, tensors) in [("in", draft.inputs()), ("out", draft.outputs())] {
        for tensor in tensors {
            let datatype = tensor.datatype.unwrap();
            let reshape = tensor.reshape.map(|dims| format!(" as {dims:?}")).unwrap_or_default();
            facts.push(format!("{kind} {} {datatype} {:?}{reshape}", tensor.name, tensor.dims));
        }
    }
    draft.finish(&Support::default()).unwrap();
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
fn everything() {
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
fn what_the_configuration_says_stays() {
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
    let mut draft = ConfigDraft::from_pbtxt("config.pbtxt", config).unwrap();
    let backend = backend_with(&[]);
    backend.complete_config(&mut draft, &files).unwrap();
    let (_, message) = failure(backend.complete_config(&mut ConfigDraft::empty(), &files));
    assert!(message.starts_with("failed to open '"), "{message}");
}

#[test]
fn a_model_that_can_not_batch() {
    let message = complete(identity(FLOAT, &[3]), "max_batch_size: 2").unwrap_err();
    assert_eq!(
        message,
        "autofill failed for model 'm': model does not support batching while non-zero \
         max_batch_size is specified"
    );
}
