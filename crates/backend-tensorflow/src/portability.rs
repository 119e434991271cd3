//! The models that only TensorFlow's library can execute, although another runtime may be able to
//! read their graphs.

use galatea_config::{InstanceKind, ModelSpec};
use galatea_tensor::DataType;

use crate::messages::GraphDef;
use crate::parameters::ModelParameters;
use crate::reach::operators_behind;
use crate::saved_model::{self, Signature};

/// Parts of the names of operators that another runtime omits or executes differently: they change
/// variables, keep something between runs, refuse a run, draw random numbers, or reach beyond the
/// graph.
const OWN_OPERATORS: [&str; 24] = [
    "Accumulator",
    "Assert",
    "Assign",
    "Barrier",
    "BatchFunction",
    "Collective",
    "Dataset",
    "HashTable",
    "Inplace",
    "Iterator",
    "LookupTable",
    "Multinomial",
    "Mutex",
    "Print",
    "PyFunc",
    "Queue",
    "Random",
    "ReadFile",
    "Recv",
    "ResourceApply",
    "ResourceScatter",
    "Stack",
    "Stage",
    "WriteFile",
];

/// The reason why only TensorFlow's library can execute a model, if it is in the configuration.
pub(crate) fn obstacle_in_configuration(
    spec: &ModelSpec,
    parameters: &ModelParameters,
) -> Option<String> {
    if !spec.op_library_filenames.is_empty() {
        return Some(String::from("it has operators of a library of its own"));
    }
    let given = [
        ("TF_INIT_OPS_FILE", parameters.init_ops_file.as_str(), ""),
        ("TF_GRAPH_TAG", saved_model::tag(&parameters.graph_tag), saved_model::DEFAULT_TAG),
        ("TF_SIGNATURE_DEF", parameters.signature.as_str(), saved_model::DEFAULT_SIGNATURE),
    ];
    let is_unusual = |(_, value, usual): &&(&str, &str, &str)| !value.is_empty() && value != usual;
    if let Some((name, ..)) = given.iter().find(is_unusual) {
        return Some(format!("it doesn't follow the parameter {name}"));
    }
    if spec.instance_groups.iter().any(|group| group.kind == InstanceKind::Model) {
        return Some(String::from("it doesn't place operators as KIND_MODEL says"));
    }
    let optional = spec.inputs.iter().find(|input| input.optional)?;
    Some(format!("it needs all inputs, and '{}' is optional", optional.name))
}

/// The reason, if it is in the graph. The signature's outputs are those that runs may compute.
pub(crate) fn obstacle_in_graph(graph: &GraphDef, signature: &Signature) -> Option<String> {
    let mut tensors = signature.inputs.iter().chain(&signature.outputs);
    if let Some(tensor) = tensors.find(|tensor| tensor.datatype == DataType::Bytes) {
        return Some(format!("it has no strings, such as '{}'", tensor.name));
    }
    let outputs = signature.outputs.iter().map(|tensor| tensor.graph_name.as_str());
    let operators = operators_behind(graph, outputs).into_iter();
    let is_own = |name: &&str| OWN_OPERATORS.iter().any(|part| name.contains(part));
    // A list in which a loop collects its results also has such a name.
    let own: Vec<&str> =
        operators.filter(|name| !name.starts_with("TensorList")).filter(is_own).collect();
    if own.is_empty() {
        return None;
    }
    Some(format!("it doesn't execute these operators as TensorFlow does: {}", own.join(", ")))
}

/// The types in a signature that another runtime computes with 32 bits.
pub(crate) fn narrowed_types(signature: &Signature) -> Vec<DataType> {
    let wide = [DataType::Int64, DataType::Uint64, DataType::Fp64].into_iter();
    let tensors = signature.inputs.iter().chain(&signature.outputs);
    wide.filter(|wide| tensors.clone().any(|tensor| tensor.datatype == *wide)).collect()
}

/// The settings that have no effect when another runtime executes the model.
pub(crate) fn without_effect(spec: &ModelSpec, parameters: &ModelParameters) -> Vec<&'static str> {
    let settings = [
        ("TF_NUM_INTER_THREADS", parameters.inter_threads != 0),
        ("TF_USE_PER_SESSION_THREADS", parameters.per_session_threads),
        ("MAX_SESSION_SHARE_COUNT", parameters.session_share_count != 1),
        ("optimization.graph.level", spec.optimization.graph_level != 0),
    ];
    settings.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_pbtxt::parse_config_draft;

    use super::*;
    use crate::messages::NodeDef;
    use crate::saved_model::SignatureTensor;

    const TENSORS: &str = "input { name: 'x' data_type: TYPE_FP32 dims: 1 }
                           output { name: 'y' data_type: TYPE_FP32 dims: 1 }";

    fn checked(config: &str) -> (Option<String>, Vec<&'static str>) {
        let text = format!("platform: 'tensorflow_savedmodel' {config}");
        let mut draft = parse_config_draft("config.pbtxt", &text).unwrap();
        draft.resolve_name_and_backend("m", &[]).unwrap();
        let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
        let parameters = ModelParameters::parse(&spec.parameters, "m").unwrap();
        (obstacle_in_configuration(&spec, &parameters), without_effect(&spec, &parameters))
    }

    fn parameter(key: &str, value: &str) -> String {
        format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
    }

    #[test]
    fn configurations_may_need_tensorflow() {
        for (given, expected) in [
            (parameter("TF_INIT_OPS_FILE", "a.json"), "TF_INIT_OPS_FILE"),
            (parameter("TF_GRAPH_TAG", "tpu"), "TF_GRAPH_TAG"),
            (parameter("TF_SIGNATURE_DEF", "other"), "TF_SIGNATURE_DEF"),
            (String::from("model_operations { op_library_filename: 'a.so' }"), "library"),
            (String::from("instance_group { kind: KIND_MODEL }"), "KIND_MODEL"),
        ] {
            let obstacle = checked(&format!("{TENSORS} {given}")).0.unwrap_or_default();
            assert!(obstacle.contains(expected), "{obstacle}");
        }
        let optional = TENSORS.replace("dims: 1 }\n", "dims: 1 optional: true }\n");
        assert!(checked(&optional).0.unwrap().contains("'x' is optional"));
        let usual = parameter("TF_GRAPH_TAG", "serve") + &parameter("TF_NUM_INTRA_THREADS", "2");
        assert_eq!(checked(&format!("{TENSORS} {usual}")), (None, vec![]));
    }

    #[test]
    fn settings_without_effect_are_found() {
        let given = parameter("TF_NUM_INTER_THREADS", "2") + "optimization { graph { level: 1 } }";
        let (obstacle, settings) = checked(&format!("{TENSORS} {given}"));
        assert_eq!(obstacle, None);
        assert_eq!(settings, ["TF_NUM_INTER_THREADS", "optimization.graph.level"]);
    }

    #[test]
    fn graphs_may_need_tensorflow() {
        let obstacle = |operator: &str, datatype: DataType| {
            let node = |name: &str, operator: &str| NodeDef {
                name: name.to_owned(),
                operator: operator.to_owned(),
                ..NodeDef::default()
            };
            let nodes = vec![node("f", operator), node("save", "AssignVariableOp")];
            let graph = GraphDef { nodes, library: None };
            let tensor = |graph_name: &str| SignatureTensor {
                name: String::from("y"),
                graph_name: graph_name.to_owned(),
                datatype,
                dims: vec![1],
            };
            obstacle_in_graph(
                &graph,
                &Signature { inputs: Vec::new(), outputs: vec![tensor("f:0")] },
            )
        };
        for operator in ["MatMul", "TensorListStack", "ReadVariableOp", "Pack"] {
            assert_eq!(obstacle(operator, DataType::Fp32), None, "{operator}");
        }
        for operator in ["AssignAddVariableOp", "Assert", "StatelessRandomUniform", "StackPushV2"] {
            let text = obstacle(operator, DataType::Fp32).unwrap();
            assert!(text.ends_with(&format!(": {operator}")), "{text}");
        }
        assert!(obstacle("MatMul", DataType::Bytes).unwrap().contains("strings"));
    }

    #[test]
    fn wide_types_are_found() {
        let tensor = |datatype: DataType| SignatureTensor {
            name: String::from("x"),
            graph_name: String::from("x:0"),
            datatype,
            dims: vec![1],
        };
        let inputs = vec![tensor(DataType::Int64), tensor(DataType::Uint32)];
        let outputs = vec![tensor(DataType::Fp64), tensor(DataType::Int64)];
        let found = narrowed_types(&Signature { inputs, outputs });
        assert_eq!(found, [DataType::Int64, DataType::Fp64]);
    }
}
