//! A TorchScript model that a worker executes, because there is no compiler for the shim.

use std::path::Path;

use galatea_config::ModelSpec;
use galatea_infer::Status;
use serde_json::{Value, json};

use super::interface::{interface, takes_dictionary};
use crate::api::{Argument, ArgumentKind};
use crate::parameters::ModelParameters;
use crate::worker::{worker_output, worker_threads};

/// The job of a worker that describes the model's arguments.
pub(crate) fn description_job(path: &Path) -> Value {
    json!({ "form": "script", "path": path.to_string_lossy() })
}

/// The job of a worker that executes the model with the described arguments.
///
/// # Errors
///
/// The reason why the model can't be executed with its configuration.
pub(crate) fn worker_job(
    spec: &ModelSpec,
    path: &Path,
    parameters: &ModelParameters,
    processors: usize,
    description: &Value,
) -> Result<Value, Status> {
    let arguments = described_arguments(description)
        .ok_or_else(|| Status::internal("the worker sent a wrong description"))?;
    let interface = interface(spec, &arguments)?;
    let inputs: Vec<&str> = interface.inputs.iter().map(|one| one.name.as_str()).collect();
    let outputs = interface.outputs.iter().enumerate();
    let outputs: Vec<Value> =
        outputs.filter_map(|(index, one)| worker_output(spec, index, &one.name)).collect();
    Ok(json!({
        "form": "script",
        "path": path.to_string_lossy(),
        "inputs": inputs,
        "outputs": outputs,
        "takes_dictionary": takes_dictionary(&arguments),
        "threads": worker_threads(spec, parameters, processors),
        "inter_op_threads": parameters.inter_op_threads,
        "inference_mode": parameters.inference_mode,
        "optimized": parameters.is_optimized,
        "jit_profiling": parameters.jit_profiling,
        "jit_executor": parameters.jit_executor,
        "tensor_fuser": parameters.tensor_fuser,
    }))
}

/// The arguments of `forward`: `{"arguments": [{"name": "x", "type": "Tensor", "kind":
/// "TensorType"}]}`.
fn described_arguments(description: &Value) -> Option<Vec<Argument>> {
    let arguments = description.get("arguments")?.as_array()?;
    let argument = |value: &Value| {
        let text = |key: &str| value.get(key)?.as_str().map(str::to_owned);
        let kind = match &*text("kind")? {
            "TensorType" => ArgumentKind::Tensor,
            "ListType" => ArgumentKind::List,
            "DictType" => ArgumentKind::Dictionary,
            _ => ArgumentKind::Other,
        };
        Some(Argument { name: text("name")?, type_name: text("type")?, kind })
    };
    arguments.iter().map(argument).collect()
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_pbtxt::parse_config_draft;

    use super::*;

    fn job(inputs: [&str; 2], description: &Value) -> Result<Value, Status> {
        let inputs =
            inputs.map(|name| format!("input {{ name: '{name}' data_type: TYPE_FP32 dims: 1 }}"));
        let text = format!(
            "{} output {{ name: 'y__1' data_type: TYPE_FP32 dims: 1 }}
             parameters {{ key: 'INTRA_OP_THREAD_COUNT' value {{ string_value: '3' }} }}",
            inputs.concat()
        );
        let mut draft = parse_config_draft("config.pbtxt", &text).unwrap();
        draft.resolve_name_and_backend("m", &["model.pt".to_owned()]).unwrap();
        let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
        let parameters = ModelParameters::parse(&spec.parameters).unwrap();
        worker_job(&spec, Path::new("/m/1/model.pt"), &parameters, 8, description)
    }

    #[test]
    fn a_job_has_the_tensors_in_the_order_of_the_model() {
        let argument = |name: &str| json!({ "name": name, "type": "Tensor", "kind": "TensorType" });
        let described = json!({ "arguments": [argument("a"), argument("b")] });
        let found = job(["b", "a"], &described).unwrap();
        assert_eq!(found["inputs"], json!(["a", "b"]));
        assert_eq!(found["outputs"], json!([{ "name": "y__1", "index": 1, "datatype": "FP32" }]));
        assert_eq!((&found["threads"], &found["takes_dictionary"]), (&json!(3), &json!(false)));
        let error = job(["b", "x"], &json!({ "arguments": [argument("a")] })).unwrap_err();
        assert!(error.message().ends_with("expects 2 inputs, model provides 1"), "{error}");
        for wrong in [json!(null), json!({ "arguments": [1] }), json!({ "arguments": {} })] {
            assert!(job(["b", "a"], &wrong).is_err(), "{wrong}");
        }
    }
}
