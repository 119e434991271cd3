//! Whether a graph's work is told by the shapes of its inputs.
//!
//! Most operators compute as much for one value as for another. Some don't: `Loop`
//! runs as often as its input says, `Range` and `Expand` make tensors of any size out
//! of small ones. A graph of the former kind only takes as long for the next request as
//! for the last one with the same shapes, which is what a thread must know that
//! executes it between other things.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use prost::Message;

/// Files beyond this are not looked at: models that are quick are small.
const FILE_SIZE_MAX: u64 = 4 << 20;

/// As much of ONNX' `ModelProto` as tells its operators.
#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
    /// Functions of the model's own.
    #[prost(message, repeated, tag = "25")]
    functions: Vec<FunctionProto>,
}

#[derive(Clone, PartialEq, Message)]
struct FunctionProto {}

#[derive(Clone, PartialEq, Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    node: Vec<NodeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct NodeProto {
    #[prost(string, tag = "4")]
    op_type: String,
    #[prost(string, tag = "7")]
    domain: String,
}

/// Operators of ONNX' own domain whose work and output depend on the shapes of their
/// inputs, or on values that can only make them smaller.
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

/// Whether the shapes of the inputs tell how much work the model in this file is;
/// `false` where that isn't known.
pub(crate) fn are_steady(path: &Path) -> bool {
    read(path).and_then(|bytes| ModelProto::decode(bytes.as_slice()).ok()).is_some_and(|model| {
        let nodes = model.graph.iter().flat_map(|graph| &graph.node);
        model.graph.is_some() && model.functions.is_empty() && nodes.into_iter().all(is_steady)
    })
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(FILE_SIZE_MAX + 1).read_to_end(&mut bytes).ok()?;
    (u64::try_from(bytes.len()).ok()? <= FILE_SIZE_MAX).then_some(bytes)
}

fn is_steady(node: &NodeProto) -> bool {
    matches!(node.domain.as_str(), "" | "ai.onnx")
        && STEADY.binary_search(&node.op_type.as_str()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a model of these operators, each with its domain, is steady.
    fn model(operators: &[(&str, &str)], functions: usize) -> ModelProto {
        let node = |&(domain, op_type): &(&str, &str)| NodeProto {
            op_type: String::from(op_type),
            domain: String::from(domain),
        };
        ModelProto {
            graph: Some(GraphProto { node: operators.iter().map(node).collect() }),
            functions: vec![FunctionProto {}; functions],
        }
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
