//! A server with one model that returns its inputs.

use std::sync::Arc;

use galatea_infer::{
    InferenceRequest, InferenceResponse, InferenceService, LoadParameters, ModelConfigDocument,
    ModelMetadata, ModelStatistics, OutputTensor, Pass, RepositoryEntry, ResponseSender,
    ServerControl, ServerMetadata, Status, TensorMetadata, api,
};
use galatea_protocol::inference::{ModelConfig, ModelInput, ModelOutput};
use galatea_tensor::DataType;
use prost::Message as _;

/// The model's name.
const MODEL: &str = "m";

/// The server.
pub(crate) struct Echo;

impl InferenceService for Echo {
    fn infer(&self, _: Pass<api::Inference>, request: InferenceRequest, sender: ResponseSender) {
        let outputs = request.inputs.into_iter().map(|input| OutputTensor {
            name: input.name.replace("INPUT", "OUTPUT").into(),
            datatype: input.datatype,
            shape: input.shape,
            data: input.data,
        });
        sender.send_final(Ok(InferenceResponse {
            model_name: request.model_name.into(),
            model_version: 1,
            id: request.id,
            parameters: request.parameters,
            outputs: outputs.collect(),
        }));
    }
}

fn known(name: &str) -> Result<(), Status> {
    if name == MODEL {
        return Ok(());
    }
    Err(Status::not_found(format!("Request for unknown model: '{name}' is not found")))
}

fn tensor(name: &str) -> TensorMetadata {
    TensorMetadata { name: name.into(), datatype: DataType::Fp32, shape: vec![-1] }
}

impl ServerControl for Echo {
    fn live(&self, _: Pass<api::Health>) -> bool {
        true
    }

    fn ready(&self, _: Pass<api::Health>) -> Result<bool, Status> {
        Ok(true)
    }

    fn model_ready(
        &self,
        _: Pass<api::Health>,
        name: &str,
        _version: Option<i64>,
    ) -> Result<bool, Status> {
        known(name).map(|()| true)
    }

    fn server_metadata(&self, _: Pass<api::Metadata>) -> ServerMetadata {
        let version = String::from(env!("CARGO_PKG_VERSION"));
        ServerMetadata { name: String::from("echo"), version, extensions: vec!["statistics"] }
    }

    fn model_metadata(
        &self,
        _: Pass<api::Metadata>,
        name: &str,
        _version: Option<i64>,
    ) -> Result<ModelMetadata, Status> {
        known(name)?;
        Ok(ModelMetadata {
            name: name.into(),
            versions: vec![1],
            platform: String::from("echo"),
            inputs: vec![tensor("INPUT0")],
            outputs: vec![tensor("OUTPUT0")],
        })
    }

    fn model_config(
        &self,
        _: Pass<api::ModelConfig>,
        name: &str,
        _version: Option<i64>,
    ) -> Result<Arc<ModelConfigDocument>, Status> {
        known(name)?;
        let data_type = DataType::Fp32.config_number();
        let input =
            ModelInput { name: "INPUT0".into(), data_type, dims: vec![-1], ..Default::default() };
        let output =
            ModelOutput { name: "OUTPUT0".into(), data_type, dims: vec![-1], ..Default::default() };
        let config = ModelConfig {
            name: name.into(),
            backend: String::from("identity"),
            input: vec![input],
            output: vec![output],
            ..Default::default()
        };
        let protobuf = config.encode_to_vec();
        Ok(Arc::new(ModelConfigDocument { json: String::from("{}"), protobuf }))
    }

    fn config_for_inference(
        &self,
        _: Pass<api::Inference>,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<ModelConfigDocument>, Status> {
        self.model_config(Pass::in_process(), name, version)
    }

    fn is_decoupled(
        &self,
        _: Pass<api::Inference>,
        name: &str,
        _version: Option<i64>,
    ) -> Result<bool, Status> {
        known(name).map(|()| false)
    }

    fn scheduler_status(
        &self,
        _: Pass<api::Statistics>,
        name: &str,
        _version: Option<i64>,
    ) -> Result<String, Status> {
        known(name).map(|()| String::from("{}"))
    }

    fn statistics(
        &self,
        _: Pass<api::Statistics>,
        _name: Option<&str>,
        _version: Option<i64>,
    ) -> Result<Vec<ModelStatistics>, Status> {
        Ok(vec![ModelStatistics { name: MODEL.into(), version: 1, ..ModelStatistics::default() }])
    }

    fn repository_index(
        &self,
        _: Pass<api::ModelRepository>,
        _only_ready: bool,
    ) -> Result<Vec<RepositoryEntry>, Status> {
        Ok(Vec::new())
    }

    fn load_model(
        &self,
        _: Pass<api::ModelRepository>,
        _name: &str,
        _parameters: LoadParameters,
    ) -> Result<(), Status> {
        Err(Status::unavailable("explicit model load / unload is not allowed"))
    }

    fn unload_model(
        &self,
        _: Pass<api::ModelRepository>,
        _name: &str,
        _unload_dependents: bool,
    ) -> Result<(), Status> {
        Err(Status::unavailable("explicit model load / unload is not allowed"))
    }
}
