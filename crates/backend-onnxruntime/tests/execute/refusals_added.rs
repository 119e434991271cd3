//! Models that contradict the inputs and outputs that the server adds: controls, states and batch
//! inputs.

use galatea_infer::Code;

use crate::support::onnx::{BOOL, Element, FLOAT, Graph, INT32};
use crate::support::{Files, failure, load, try_load};

fn check(graph: Graph, config: &str, expected: &str) {
    let (code, message) = failure(try_load(&Files::model(graph), config));
    assert_eq!(code, Code::InvalidArgument, "{message}");
    assert!(message.contains(expected), "{message}\n  lacks\n{expected}");
}

/// A model with `INPUT`, `OUTPUT` and perhaps another input.
fn graph(added: Option<(&str, Element, &[i64])>) -> Graph {
    let graph = Graph::default()
        .input("INPUT", INT32, &[-1, 2])
        .output("OUTPUT", INT32, &[-1, 2])
        .node("Identity", &["INPUT"], &["OUTPUT"]);
    match added {
        Some((name, element, dims)) => graph.input(name, element, dims),
        None => graph,
    }
}

fn config(max_batch_size: u32, settings: &str) -> String {
    format!(
        "max_batch_size: {max_batch_size}
         input [ {{ name: 'INPUT' data_type: TYPE_INT32 dims: [ 2 ] }} ]
         output [ {{ name: 'OUTPUT' data_type: TYPE_INT32 dims: [ 2 ] }} ]
         {settings}"
    )
}

const START: &str = "sequence_batching { control_input [ {
    name: 'START' control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ]
} ] }";

#[test]
fn controls_that_the_model_contradicts() {
    let config = config(4, START);
    load(graph(Some(("START", INT32, &[-1, 1]))), &config);
    check(
        graph(None),
        &config,
        "unable to load model 'm', configuration specified sequence control 'START', but model \
         does not provide that input; it provides: INPUT",
    );
    check(
        graph(Some(("START", BOOL, &[-1, 1]))),
        &config,
        "unable to load model 'm', sequence control 'START', the model expects data-type TYPE_BOOL \
         but the model configuration specifies data-type TYPE_INT32",
    );
    for (dims, shown) in
        [(&[-1][..], "[]"), (&[-1, 2], "[2]"), (&[-1, -1], "[-1]"), (&[-1, 1, 1], "[1,1]")]
    {
        let expected = format!(
            "unable to load model 'm', sequence control 'START' in model has dims {shown} but dims \
             [1] is expected"
        );
        check(graph(Some(("START", INT32, dims))), &config, &expected);
    }
    check(
        graph(Some(("START", INT32, &[4, 1]))),
        &config,
        "model 'm', tensor 'START': for the model to support batching the shape should have at \
         least 1 dimension and the first dimension must be -1; but shape expected by the model is \
         [4,1]",
    );
}

#[test]
fn controls_without_batching() {
    let graph = |dims: &[i64]| {
        Graph::default()
            .input("INPUT", INT32, &[2])
            .input("START", INT32, dims)
            .output("OUTPUT", INT32, &[2])
            .node("Identity", &["INPUT"], &["OUTPUT"])
    };
    load(graph(&[1]), &config(0, START));
    let expected = "'START' in model has dims [-1,1] but dims [1] is expected";
    check(graph(&[-1, 1]), &config(0, START), expected);
}

#[test]
fn model_inputs_that_the_configuration_leaves_out() {
    check(
        graph(Some(("START", INT32, &[-1, 1]))),
        &config(4, "sequence_batching { }"),
        "unable to load model 'm', configuration expects 1 inputs, model provides 2: INPUT, START",
    );
    let two = START.replace(
        "control_input",
        "control_input [ { name: 'INPUT2' control [ {
        kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] } ] control_input",
    );
    check(
        graph(Some(("START", INT32, &[-1, 1]))),
        &config(4, &two),
        "configuration specified sequence control 'INPUT2', but model does not provide that input",
    );
}

const STATE: &str = "sequence_batching { state [ {
    input_name: 'S_IN' output_name: 'S_OUT' data_type: TYPE_INT32 dims: [ 2 ]
} ] }";

fn stateful(input: (Element, &[i64]), output: (Element, &[i64])) -> Graph {
    graph(Some(("S_IN", input.0, input.1))).output("S_OUT", output.0, output.1).node(
        "Identity",
        &["S_IN"],
        &["S_OUT"],
    )
}

#[test]
fn states_that_the_model_contradicts() {
    let config = config(4, STATE);
    let good = (INT32, &[-1, 2][..]);
    load(stateful(good, good), &config);
    // Either side may leave a size variable.
    let open = (INT32, &[-1, -1][..]);
    load(stateful(open, open), &config);
    load(
        stateful(good, good),
        &config.replace("TYPE_INT32 dims: [ 2 ]\n} ] }", "TYPE_INT32 dims: [ -1 ]\n} ] }"),
    );
    let place = "model 'm', tensor";
    for (input, output, expected) in [
        (
            (FLOAT, &[-1, 2][..]),
            (FLOAT, &[-1, 2][..]),
            "configuration expects datatype TYPE_INT32 for input state 'S_IN', model provides \
             TYPE_FP32"
                .to_owned(),
        ),
        (
            (INT32, &[-1, 3][..]),
            (INT32, &[-1, 3][..]),
            format!("{place} 'S_IN': the model expects 2 dimensions (shape [-1,3]) but"),
        ),
        (
            (INT32, &[-1, 2, 1][..]),
            (INT32, &[-1, 2, 1][..]),
            format!("{place} 'S_IN': the model expects 3 dimensions (shape [-1,2,1]) but"),
        ),
        (
            (INT32, &[1, 2][..]),
            (INT32, &[1, 2][..]),
            format!("{place} 'S_IN': for the model to support batching"),
        ),
    ] {
        check(stateful(input, output), &config, &expected);
    }
}

#[test]
fn state_outputs_that_the_model_contradicts() {
    let config = config(4, STATE);
    let cast = |element: Element, dims: &[i64]| {
        let number = [("to", element.0)];
        graph(Some(("S_IN", INT32, &[-1, 2]))).output("S_OUT", element, dims).node_with(
            "Cast",
            &["S_IN"],
            &["S_OUT"],
            &number,
        )
    };
    check(
        cast(FLOAT, &[-1, 2]),
        &config,
        "configuration expects datatype TYPE_INT32 for output state 'S_OUT', model provides \
         TYPE_FP32",
    );
    check(
        graph(Some(("S_IN", INT32, &[-1, 2]))),
        &config,
        "unexpected inference output 'S_OUT', allowed outputs are: OUTPUT",
    );
    let other = graph(Some(("S_IN", INT32, &[-1, -1]))).output("S_OUT", INT32, &[-1, 5]).node(
        "Identity",
        &["S_IN"],
        &["S_OUT"],
    );
    check(other, &config, "tensor 'S_OUT': the model expects 2 dimensions (shape [-1,5]) but");
}

fn batch_input(kind: &str, datatype: &str) -> String {
    format!(
        "max_batch_size: 4
         input [ {{ name: 'INPUT' data_type: TYPE_FP32 dims: [ -1, 3 ] allow_ragged_batch: true }} ]
         output [ {{ name: 'OUTPUT' data_type: TYPE_FP32 dims: [ -1 ] }} ]
         batch_input [ {{
           kind: {kind} target_name: 'SHAPES' data_type: {datatype} source_input: 'INPUT'
         }} ]
         batch_output [ {{
           kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: 'OUTPUT' source_input: 'INPUT'
         }} ]"
    )
}

fn ragged(input: &[i64], shapes: (Element, &[i64])) -> Graph {
    Graph::default()
        .input("INPUT", FLOAT, input)
        .input("SHAPES", shapes.0, shapes.1)
        .output("OUTPUT", FLOAT, input)
        .node("Identity", &["INPUT"], &["OUTPUT"])
}

#[test]
fn ragged_inputs_that_the_model_contradicts() {
    let config = batch_input("BATCH_ELEMENT_COUNT", "TYPE_INT32");
    load(ragged(&[-1], (INT32, &[-1])), &config);
    for (dims, shown) in [(&[-1, -1][..], "[-1,-1]"), (&[6], "[6]"), (&[], "[]")] {
        let expected = format!(
            "unable to load model 'm', configuration expects model provides input with shape [-1] \
             for ragged input 'INPUT', model provides {shown}"
        );
        check(ragged(dims, (INT32, &[-1])), &config, &expected);
    }
    let optional = "
        input [ {
          name: 'INPUT' data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true optional: true
        } ]
        output [ { name: 'OUTPUT' data_type: TYPE_FP32 dims: [ -1 ] } ]";
    let graph = Graph::default()
        .input("INPUT", FLOAT, &[-1])
        .initializer("INPUT", FLOAT, &[1], crate::support::onnx::Data::Here(&[0; 4]))
        .output("OUTPUT", FLOAT, &[-1])
        .node("Identity", &["INPUT"], &["OUTPUT"]);
    let expected = "for ragged input 'INPUT', which is not supported for optional input";
    check(graph, optional, expected);
}

#[test]
fn batch_inputs_that_the_model_contradicts() {
    let config = batch_input("BATCH_ELEMENT_COUNT", "TYPE_INT32");
    check(
        ragged(&[-1], (FLOAT, &[-1])),
        &config,
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for batch input \
         'SHAPES', model provides TYPE_FP32",
    );
    check(
        ragged(&[-1], (INT32, &[-1])),
        &config.replace("'SHAPES'", "'SIZES'"),
        "unable to load model 'm', configuration specified batch input 'SIZES', but model does not \
         provide that input; it provides: INPUT, SHAPES",
    );
    check(
        ragged(&[-1], (INT32, &[-1, -1])),
        &config,
        "unable to load model 'm', batch input 'SHAPES' in model has dims [-1,-1] but dims [-1] is \
         expected",
    );
    let items = batch_input("BATCH_ITEM_SHAPE", "TYPE_INT32");
    for dims in [&[-1, 2][..], &[-1, -1], &[4, 2]] {
        load(ragged(&[-1], (INT32, dims)), &items);
    }
    for (dims, shown) in [(&[-1, 3][..], "[-1,3]"), (&[-1], "[-1]")] {
        let expected =
            format!("batch input 'SHAPES' in model has dims {shown} but dims [-1,2] is expected");
        check(ragged(&[-1], (INT32, dims)), &items, &expected);
    }
}
