//! Predictable and unpredictable models, written as protobuf messages.

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

/// A model with these operators, which are given as pairs of domain and type.
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
            // Larger than the reader's buffer.
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

/// A model with an operator whose second input is the tensor `source`, which comes from a client,
/// the file, another operator or nowhere.
fn model_with_shape_input(op_type: &str, source: &str) -> Vec<u8> {
    let mut model = model(&[("", "Constant"), ("", "Shape"), ("", op_type)], 0);
    let graph = model.graph.as_mut().unwrap();
    graph.node[0].output = vec![String::from("constant")];
    graph.node[1].output = vec![String::from("computed")];
    graph.node[2].input = vec![String::from("data"), String::from(source)];
    graph.initializer.extend([tensor("file's", 8), tensor("default", 8)]);
    let input = |name: &str| ValueInfoProto { name: String::from(name) };
    graph.input = ["data", "client's", "default"].map(input).to_vec();
    model.encode_to_vec()
}

#[test]
fn shape_inputs_must_be_constant() {
    for op_type in ["Reshape", "Slice", "Split", "Squeeze", "Unsqueeze", "ReduceSum"] {
        for (source, expected) in [
            ("constant", true),
            ("file's", true),
            ("", true),
            ("computed", false),
            ("client's", false),
            ("default", false),
            ("absent", false),
        ] {
            check(
                &format!("{op_type} {source}"),
                &model_with_shape_input(op_type, source),
                expected,
            );
        }
    }
    check("no shape input", &model_with_shape_input("Add", "client's"), true);
}

fn file(name: &str, content: &[u8]) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("predictable-{}-{name}", std::process::id()));
    std::fs::write(&path, content).unwrap();
    path
}

fn check(name: &str, content: &[u8], expected: bool) {
    let path = file(name, content);
    assert_eq!(is_model_predictable(&path), expected, "{name}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_graph_is_predictable_if_every_operator_is() {
    let predictable = model(&[("", "MatMul"), ("ai.onnx", "Relu")], 0).encode_to_vec();
    check("predictable", &predictable, true);
    for op_type in ["Loop", "Scan", "If", "Range", "Expand", "Tile", "ConstantOfShape"] {
        let graph = model(&[("", "MatMul"), ("", op_type)], 0).encode_to_vec();
        check(op_type, &graph, false);
    }
}

#[test]
fn unknown_operators_and_broken_files_are_not_predictable() {
    check("domain", &model(&[("com.example", "Relu")], 0).encode_to_vec(), false);
    check("function", &model(&[("", "Relu")], 1).encode_to_vec(), false);
    check("empty", &[], false);
    check("no model", b"no model at all", false);
    check("no graph", &ModelProto::default().encode_to_vec(), false);
    let valid = model(&[("", "Relu"), ("", "Relu")], 0).encode_to_vec();
    for end in [1, 2, 4, 10, 16, 30, valid.len() - 1] {
        check("cut short", &valid[..end], false);
    }
    // The graph's length includes the first byte of the next field.
    check("overlap", &[0x3a, 0x03, 0x0a, 0x00, 0x08, 0x01], false);
    assert!(!is_model_predictable(Path::new("/does/not/exist")));
    let small = model(&[("", "Relu")], 0).encode_to_vec();
    // An unknown field pads the file to the desired size.
    let of_size = |size: u64| {
        let mut large = small.clone();
        prost::encoding::encode_key(1000, prost::encoding::WireType::LengthDelimited, &mut large);
        let size = usize::try_from(size).unwrap() - large.len() - 4;
        prost::encoding::encode_varint(u64::try_from(size).unwrap(), &mut large);
        large.resize(large.len() + size, 0);
        large
    };
    check("just small enough", &of_size(FILE_SIZE_MAX), true);
    check("too large", &of_size(FILE_SIZE_MAX + 1), false);
}
