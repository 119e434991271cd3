//! Facts about a graph that follow from its operators.

use std::collections::BTreeSet;

use galatea_backend::ExecutionPredictability;

use crate::messages::{GraphDef, NodeDef};
use crate::predictable::is_predictable;

/// The memory that a run's outputs use.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutputStability {
    /// The memory doesn't change as long as an output refers to it.
    Stable,
    /// The memory may belong to a reference variable, or be the target of an operator, and other
    /// runs may overwrite it in place.
    MayChange,
}

/// The memory of the inputs that the library receives.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputSharing {
    /// The request's memory, if it is aligned.
    InPlace,
    /// The request's memory, if the input is large. A variable may keep an input, and thereby the
    /// memory of the whole request.
    LargeInPlace,
    /// A copy. An operator may write to the memory of its inputs.
    Copied,
}

/// The threads that execute a graph's operators.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExecutorChoice {
    /// The session's pool, in which independent operators execute concurrently.
    Pool,
    /// The thread that runs the session. One thread is enough, and handing the operators to it
    /// would cost two wake-ups.
    Caller,
}

/// Facts about a graph that follow from its operators.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct GraphFacts {
    pub(crate) guarantee: ExecutionPredictability,
    pub(crate) executor: ExecutorChoice,
    pub(crate) output_memory: OutputStability,
    pub(crate) input_sharing: InputSharing,
}

/// The operators that a graph may contain.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum KnownOperators {
    /// Only TensorFlow's operators.
    Standard,
    /// Also operators from operator libraries, about which nothing is known.
    FromLibraries,
}

/// The names of a graph's nodes. A `GraphDef` doesn't specify which of them are inputs and outputs.
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

/// Operators that combine the inputs of several runs.
const GATHERING: [&str; 2] = ["Batch", "BatchFunction"];

/// Parts of the names of other operators that may wait for another run, another process or files,
/// or that call other code.
const WAITING: [&str; 17] = [
    "Accumulator",
    "Barrier",
    "Collective",
    "Dataset",
    "Iterator",
    "Mutex",
    "Nccl",
    "OutfeedDequeue",
    "Peek",
    "PyFunc",
    "Queue",
    "Reader",
    "Recv",
    "RemoteCall",
    "Rendezvous",
    "Rpc",
    "Unstage",
];

/// Parts of the names of operators that write to the memory of their inputs even if others refer to
/// it.
const OVERWRITING: [&str; 2] = ["Inplace", "ParallelConcatUpdate"];

/// Parts of the names of operators that may keep an input after the run.
const KEEPING: [&str; 9] = [
    "Accumulator",
    "Assign",
    "Enqueue",
    "Insert",
    "ResourceScatter",
    "SessionHandle",
    "SetItem",
    "Stage",
    "Push",
];

/// Operators whose output refers to a variable's memory, which others overwrite in place.
const REFERENCE_VARIABLES: [&str; 4] =
    ["TemporaryVariable", "Variable", "VariableV2", "LegacyVariable"];

fn operators(graph: &GraphDef) -> impl Iterator<Item = &str> {
    let functions = graph.library.iter().flat_map(|library| &library.functions);
    let nodes = graph.nodes.iter().chain(functions.flat_map(|function| &function.nodes));
    nodes.map(|node: &NodeDef| node.operator.as_str())
}

impl GraphFacts {
    /// Determines the facts about a graph.
    pub(crate) fn of(graph: &GraphDef, known: KnownOperators) -> Self {
        if known == KnownOperators::FromLibraries {
            return Self {
                guarantee: ExecutionPredictability::Unspecified,
                executor: ExecutorChoice::Pool,
                output_memory: OutputStability::MayChange,
                input_sharing: InputSharing::Copied,
            };
        }
        let overwrites = has_any_of(graph, &OVERWRITING);
        Self {
            guarantee: guarantee(graph),
            executor: ExecutorChoice::Pool,
            output_memory: if overwrites {
                OutputStability::MayChange
            } else {
                output_stability(graph)
            },
            input_sharing: if overwrites {
                InputSharing::Copied
            } else if has_any_of(graph, &KEEPING) {
                InputSharing::LargeInPlace
            } else {
                InputSharing::InPlace
            },
        }
    }
}

impl GraphFacts {
    /// Lets the calling thread execute the operators, if the graph never waits for another run. If
    /// the work for the outputs also depends only on shapes, the calling thread may be any.
    ///
    /// The library keeps nothing for a calling thread. Its threads for parts of an operator, which
    /// all models share, wait for nothing, and the calling thread does such parts itself.
    pub(crate) fn executed_by_caller<'graph>(
        self,
        graph: &'graph GraphDef,
        outputs: impl Iterator<Item = &'graph str>,
    ) -> Self {
        if self.guarantee == ExecutionPredictability::Unspecified {
            return self;
        }
        let guarantee = if is_predictable(graph, outputs) {
            ExecutionPredictability::Predictable
        } else {
            self.guarantee
        };
        Self { guarantee, executor: ExecutorChoice::Caller, ..self }
    }
}

fn has_any_of(graph: &GraphDef, parts: &[&str]) -> bool {
    operators(graph).any(|name| parts.iter().any(|part| name.contains(part)))
}

/// The guarantee for executing a graph. Reading from a queue waits for a run that writes to it.
fn guarantee(graph: &GraphDef) -> ExecutionPredictability {
    let gathers = operators(graph).any(|name| GATHERING.contains(&name));
    if gathers || has_any_of(graph, &WAITING) {
        ExecutionPredictability::Unspecified
    } else {
        ExecutionPredictability::NonBlocking
    }
}

fn output_stability(graph: &GraphDef) -> OutputStability {
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
        NodeDef {
            name: operator.to_lowercase(),
            operator: operator.to_owned(),
            ..NodeDef::default()
        }
    }

    fn graph(operators: &[&str], in_function: &[&str]) -> GraphDef {
        let nodes = |operators: &[&str]| operators.iter().map(|name| node(name)).collect();
        let function = FunctionDef { nodes: nodes(in_function), ..FunctionDef::default() };
        let library = FunctionLibrary { functions: vec![function] };
        GraphDef { nodes: nodes(operators), library: Some(library) }
    }

    #[test]
    fn operators_decide_about_waiting_and_about_memory() {
        let pure =
            graph(&["Placeholder", "BatchMatMulV2", "VarHandleOp"], &["Relu", "ReadVariableOp"]);
        assert_eq!(guarantee(&pure), ExecutionPredictability::NonBlocking);
        assert_eq!(output_stability(&pure), OutputStability::Stable);
        for waiting in [
            "QueueDequeueV2",
            "BatchFunction",
            "PyFunc",
            "IteratorGetNext",
            "SparseConditionalAccumulator",
            "AccumulatorTakeGradient",
            "OrderedMapPeek",
            "ReaderReadV2",
            "OneShotIterator",
            "ReduceDataset",
            "CollectiveReduceV2",
            "_HostRecv",
        ] {
            let graph = graph(&["Placeholder"], &[waiting]);
            assert_eq!(guarantee(&graph), ExecutionPredictability::Unspecified, "{waiting}");
        }
        assert_eq!(output_stability(&graph(&["VariableV2"], &[])), OutputStability::MayChange);
    }

    #[test]
    fn operators_decide_about_inputs_in_place() {
        let sharing = |graph: &GraphDef| GraphFacts::of(graph, KnownOperators::Standard);
        let pure = graph(&["Placeholder", "MatMul"], &["ReadVariableOp", "ExpandDims"]);
        assert_eq!(sharing(&pure).input_sharing, InputSharing::InPlace);
        for keeping in ["AssignVariableOp", "Assign", "TensorListPushBack", "QueueEnqueueV2"] {
            let graph = graph(&[], &[keeping]);
            assert_eq!(sharing(&graph).input_sharing, InputSharing::LargeInPlace, "{keeping}");
        }
        for writing in ["InplaceUpdate", "InplaceAdd", "InplaceSub", "_ParallelConcatUpdate"] {
            for graph in [graph(&[writing, "Assign"], &[]), graph(&[], &[writing])] {
                let facts = sharing(&graph);
                assert_eq!(facts.input_sharing, InputSharing::Copied, "{writing}");
                assert_eq!(facts.output_memory, OutputStability::MayChange, "{writing}");
            }
        }
        let unknown = GraphFacts::of(&pure, KnownOperators::FromLibraries);
        assert_eq!(unknown.input_sharing, InputSharing::Copied);
        assert_eq!(unknown.output_memory, OutputStability::MayChange);
        assert_eq!(unknown.guarantee, ExecutionPredictability::Unspecified);
    }

    #[test]
    fn the_caller_executes_what_never_waits() {
        let of = |operator: &str| {
            let graph = graph(&[operator], &[]);
            let outputs = [operator.to_lowercase()];
            let facts = GraphFacts::of(&graph, KnownOperators::Standard);
            facts.executed_by_caller(&graph, outputs.iter().map(String::as_str))
        };
        for (operator, executor, guarantee) in [
            ("Relu", ExecutorChoice::Caller, ExecutionPredictability::Predictable),
            ("Where", ExecutorChoice::Caller, ExecutionPredictability::NonBlocking),
            ("QueueDequeueV2", ExecutorChoice::Pool, ExecutionPredictability::Unspecified),
        ] {
            assert_eq!((of(operator).executor, of(operator).guarantee), (executor, guarantee));
        }
    }

    #[test]
    fn placeholders_are_the_inputs_and_other_nodes_the_outputs() {
        let names = NodeNames::of(&graph(&["Placeholder", "MatMul", "Relu"], &["Placeholder"]));
        assert_eq!(names.inputs, BTreeSet::from(["placeholder".to_owned()]));
        assert_eq!(names.outputs, BTreeSet::from(["matmul".to_owned(), "relu".to_owned()]));
    }
}
