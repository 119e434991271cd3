//! A model's inputs and outputs, from its metadata and configuration.

use galatea_protocol::inference::{ModelConfig, ModelMetadataResponse, model_metadata_response};
use galatea_tensor::DataType;
use serde_json::Value;

/// A model's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModelInterface {
    /// The model's name.
    pub name: String,
    /// The model's inputs.
    pub inputs: Vec<TensorInterface>,
    /// The model's outputs.
    pub outputs: Vec<TensorInterface>,
    /// True if the model may send any number of responses to a request.
    pub is_decoupled: bool,
    /// True if the model's requests belong to sequences.
    pub has_sequences: bool,
    /// True if the first dimension is the batch dimension.
    pub has_batches: bool,
}

/// A tensor in an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInterface {
    /// The tensor's name.
    pub name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// The dimensions, including the batch dimension; -1 for a variable dimension.
    pub shape: Vec<i64>,
    /// True if a request may omit the tensor.
    pub is_optional: bool,
}

impl ServedModelInterface {
    /// Builds the interface from the HTTP endpoints' documents.
    ///
    /// # Errors
    ///
    /// The name of the missing part.
    pub fn from_json(metadata: &Value, config: &Value) -> Result<Self, String> {
        let name = metadata["name"].as_str().ok_or("the metadata has no name")?;
        let optional = optional_inputs(config);
        let tensors = |key: &str| -> Result<Vec<TensorInterface>, String> {
            let tensors = metadata[key].as_array().map_or(&[][..], Vec::as_slice);
            tensors.iter().map(|tensor| tensor_of_json(tensor, &optional)).collect()
        };
        Ok(Self {
            name: name.to_owned(),
            inputs: tensors("inputs")?,
            outputs: tensors("outputs")?,
            is_decoupled: config["model_transaction_policy"]["decoupled"] == true,
            has_sequences: config["sequence_batching"].is_object(),
            has_batches: config["max_batch_size"].as_i64().unwrap_or(0) > 0,
        })
    }

    /// Builds the interface from gRPC messages.
    ///
    /// # Errors
    ///
    /// Returns an error if a datatype is unknown.
    pub fn from_grpc(
        metadata: ModelMetadataResponse,
        config: &ModelConfig,
    ) -> Result<Self, String> {
        let is_optional =
            |name: &str| config.input.iter().any(|input| input.name == name && input.optional);
        let tensors = |tensors: Vec<model_metadata_response::TensorMetadata>| {
            let tensor = |one: model_metadata_response::TensorMetadata| {
                let datatype = datatype(&one.datatype)?;
                let is_optional = is_optional(&one.name);
                Ok(TensorInterface { name: one.name, datatype, shape: one.shape, is_optional })
            };
            tensors.into_iter().map(tensor).collect::<Result<_, String>>()
        };
        let policy = config.model_transaction_policy.as_ref();
        Ok(Self {
            name: metadata.name,
            inputs: tensors(metadata.inputs)?,
            outputs: tensors(metadata.outputs)?,
            is_decoupled: policy.is_some_and(|policy| policy.decoupled),
            has_sequences: matches!(
                config.scheduling_choice,
                Some(
                    galatea_protocol::inference::model_config::SchedulingChoice::SequenceBatching(
                        _
                    )
                )
            ),
            has_batches: config.max_batch_size > 0,
        })
    }
}

fn optional_inputs(config: &Value) -> Vec<&str> {
    let inputs = config["input"].as_array().map_or(&[][..], Vec::as_slice);
    let optional = inputs.iter().filter(|input| input["optional"] == true);
    optional.filter_map(|input| input["name"].as_str()).collect()
}

fn tensor_of_json(tensor: &Value, optional: &[&str]) -> Result<TensorInterface, String> {
    let name = tensor["name"].as_str().ok_or("the metadata has a tensor without a name")?;
    let dimensions = tensor["shape"].as_array().map_or(&[][..], Vec::as_slice);
    let dimension = |value: &Value| match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_i64(),
    };
    let shape: Option<Vec<i64>> = dimensions.iter().map(dimension).collect();
    Ok(TensorInterface {
        name: name.to_owned(),
        datatype: datatype(tensor["datatype"].as_str().unwrap_or_default())?,
        shape: shape.ok_or_else(|| format!("the shape of '{name}' is no list of numbers"))?,
        is_optional: optional.contains(&name),
    })
}

fn datatype(name: &str) -> Result<DataType, String> {
    DataType::from_protocol_name(name).ok_or_else(|| format!("datatype '{name}' is not known"))
}

#[cfg(test)]
mod tests {
    use galatea_protocol::inference::{ModelInput, ModelTransactionPolicy};
    use serde_json::json;

    use super::*;

    fn expected() -> ServedModelInterface {
        let tensor = |name: &str, datatype, is_optional| TensorInterface {
            name: name.to_owned(),
            datatype,
            shape: vec![-1, 4],
            is_optional,
        };
        ServedModelInterface {
            name: String::from("m"),
            inputs: vec![tensor("a", DataType::Fp32, false), tensor("b", DataType::Bytes, true)],
            outputs: vec![tensor("c", DataType::Int64, false)],
            is_decoupled: true,
            has_sequences: false,
            has_batches: true,
        }
    }

    #[test]
    fn both_protocols_describe_the_same_interface() {
        let tensor = |name: &str, datatype: &str| json!({ "name": name, "datatype": datatype, "shape": [-1, 4] });
        let metadata = json!({
            "name": "m",
            "inputs": [tensor("a", "FP32"), tensor("b", "BYTES")],
            "outputs": [tensor("c", "INT64")],
        });
        let config = json!({
            "max_batch_size": 8,
            "input": [{ "name": "a" }, { "name": "b", "optional": true }],
            "model_transaction_policy": { "decoupled": true },
        });
        assert_eq!(ServedModelInterface::from_json(&metadata, &config), Ok(expected()));

        let tensor = |name: &str, datatype: &str| model_metadata_response::TensorMetadata {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: vec![-1, 4],
        };
        let metadata = ModelMetadataResponse {
            name: String::from("m"),
            inputs: vec![tensor("a", "FP32"), tensor("b", "BYTES")],
            outputs: vec![tensor("c", "INT64")],
            ..Default::default()
        };
        let optional = ModelInput { name: String::from("b"), optional: true, ..Default::default() };
        let config = ModelConfig {
            max_batch_size: 8,
            input: vec![optional],
            model_transaction_policy: Some(ModelTransactionPolicy { decoupled: true }),
            ..Default::default()
        };
        assert_eq!(ServedModelInterface::from_grpc(metadata, &config), Ok(expected()));
    }

    #[test]
    fn what_is_missing_is_named() {
        let check = |metadata: Value, expected: &str| {
            assert_eq!(
                ServedModelInterface::from_json(&metadata, &Value::Null).unwrap_err(),
                expected
            );
        };
        check(json!({}), "the metadata has no name");
        check(json!({"name": "m", "inputs": [{"name": "x"}]}), "datatype '' is not known");
    }
}
