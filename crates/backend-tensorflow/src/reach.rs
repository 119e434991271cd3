//! The part of a graph that some of its tensors depend on.

use std::collections::{BTreeMap, BTreeSet};

use crate::messages::{AttrValue, GraphDef, NodeDef};

/// The operators that a graph's tensors depend on. A `SavedModel` also contains operators that save
/// and restore it.
pub(crate) fn operators_behind<'graph>(
    graph: &'graph GraphDef,
    tensors: impl Iterator<Item = &'graph str>,
) -> BTreeSet<&'graph str> {
    let parts = parts_behind(graph, tensors);
    parts.into_iter().flatten().map(|node| node.operator.as_str()).collect()
}

/// The nodes that a graph's tensors depend on, in parts: those of the graph itself, and all nodes
/// of each function that is called. The nodes of a part refer to nodes of the same part.
pub(crate) fn parts_behind<'graph>(
    graph: &'graph GraphDef,
    tensors: impl Iterator<Item = &'graph str>,
) -> Vec<Vec<&'graph NodeDef>> {
    let nodes = graph.nodes.iter().map(|node| (node.name.as_str(), node));
    let nodes: BTreeMap<&str, &NodeDef> = nodes.collect();
    let mut named: Vec<&str> = tensors.map(node_name).collect();
    let mut seen: BTreeSet<&str> = named.iter().copied().collect();
    let mut own = Vec::new();
    while let Some(name) = named.pop() {
        let Some(node) = nodes.get(name) else { continue };
        let inputs = node.inputs.iter().map(|input| node_name(input));
        named.extend(inputs.filter(|input| seen.insert(input)));
        own.push(*node);
    }
    let mut functions = functions(graph);
    let mut parts = Vec::new();
    let mut waiting = vec![own];
    while let Some(part) = waiting.pop() {
        let called = part.iter().flat_map(|node| called_functions(node));
        let bodies = called.filter_map(|name| functions.remove(name));
        waiting.extend(bodies.map(|body| body.iter().collect()));
        parts.push(part);
    }
    parts
}

/// The nodes of functions, by function name.
fn functions(graph: &GraphDef) -> BTreeMap<&str, &[NodeDef]> {
    let all = graph.library.iter().flat_map(|library| &library.functions);
    let named = all.filter_map(|function| {
        Some((function.signature.as_ref()?.name.as_str(), function.nodes.as_slice()))
    });
    named.collect()
}

/// The functions that a node calls. In an old graph, the operator may be a function.
fn called_functions(node: &NodeDef) -> impl Iterator<Item = &str> {
    let named = node.attributes.values().flat_map(|value: &AttrValue| {
        let list = value.list.iter().flat_map(|list| &list.functions);
        value.function.iter().chain(list)
    });
    named.map(|function| function.name.as_str()).chain([node.operator.as_str()])
}

/// The name of the node that a tensor or an input of a node belongs to.
pub(crate) fn node_name(tensor: &str) -> &str {
    let tensor = tensor.strip_prefix('^').unwrap_or(tensor);
    tensor.split_once(':').map_or(tensor, |(node, _)| node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{
        AttrList, FunctionDef, FunctionLibrary, NameAttrList, OpDef, test_node as node,
    };

    fn calling(mut node: NodeDef, function: &str, is_in_list: bool) -> NodeDef {
        let called = NameAttrList { name: function.to_owned() };
        let value = if is_in_list {
            AttrValue { list: Some(AttrList { functions: vec![called] }), ..AttrValue::default() }
        } else {
            AttrValue { function: Some(called), ..AttrValue::default() }
        };
        node.attributes.insert(String::from("f"), value);
        node
    }

    fn function(name: &str, nodes: Vec<NodeDef>) -> FunctionDef {
        FunctionDef { signature: Some(OpDef { name: name.to_owned() }), nodes }
    }

    #[test]
    fn only_what_a_tensor_depends_on_counts() {
        let graph = GraphDef {
            nodes: vec![
                node("x", "Placeholder", &[]),
                calling(node("call", "PartitionedCall", &["x", "^before"]), "outer", false),
                node("before", "NoOp", &[]),
                node("y", "Identity", &["call:1"]),
                node("save", "SaveV2", &["x"]),
                calling(node("restore", "PartitionedCall", &["x"]), "assign", false),
                // A loop, as `NextIteration` makes one.
                node("a", "Merge", &["b"]),
                node("b", "NextIteration", &["a"]),
            ],
            library: Some(FunctionLibrary {
                functions: vec![
                    function("outer", vec![calling(node("n", "Case", &[]), "inner", true)]),
                    function("inner", vec![node("n", "Relu", &[]), node("m", "outer", &[])]),
                    function("assign", vec![node("n", "AssignVariableOp", &[])]),
                ],
            }),
        };
        let behind = |tensor| operators_behind(&graph, [tensor].into_iter()).into_iter().collect();
        let found: Vec<&str> = behind("y:0");
        let expected =
            ["Case", "Identity", "NoOp", "PartitionedCall", "Placeholder", "Relu", "outer"];
        assert_eq!(found, expected);
        let found: Vec<&str> = behind("restore");
        assert_eq!(found, ["AssignVariableOp", "PartitionedCall", "Placeholder"]);
        let found: Vec<&str> = behind("a");
        assert_eq!(found, ["Merge", "NextIteration"]);
        assert!(operators_behind(&graph, ["nothing"].into_iter()).is_empty());
    }
}
