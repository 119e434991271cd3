//! Models whose work depends only on the shapes of their inputs. The server may execute a short
//! batch of such a model on the thread that received the request.

use std::collections::BTreeSet;

use crate::network::Network;

/// The layers whose work depends only on the shapes of their inputs, in sorted order.
const PREDICTABLE: [&str; 110] = [
    "Abs",
    "Acos",
    "AdaptiveAvgPool",
    "AdaptiveMaxPool",
    "Add",
    "Asin",
    "Atan",
    "AvgPool",
    "BatchNormInference",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "Ceiling",
    "Clamp",
    "Concat",
    "Const",
    "Convert",
    "ConvertLike",
    "Convolution",
    "ConvolutionBackpropData",
    "Cos",
    "Cosh",
    "CumSum",
    "DepthToSpace",
    "Divide",
    "Einsum",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "FakeConvert",
    "FakeQuantize",
    "Floor",
    "FloorMod",
    "GRUCell",
    "GRUSequence",
    "Gather",
    "GatherElements",
    "GatherND",
    "Gelu",
    "Greater",
    "GreaterEqual",
    "GroupConvolution",
    "GroupConvolutionBackpropData",
    "GroupNormalization",
    "HSigmoid",
    "HSwish",
    "HardSigmoid",
    "LRN",
    "LSTMCell",
    "LSTMSequence",
    "Less",
    "LessEqual",
    "Log",
    "LogSoftmax",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "LogicalXor",
    "MVN",
    "MatMul",
    "MaxPool",
    "Maximum",
    "Minimum",
    "Mish",
    "Mod",
    "Multiply",
    "Negative",
    "NormalizeL2",
    "NotEqual",
    "PReLU",
    "Parameter",
    "Power",
    "RNNCell",
    "RNNSequence",
    "ReLU",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogicalAnd",
    "ReduceLogicalOr",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "Result",
    "ReverseSequence",
    "Round",
    "ScaledDotProductAttention",
    "Select",
    "Selu",
    "ShapeOf",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "SoftMax",
    "SoftPlus",
    "SoftSign",
    "SpaceToDepth",
    "Sqrt",
    "SquaredDifference",
    "Subtract",
    "Swish",
    "Tan",
    "Tanh",
    "TopK",
    "Transpose",
    "Unsqueeze",
];

/// The layers whose later inputs determine shapes, in sorted order.
const WITH_SHAPE_INPUTS: [&str; 10] = [
    "Broadcast",
    "Interpolate",
    "Pad",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "StridedSlice",
    "Tile",
    "VariadicSplit",
];

/// Returns true if this network's work depends only on the shapes of its inputs. Returns false if
/// this is unknown.
pub(crate) fn is_predictable(text: &str) -> bool {
    let network = Network::parse(text);
    // The layers whose values depend only on shapes.
    let mut constant: BTreeSet<&str> = BTreeSet::new();
    for &(layer, kind) in &network.layers {
        let has_shape_inputs = WITH_SHAPE_INPUTS.contains(&kind);
        if !has_shape_inputs && PREDICTABLE.binary_search(&kind).is_err() {
            return false;
        }
        let mut shape_inputs = network.inputs_of(layer).filter(|(port, _)| *port != "0");
        if (has_shape_inputs || kind == "TopK")
            && !shape_inputs.all(|(_, source)| constant.contains(source.0))
        {
            return false;
        }
        let is_constant = match kind {
            "Const" | "ShapeOf" => true,
            "Parameter" => false,
            _ => network.inputs_of(layer).all(|(_, source)| constant.contains(source.0)),
        };
        if is_constant {
            constant.insert(layer);
        }
    }
    network.is_whole && !network.layers.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network of layers with the identifiers 0, 1, 2 and so on, each of which lists its inputs.
    fn network(layers: &[(&str, &[usize])]) -> String {
        let mut text = String::new();
        let mut edges = String::new();
        for (id, (kind, inputs)) in layers.iter().enumerate() {
            text.push_str(&format!("<layer id=\"{id}\" type=\"{kind}\"></layer>"));
            for (port, from) in inputs.iter().enumerate() {
                edges.push_str(&format!(
                    "<edge from-layer=\"{from}\" from-port=\"9\" to-layer=\"{id}\" to-port=\"{port}\"/>"
                ));
            }
        }
        text + &edges
    }

    #[test]
    fn the_lists_are_sorted() {
        assert!(PREDICTABLE.is_sorted());
        assert!(WITH_SHAPE_INPUTS.is_sorted());
    }

    #[test]
    fn a_text_that_is_not_whole_is_not_predictable() {
        let text = network(&[("Parameter", &[]), ("ReLU", &[0]), ("Result", &[1])]);
        assert!(is_predictable(&text));
        assert!(!is_predictable(&format!("{text}<body><layer id=\"7\" type=\"NonZero\"/>")));
    }

    #[test]
    fn shapes_by_contents_and_unknown_layers_are_not_predictable() {
        for (layers, expected) in [
            (
                &[("Parameter", &[][..]), ("Const", &[]), ("MatMul", &[0, 1]), ("Result", &[2])][..],
                true,
            ),
            (&[("Parameter", &[]), ("Const", &[]), ("Reshape", &[0, 1]), ("Result", &[2])], true),
            (&[("Parameter", &[]), ("ShapeOf", &[0]), ("Add", &[1, 1]), ("Tile", &[0, 2])], true),
            (&[("Parameter", &[]), ("Parameter", &[]), ("Reshape", &[0, 1])], false),
            (&[("Parameter", &[]), ("ShapeOf", &[0]), ("Add", &[0, 1]), ("Tile", &[0, 2])], false),
            (&[("Parameter", &[]), ("NonZero", &[0]), ("Result", &[1])], false),
            (&[("Parameter", &[]), ("Loop", &[0])], false),
            (&[("Parameter", &[]), ("Parameter", &[]), ("TopK", &[0, 1])], false),
            (&[], false),
        ] {
            assert_eq!(is_predictable(&network(layers)), expected, "{layers:?}");
        }
    }
}
