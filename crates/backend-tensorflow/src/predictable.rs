//! Graphs whose work depends only on the shapes of their inputs.
//!
//! The work of most operators doesn't depend on values. Some have inputs whose values are shapes or
//! axes, such as the second input of `Reshape`: those must be the same for every request of the
//! same shapes.

use std::collections::{BTreeMap, BTreeSet};

use crate::messages::{GraphDef, NodeDef};
use crate::reach::{node_name, parts_behind};

/// The operators whose work depends only on the shapes of their inputs and on the values of their
/// [shape inputs](is_shape_input), in sorted order.
const PREDICTABLE: [&str; 145] = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "AddN",
    "AddV2",
    "All",
    "Any",
    "ArgMax",
    "ArgMin",
    "Asin",
    "Asinh",
    "Atan",
    "Atan2",
    "Atanh",
    "AvgPool",
    "AvgPool3D",
    "BatchMatMul",
    "BatchMatMulV2",
    "BatchMatMulV3",
    "BiasAdd",
    "BroadcastTo",
    "Cast",
    "Ceil",
    "ClipByValue",
    "ConcatV2",
    "Const",
    "Conv1D",
    "Conv2D",
    "Conv2DBackpropInput",
    "Conv3D",
    "Cos",
    "Cosh",
    "Cumsum",
    "DepthToSpace",
    "DepthwiseConv2dNative",
    "Div",
    "DivNoNan",
    "Einsum",
    "Elu",
    "EnsureShape",
    "Equal",
    "Erf",
    "Erfc",
    "Exp",
    "ExpandDims",
    "Expm1",
    "Fill",
    "Floor",
    "FloorDiv",
    "FloorMod",
    "FusedBatchNorm",
    "FusedBatchNormV3",
    "Gather",
    "GatherNd",
    "GatherV2",
    "Greater",
    "GreaterEqual",
    "Identity",
    "IdentityN",
    "L2Loss",
    "LeakyRelu",
    "Less",
    "LessEqual",
    "Log",
    "Log1p",
    "LogSoftmax",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "MatMul",
    "Max",
    "MaxPool",
    "MaxPool3D",
    "MaxPoolV2",
    "Maximum",
    "Mean",
    "Min",
    "Minimum",
    "MirrorPad",
    "Mul",
    "MulNoNan",
    "Neg",
    "NoOp",
    "NotEqual",
    "OneHot",
    "OnesLike",
    "Pack",
    "Pad",
    "PadV2",
    "PartitionedCall",
    "Placeholder",
    "PlaceholderWithDefault",
    "Pow",
    "PreventGradient",
    "Prod",
    "Range",
    "Rank",
    "ReadVariableOp",
    "RealDiv",
    "Reciprocal",
    "Relu",
    "Relu6",
    "Reshape",
    "ResizeBilinear",
    "ResizeNearestNeighbor",
    "ReverseV2",
    "Round",
    "Rsqrt",
    "Select",
    "SelectV2",
    "Selu",
    "Shape",
    "ShapeN",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Size",
    "Slice",
    "Softmax",
    "Softplus",
    "Softsign",
    "SpaceToDepth",
    "Split",
    "SplitV",
    "Sqrt",
    "Square",
    "SquaredDifference",
    "Squeeze",
    "StatefulPartitionedCall",
    "StopGradient",
    "StridedSlice",
    "Sub",
    "Sum",
    "Tan",
    "Tanh",
    "Tile",
    "TopKV2",
    "Transpose",
    "Unpack",
    "VarHandleOp",
    "Variable",
    "VariableV2",
    "ZerosLike",
];

/// Returns true if the work for these tensors depends only on the shapes of the graph's inputs.
/// Returns false if this is unknown.
pub(crate) fn is_predictable<'graph>(
    graph: &'graph GraphDef,
    outputs: impl Iterator<Item = &'graph str>,
) -> bool {
    let parts = parts_behind(graph, outputs);
    parts.iter().all(|part| is_part_predictable(part)) && parts.iter().any(|part| !part.is_empty())
}

fn is_part_predictable(nodes: &[&NodeDef]) -> bool {
    let constant = constant_nodes(nodes);
    nodes.iter().all(|node| {
        let count = data_inputs(node).count();
        let mut inputs = data_inputs(node).enumerate();
        let is_fine = |(index, input)| {
            !is_shape_input(&node.operator, index, count) || constant.contains(input)
        };
        is_listed(node) && inputs.all(is_fine)
    })
}

fn is_listed(node: &NodeDef) -> bool {
    PREDICTABLE.binary_search(&node.operator.as_str()).is_ok()
}

/// The nodes that an input's values come from.
fn data_inputs(node: &NodeDef) -> impl Iterator<Item = &str> {
    node.inputs.iter().filter(|input| !input.starts_with('^')).map(|input| node_name(input))
}

/// The nodes whose values depend only on shapes. A function's arguments are no nodes of it, and the
/// values of its calls are unknown.
fn constant_nodes<'graph>(nodes: &[&'graph NodeDef]) -> BTreeSet<&'graph str> {
    let mut consumers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, node) in nodes.iter().enumerate() {
        data_inputs(node).for_each(|input| consumers.entry(input).or_default().push(index));
    }
    // The number of inputs of each node that are not known to be constant.
    let mut unknown: Vec<usize> = nodes.iter().map(|node| data_inputs(node).count()).collect();
    let of_shapes = |node: &&&NodeDef| {
        matches!(node.operator.as_str(), "Const" | "Rank" | "Shape" | "ShapeN" | "Size")
    };
    let mut found: Vec<&str> =
        nodes.iter().filter(of_shapes).map(|node| node.name.as_str()).collect();
    let mut constant = BTreeSet::new();
    while let Some(name) = found.pop() {
        if !constant.insert(name) {
            continue;
        }
        for &index in consumers.get(name).into_iter().flatten() {
            let (Some(node), Some(unknown)) = (nodes.get(index), unknown.get_mut(index)) else {
                continue;
            };
            *unknown = unknown.saturating_sub(1);
            if *unknown == 0 && !node.operator.ends_with("PartitionedCall") {
                found.push(&node.name);
            }
        }
    }
    constant
}

/// Returns true if the values of the input with this index are a shape, sizes or axes.
fn is_shape_input(operator: &str, index: usize, count: usize) -> bool {
    match operator {
        "BroadcastTo"
        | "ExpandDims"
        | "MirrorPad"
        | "Pad"
        | "PadV2"
        | "Reshape"
        | "ReverseV2"
        | "ResizeBilinear"
        | "ResizeNearestNeighbor"
        | "Slice"
        | "StridedSlice"
        | "Tile"
        | "TopKV2"
        | "Transpose"
        | "All"
        | "Any"
        | "Max"
        | "MaxPoolV2"
        | "Mean"
        | "Min"
        | "Prod"
        | "Sum"
        | "ArgMax"
        | "ArgMin"
        | "Cumsum"
        | "OneHot"
        | "SplitV" => index > 0,
        "ConcatV2" => index + 1 == count,
        "Conv2DBackpropInput" | "Fill" | "Split" => index == 0,
        "GatherV2" => index == 2,
        "Range" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{
        AttrValue, FunctionDef, FunctionLibrary, NameAttrList, OpDef, test_node as node,
    };

    fn is(nodes: Vec<NodeDef>, library: Option<FunctionLibrary>) -> bool {
        is_predictable(&GraphDef { nodes, library }, ["y:0"].into_iter())
    }

    #[test]
    fn the_list_is_sorted() {
        assert!(PREDICTABLE.is_sorted());
    }

    #[test]
    fn every_operator_behind_an_output_counts() {
        let nodes = |operator: &str| {
            vec![
                node("x", "Placeholder", &[]),
                node("y", operator, &["x", "^before"]),
                node("before", "NoOp", &[]),
                node("save", "SaveV2", &["x"]),
            ]
        };
        assert!(is(nodes("Relu"), None));
        for operator in
            ["Where", "While", "StatelessIf", "QueueDequeueV2", "AssignVariableOp", "Own"]
        {
            assert!(!is(nodes(operator), None), "{operator}");
        }
        assert!(!is(Vec::new(), None));
    }

    #[test]
    fn shapes_must_not_depend_on_values() {
        let nodes = |shape: &[&str]| {
            vec![
                node("x", "Placeholder", &[]),
                node("two", "Const", &[]),
                node("shape", "Shape", &["x"]),
                node("rows", "StridedSlice", &["shape", "two", "two", "two"]),
                node("packed", "Pack", &["rows", "two:0"]),
                node("number", "Cast", &["x"]),
                node("y", "Reshape", &[&["x"], shape].concat()),
            ]
        };
        assert!(is(nodes(&["two"]), None));
        assert!(is(nodes(&["packed:0"]), None));
        assert!(!is(nodes(&["number"]), None));
        assert!(!is(nodes(&["x"]), None));
        let joined = |axis: &str| {
            let mut nodes = nodes(&["two"]);
            nodes.pop();
            nodes.push(node("y", "ConcatV2", &["x", "number", axis]));
            is(nodes, None)
        };
        assert!(joined("two") && !joined("number"));
    }

    #[test]
    fn functions_count_with_their_own_nodes() {
        let call = |body: Vec<NodeDef>| {
            let mut call = node("y", "StatefulPartitionedCall", &["x"]);
            let function = Some(NameAttrList { name: String::from("f") });
            let value = AttrValue { function, ..AttrValue::default() };
            call.attributes.insert(String::from("f"), value);
            let signature = Some(OpDef { name: String::from("f") });
            let functions = vec![FunctionDef { signature, nodes: body }];
            // The graph's node has the name of the function's argument.
            let nodes = vec![node("x", "Placeholder", &[]), node("a", "Const", &[]), call];
            is(nodes, Some(FunctionLibrary { functions }))
        };
        let two = || node("two", "Const", &[]);
        assert!(call(vec![two(), node("r", "Reshape", &["a", "two:output:0"])]));
        assert!(!call(vec![two(), node("r", "Reshape", &["two:output:0", "a"])]));
        assert!(!call(vec![node("r", "RandomUniform", &["a"])]));
    }
}
