//! Detects models whose work depends only on the shapes of their inputs.
//!
//! Inline execution needs models whose duration can be predicted from earlier requests with the
//! same shapes. The work of most operators doesn't depend on values. Exceptions are `Loop`, whose
//! iteration count an input determines, and `Range` and `Expand`, which create tensors of any size
//! from small ones.
//!
//! Some operators have an input whose values determine a shape or axes. For example, `Reshape`
//! turns the same elements into a row or a column, and a later addition with broadcasting then
//! produces a vector or a matrix. Such an operator is predictable if that input is the same for
//! every request.

mod operators;
mod protobuf;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use prost::Message;

use self::operators::{has_shape_inputs, is_predictable};
use self::protobuf::FieldReader;

/// The maximum size of files that are read. Models that are fast enough for inline execution are
/// small.
const FILE_SIZE_MAX: u64 = 4 << 20;

/// Fields of ONNX's `ModelProto` and `GraphProto`.
const GRAPH: u64 = 7;
const FUNCTIONS: u64 = 25;
const NODE: u64 = 1;
const INITIALIZER: u64 = 5;
const INPUT: u64 = 11;
/// The fields of `TensorProto` and `ValueInfoProto` that contain names.
const TENSOR_NAME: u64 = 8;
const VALUE_NAME: u64 = 1;

#[derive(Clone, PartialEq, Message)]
struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "4")]
    op_type: String,
    #[prost(string, tag = "7")]
    domain: String,
}

/// A graph's tensors, by name.
#[derive(Default)]
struct GraphTensors {
    /// Tensors that must be the same for every request.
    shape_inputs: Vec<String>,
    /// Tensors that have a value in the file.
    constants: HashSet<String>,
    /// The graph's inputs. Requests may also replace an input's value from the file.
    inputs: HashSet<String>,
}

impl GraphTensors {
    /// Adds a node's tensors; `None` if the node isn't predictable.
    fn add(&mut self, node: NodeProto) -> Option<()> {
        is_predictable(&node.domain, &node.op_type).then_some(())?;
        let op_type = node.op_type.as_str();
        if op_type == "Constant" {
            self.constants.extend(node.output);
        } else if has_shape_inputs(op_type) {
            self.shape_inputs
                .extend(node.input.into_iter().skip(1).filter(|name| !name.is_empty()));
        }
        Some(())
    }

    fn is_predictable(&self) -> bool {
        let is_constant = |name| self.constants.contains(name) && !self.inputs.contains(name);
        self.shape_inputs.iter().all(is_constant)
    }
}

/// Returns true if the work of the model in this file depends only on the shapes of its inputs.
/// Returns false if this is unknown.
pub(crate) fn is_model_predictable(path: &Path) -> bool {
    is_file_predictable(path) == Some(true)
}

/// Returns `None` if the file doesn't contain a model with a graph, or if a node isn't predictable.
fn is_file_predictable(path: &Path) -> Option<bool> {
    let file = File::open(path).ok()?;
    let size = file.metadata().ok()?.len();
    if size > FILE_SIZE_MAX {
        return Some(false);
    }
    let mut fields = FieldReader::new(BufReader::new(file), size);
    let mut found: Option<GraphTensors> = None;
    while fields.remaining() > 0 {
        match fields.next()? {
            (FUNCTIONS, _) => return Some(false),
            (GRAPH, Some(length)) => {
                read_graph(&mut fields, length, found.get_or_insert_default())?
            }
            (_, length) => fields.skip(length.unwrap_or(0))?,
        }
    }
    found.map(|graph| graph.is_predictable())
}

/// Reads a graph of `length` bytes; `None` if the bytes aren't a graph, or if a node isn't
/// predictable.
fn read_graph(fields: &mut FieldReader, length: u64, graph: &mut GraphTensors) -> Option<()> {
    let end = fields.remaining().checked_sub(length)?;
    while fields.remaining() > end {
        match fields.next()? {
            (NODE, Some(length)) => {
                let bytes = fields.bytes(length)?;
                graph.add(NodeProto::decode(bytes.as_slice()).ok()?)?;
            }
            (INITIALIZER, Some(length)) => {
                graph.constants.extend(fields.string_field(TENSOR_NAME, length)?);
            }
            (INPUT, Some(length)) => graph.inputs.extend(fields.string_field(VALUE_NAME, length)?),
            (_, length) => fields.skip(length.unwrap_or(0))?,
        }
    }
    (fields.remaining() == end).then_some(())
}
