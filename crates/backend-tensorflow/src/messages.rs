//! The parts of TensorFlow's messages that the server reads. Other fields, such as weights, are
//! skipped.

use std::collections::BTreeMap;

/// The file `saved_model.pb`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SavedModel {
    #[prost(message, repeated, tag = "2")]
    pub(crate) meta_graphs: Vec<MetaGraphDef>,
}

/// A graph and its signatures.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MetaGraphDef {
    #[prost(message, optional, tag = "1")]
    pub(crate) info: Option<MetaInfoDef>,
    #[prost(message, optional, tag = "2")]
    pub(crate) graph: Option<GraphDef>,
    #[prost(btree_map = "string, message", tag = "5")]
    pub(crate) signatures: BTreeMap<String, SignatureDef>,
}

/// The tags that select a graph.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MetaInfoDef {
    #[prost(string, repeated, tag = "4")]
    pub(crate) tags: Vec<String>,
}

/// The inputs and outputs for one use of a graph.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SignatureDef {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) inputs: BTreeMap<String, TensorInfo>,
    #[prost(btree_map = "string, message", tag = "2")]
    pub(crate) outputs: BTreeMap<String, TensorInfo>,
}

/// A tensor in a signature.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TensorInfo {
    /// The tensor's name in the graph; empty for a sparse or composite tensor.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int32, tag = "2")]
    pub(crate) datatype: i32,
    #[prost(message, optional, tag = "3")]
    pub(crate) shape: Option<TensorShapeProto>,
}

/// A shape; it has no dimensions if its rank is unknown.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TensorShapeProto {
    #[prost(message, repeated, tag = "2")]
    pub(crate) dims: Vec<Dim>,
}

/// A dimension; -1 means a variable size.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Dim {
    #[prost(int64, tag = "1")]
    pub(crate) size: i64,
}

/// A graph.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GraphDef {
    #[prost(message, repeated, tag = "1")]
    pub(crate) nodes: Vec<NodeDef>,
    #[prost(message, optional, tag = "2")]
    pub(crate) library: Option<FunctionLibrary>,
}

/// A node of a graph.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeDef {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) operator: String,
    /// The tensors that the node reads: `node`, `node:1`, or `^node` for a node that only has to
    /// run before it.
    #[prost(string, repeated, tag = "3")]
    pub(crate) inputs: Vec<String>,
    /// The device; empty if none is specified.
    #[prost(string, tag = "4")]
    pub(crate) device: String,
    #[prost(btree_map = "string, message", tag = "5")]
    pub(crate) attributes: BTreeMap<String, AttrValue>,
}

/// An attribute of a node: an element type, or function names.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AttrValue {
    #[prost(message, optional, tag = "1")]
    pub(crate) list: Option<AttrList>,
    #[prost(int32, tag = "6")]
    pub(crate) datatype: i32,
    #[prost(message, optional, tag = "10")]
    pub(crate) function: Option<NameAttrList>,
}

/// A list of attributes.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AttrList {
    #[prost(message, repeated, tag = "9")]
    pub(crate) functions: Vec<NameAttrList>,
}

/// The name of a function that a node calls.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NameAttrList {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// The functions of a graph.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FunctionLibrary {
    #[prost(message, repeated, tag = "1")]
    pub(crate) functions: Vec<FunctionDef>,
}

/// A function, which consists of nodes.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FunctionDef {
    #[prost(message, optional, tag = "1")]
    pub(crate) signature: Option<OpDef>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) nodes: Vec<NodeDef>,
}

/// The description of a function.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OpDef {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// Creates a node for a test.
#[cfg(test)]
pub(crate) fn test_node(name: &str, operator: &str, inputs: &[&str]) -> NodeDef {
    NodeDef {
        name: name.to_owned(),
        operator: operator.to_owned(),
        inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
        ..NodeDef::default()
    }
}
