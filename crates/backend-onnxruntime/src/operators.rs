//! Whether a graph's work is told by the shapes of its inputs.
//!
//! Most operators compute as much for one value as for another. Some don't: `Loop`
//! runs as often as its input says, `Range` and `Expand` make tensors of any size out
//! of small ones. A graph of the former kind only takes as long for the next request as
//! for the last one with the same shapes, which is what a thread must know that
//! executes it between other things.
//!
//! Some operators are told a shape or axes by an input: `Reshape` makes a row or a
//! column of the same numbers, and what is added to it a vector or a matrix. They are
//! steady if that input is the same for every request.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use prost::Message;

/// Files beyond this are not looked at: models that are quick are small.
const FILE_SIZE_MAX: u64 = 4 << 20;

/// The fields of ONNX' `ModelProto` and `GraphProto` that tell a model's operators.
const GRAPH: u64 = 7;
const FUNCTIONS: u64 = 25;
const NODE: u64 = 1;
const INITIALIZER: u64 = 5;
const INPUT: u64 = 11;
/// Where a `TensorProto` and a `ValueInfoProto` have their names.
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

/// Operators of ONNX' own domain whose work and output depend on the shapes of their
/// inputs, and for some also on what their inputs behind the first say of shapes.
const STEADY: [&str; 133] = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "ArgMax",
    "ArgMin",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "AveragePool",
    "BatchNormalization",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "Cast",
    "CastLike",
    "Ceil",
    "Celu",
    "Clip",
    "Concat",
    "Constant",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "Cos",
    "Cosh",
    "CumSum",
    "DepthToSpace",
    "DequantizeLinear",
    "Div",
    "Dropout",
    "DynamicQuantizeLinear",
    "Einsum",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Flatten",
    "Floor",
    "GRU",
    "Gather",
    "GatherElements",
    "GatherND",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "Greater",
    "GreaterOrEqual",
    "GroupNormalization",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "InstanceNormalization",
    "IsInf",
    "IsNaN",
    "LRN",
    "LSTM",
    "LayerNormalization",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "LpPool",
    "MatMul",
    "MatMulInteger",
    "Max",
    "MaxPool",
    "Mean",
    "MeanVarianceNormalization",
    "Min",
    "Mish",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
    "RMSNormalization",
    "RNN",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "Relu",
    "Reshape",
    "Round",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "Shape",
    "Shrink",
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
    "Sqrt",
    "Squeeze",
    "Sub",
    "Sum",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Transpose",
    "Trilu",
    "Unsqueeze",
    "Where",
    "Xor",
];

/// The operators of which inputs behind the first say what shape or axes to take.
const TOLD: [&str; 5] = ["Reshape", "Slice", "Split", "Squeeze", "Unsqueeze"];

/// What a graph has, as far as it was read.
#[derive(Default)]
struct Graph {
    /// Tensors that must be the same for every request.
    needed: Vec<String>,
    /// Tensors with a value in the file.
    constant: HashSet<String>,
    /// Tensors that requests may bring, also in the place of the file's.
    inputs: HashSet<String>,
}

impl Graph {
    /// Takes a node in; `None` if it isn't steady.
    fn add(&mut self, node: NodeProto) -> Option<()> {
        is_steady(&node).then_some(())?;
        let op_type = node.op_type.as_str();
        if op_type == "Constant" {
            self.constant.extend(node.output);
        } else if TOLD.contains(&op_type) || op_type.starts_with("Reduce") {
            self.needed.extend(node.input.into_iter().skip(1).filter(|name| !name.is_empty()));
        }
        Some(())
    }

    fn is_steady(&self) -> bool {
        let is_fixed = |name| self.constant.contains(name) && !self.inputs.contains(name);
        self.needed.iter().all(is_fixed)
    }
}

/// Whether the shapes of the inputs tell how much work the model in this file is;
/// `false` where that isn't known.
pub(crate) fn are_steady(path: &Path) -> bool {
    graph_is_steady(path) == Some(true)
}

/// `None` if the file isn't what it should be, or has no graph.
fn graph_is_steady(path: &Path) -> Option<bool> {
    let file = File::open(path).ok()?;
    let size = file.metadata().ok()?.len();
    if size > FILE_SIZE_MAX {
        return Some(false);
    }
    let mut fields = Fields { file: BufReader::new(file), left: size };
    let mut found: Option<Graph> = None;
    while fields.left > 0 {
        match fields.next()? {
            (FUNCTIONS, _) => return Some(false),
            (GRAPH, Some(length)) => {
                read_graph(&mut fields, length, found.get_or_insert_default())?
            }
            (_, length) => fields.skip(length.unwrap_or(0))?,
        }
    }
    found.map(|graph| graph.is_steady())
}

/// Reads a graph of so many bytes; `None` also if a node isn't steady.
fn read_graph(fields: &mut Fields, length: u64, graph: &mut Graph) -> Option<()> {
    let end = fields.left.checked_sub(length)?;
    while fields.left > end {
        match fields.next()? {
            (NODE, Some(length)) => {
                let bytes = fields.bytes(length)?;
                graph.add(NodeProto::decode(bytes.as_slice()).ok()?)?;
            }
            (INITIALIZER, Some(length)) => {
                graph.constant.extend(fields.name(TENSOR_NAME, length)?);
            }
            (INPUT, Some(length)) => graph.inputs.extend(fields.name(VALUE_NAME, length)?),
            (_, length) => fields.skip(length.unwrap_or(0))?,
        }
    }
    (fields.left == end).then_some(())
}

/// The fields of a message in a file. Most of a model are its weights: what isn't asked
/// for is not read.
struct Fields {
    file: BufReader<File>,
    /// Bytes of the file behind this place.
    left: u64,
}

impl Fields {
    /// The number of the next field, and how many bytes follow that belong to it, if it
    /// is of a kind that says so.
    fn next(&mut self) -> Option<(u64, Option<u64>)> {
        let key = self.varint()?;
        let length = match key & 7 {
            0 => self.varint().map(|_| None)?,
            1 => self.skip(8).map(|()| None)?,
            2 => Some(self.varint().filter(|length| *length <= self.left)?),
            5 => self.skip(4).map(|()| None)?,
            _ => return None,
        };
        Some((key >> 3, length))
    }

    /// What a message of so many bytes has in the field `number`, which is a text.
    fn name(&mut self, number: u64, length: u64) -> Option<Option<String>> {
        let end = self.left.checked_sub(length)?;
        let mut name = None;
        while self.left > end {
            match self.next()? {
                (field, Some(length)) if field == number => {
                    name = Some(String::from_utf8(self.bytes(length)?).ok()?);
                }
                (_, length) => self.skip(length.unwrap_or(0))?,
            }
        }
        (self.left == end).then_some(name)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.read(&mut byte)?;
            let [byte] = byte;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// So many bytes, which are no more than there are.
    fn bytes(&mut self, length: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.read(&mut bytes)?;
        Some(bytes)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Option<()> {
        self.left = self.left.checked_sub(u64::try_from(bytes.len()).ok()?)?;
        self.file.read_exact(bytes).ok()
    }

    fn skip(&mut self, length: u64) -> Option<()> {
        self.left = self.left.checked_sub(length)?;
        self.file.seek_relative(i64::try_from(length).ok()?).ok()
    }
}

fn is_steady(node: &NodeProto) -> bool {
    matches!(node.domain.as_str(), "" | "ai.onnx")
        && STEADY.binary_search(&node.op_type.as_str()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct ModelProto {
        #[prost(int64, tag = "1")]
        ir_version: i64,
        #[prost(message, optional, tag = "7")]
        graph: Option<GraphProto>,
        #[prost(message, repeated, tag = "25")]
        functions: Vec<FunctionProto>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct FunctionProto {}

    #[derive(Clone, PartialEq, Message)]
    struct TensorProto {
        #[prost(string, tag = "8")]
        name: String,
        #[prost(bytes, tag = "9")]
        raw_data: Vec<u8>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct ValueInfoProto {
        #[prost(string, tag = "1")]
        name: String,
    }

    #[derive(Clone, PartialEq, Message)]
    struct GraphProto {
        #[prost(message, repeated, tag = "1")]
        node: Vec<NodeProto>,
        #[prost(message, repeated, tag = "5")]
        initializer: Vec<TensorProto>,
        #[prost(message, repeated, tag = "11")]
        input: Vec<ValueInfoProto>,
        #[prost(fixed32, tag = "98")]
        fixed_32: u32,
        #[prost(fixed64, tag = "99")]
        fixed_64: u64,
    }

    /// A model of these operators, each with its domain, is steady.
    fn model(operators: &[(&str, &str)], functions: usize) -> ModelProto {
        let node = |&(domain, op_type): &(&str, &str)| NodeProto {
            op_type: String::from(op_type),
            domain: String::from(domain),
            ..NodeProto::default()
        };
        ModelProto {
            ir_version: 300,
            graph: Some(GraphProto {
                node: operators.iter().map(node).collect(),
                // More than is read at once.
                initializer: vec![tensor("weights", 20_000)],
                input: Vec::new(),
                fixed_32: 1,
                fixed_64: 2,
            }),
            functions: vec![FunctionProto {}; functions],
        }
    }

    fn tensor(name: &str, size: usize) -> TensorProto {
        TensorProto { name: String::from(name), raw_data: vec![0xff; size] }
    }

    /// A model in which an operator's input behind the first comes from a client, the
    /// file, another operator, or nowhere.
    fn told(op_type: &str, by: &str) -> Vec<u8> {
        let mut model = model(&[("", "Constant"), ("", "Shape"), ("", op_type)], 0);
        let graph = model.graph.as_mut().unwrap();
        graph.node[0].output = vec![String::from("constant")];
        graph.node[1].output = vec![String::from("made")];
        graph.node[2].input = vec![String::from("data"), String::from(by)];
        graph.initializer.extend([tensor("file's", 8), tensor("default", 8)]);
        let input = |name: &str| ValueInfoProto { name: String::from(name) };
        graph.input = ["data", "client's", "default"].map(input).to_vec();
        model.encode_to_vec()
    }

    #[test]
    fn shapes_and_axes_must_be_the_same_for_every_request() {
        for op_type in ["Reshape", "Slice", "Split", "Squeeze", "Unsqueeze", "ReduceSum"] {
            for (by, expected) in [
                ("constant", true),
                ("file's", true),
                ("", true),
                ("made", false),
                ("client's", false),
                ("default", false),
                ("absent", false),
            ] {
                check(&format!("{op_type} {by}"), &told(op_type, by), expected);
            }
        }
        check("values alone", &told("Add", "client's"), true);
    }

    fn file(name: &str, content: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("steady-{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        path
    }

    fn check(name: &str, content: &[u8], expected: bool) {
        let path = file(name, content);
        assert_eq!(are_steady(&path), expected, "{name}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_list_is_in_order() {
        assert!(STEADY.is_sorted());
    }

    #[test]
    fn a_graph_is_steady_if_each_operator_is() {
        let steady = model(&[("", "MatMul"), ("ai.onnx", "Relu")], 0).encode_to_vec();
        check("steady", &steady, true);
        for unsteady in ["Loop", "Scan", "If", "Range", "Expand", "Tile", "ConstantOfShape"] {
            let graph = model(&[("", "MatMul"), ("", unsteady)], 0).encode_to_vec();
            check(unsteady, &graph, false);
        }
    }

    #[test]
    fn what_is_not_known_is_not_steady() {
        check("domain", &model(&[("com.example", "Relu")], 0).encode_to_vec(), false);
        check("function", &model(&[("", "Relu")], 1).encode_to_vec(), false);
        check("empty", &[], false);
        check("no model", b"no model at all", false);
        check("no graph", &ModelProto::default().encode_to_vec(), false);
        let whole = model(&[("", "Relu"), ("", "Relu")], 0).encode_to_vec();
        for end in [1, 2, 4, 10, 16, 30, whole.len() - 1] {
            check("cut short", &whole[..end], false);
        }
        // A graph of one byte more than it has, which is the next field's.
        check("overlap", &[0x3a, 0x03, 0x0a, 0x00, 0x08, 0x01], false);
        assert!(!are_steady(Path::new("/does/not/exist")));
        let steady = model(&[("", "Relu")], 0).encode_to_vec();
        // A field that nobody knows makes it as large as is needed.
        let of_size = |size: u64| {
            let mut large = steady.clone();
            prost::encoding::encode_key(
                1000,
                prost::encoding::WireType::LengthDelimited,
                &mut large,
            );
            let size = usize::try_from(size).unwrap() - large.len() - 4;
            prost::encoding::encode_varint(u64::try_from(size).unwrap(), &mut large);
            large.resize(large.len() + size, 0);
            large
        };
        check("just small enough", &of_size(FILE_SIZE_MAX), true);
        check("too large", &of_size(FILE_SIZE_MAX + 1), false);
    }
}
