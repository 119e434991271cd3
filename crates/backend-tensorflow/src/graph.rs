//! Facts about a graph that follow from its operators.

use std::collections::BTreeSet;

use galatea_backend::ExecutionPredictability;

use crate::messages::{GraphDef, NodeDef};

/// The memory of a run's outputs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutputStability {
    /// It doesn't change as long as an output refers to it.
    Stable,
    /// It may belong to a reference variable, which other runs overwrite in place.
    MayChange,
}

/// The names of a graph's nodes. A `GraphDef` doesn't say which of them are meant as inputs and
/// outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeNames {
    /// The placeholders.
    pub(crate) inputs: BTreeSet<String>,
    /// All other nodes.
    pub(crate) outputs: BTreeSet<String>,
}

impl NodeNames {
    pub(crate) fn of(graph: &GraphDef) -> Self {
        let mut names = Self::default();
        for node in &graph.nodes {
            let list =
                if node.operator == "Placeholder" { &mut names.inputs } else { &mut names.outputs };
            list.insert(node.name.clone());
        }
        names
    }
}

/// Operators that gather the inputs of several runs.
const GATHERING: [&str; 2] = ["Batch", "BatchFunction"];

/// The beginnings of the names of other operators that may wait for another run, or call other
/// code.
const WAITING: [&str; 11] = [
    "Barrier",
    "ConditionalAccumulator",
    "EagerPyFunc",
    "FIFOQueue",
    "Iterator",
    "MapUnstage",
    "Mutex",
    "OrderedMapUnstage",
    "PyFunc",
    "Queue",
    "Unstage",
];

/// Operators whose output refers to the memory of a variable that others overwrite in place.
const REFERENCE_VARIABLES: [&str; 4] =
    ["TemporaryVariable", "Variable", "VariableV2", "LegacyVariable"];

fn operators(graph: &GraphDef) -> impl Iterator<Item = &str> {
    let functions = graph.library.iter().flat_map(|library| &library.functions);
    let nodes = graph.nodes.iter().chain(functions.flat_map(|function| &function.nodes));
    nodes.map(|node: &NodeDef| node.operator.as_str())
}

/// The guarantee for executing a graph. Reading from a queue waits for a run that writes to it.
pub(crate) fn guarantee(graph: &GraphDef) -> ExecutionPredictability {
    let may_wait = |name: &str| {
        GATHERING.contains(&name) || WAITING.iter().any(|start| name.starts_with(start))
    };
    if operators(graph).any(may_wait) {
        ExecutionPredictability::Unspecified
    } else {
        ExecutionPredictability::NonBlocking
    }
}

/// The memory of the outputs of a graph's runs.
pub(crate) fn output_stability(graph: &GraphDef) -> OutputStability {
    if operators(graph).any(|name| REFERENCE_VARIABLES.contains(&name)) {
        OutputStability::MayChange
    } else {
        OutputStability::Stable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{FunctionDef, FunctionLibrary};

    fn node(operator: &str) -> NodeDef {
        NodeDef { name: operator.to_lowercase(), operator: operator.to_owned() }
    }

    fn graph(operators: &[&str], in_function: &[&str]) -> GraphDef {
        let nodes = |operators: &[&str]| operators.iter().map(|name| node(name)).collect();
        let function = FunctionDef { nodes: nodes(in_function) };
        let library = FunctionLibrary { functions: vec![function] };
        GraphDef { nodes: nodes(operators), library: Some(library) }
    }

    #[test]
    fn operators_decide_about_waiting_and_about_memory() {
        let pure =
            graph(&["Placeholder", "BatchMatMulV2", "VarHandleOp"], &["Relu", "ReadVariableOp"]);
        assert_eq!(guarantee(&pure), ExecutionPredictability::NonBlocking);
        assert_eq!(output_stability(&pure), OutputStability::Stable);
        for waiting in ["QueueDequeueV2", "BatchFunction", "PyFunc", "IteratorGetNext"] {
            let graph = graph(&["Placeholder"], &[waiting]);
            assert_eq!(guarantee(&graph), ExecutionPredictability::Unspecified, "{waiting}");
        }
        assert_eq!(output_stability(&graph(&["VariableV2"], &[])), OutputStability::MayChange);
    }

    #[test]
    fn placeholders_are_the_inputs_and_other_nodes_the_outputs() {
        let names = NodeNames::of(&graph(&["Placeholder", "MatMul", "Relu"], &["Placeholder"]));
        assert_eq!(names.inputs, BTreeSet::from(["placeholder".to_owned()]));
        assert_eq!(names.outputs, BTreeSet::from(["matmul".to_owned(), "relu".to_owned()]));
    }
}
