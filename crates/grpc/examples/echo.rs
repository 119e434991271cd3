//! A server with one model, `identity_fp32`, that returns its inputs: for
//! trying clients against the door, and for measuring the door alone.
//!
//! Usage: `echo ADDRESS [inline]`; inline responds on the I/O thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use galatea_infer::{
    DurationStatistic, InferenceRequest, InferenceResponse, InferenceService, InferenceStatistics,
    LoadParameters, ModelConfigDocument, ModelMetadata, ModelStatistics, OutputTensor, Pass,
    RepositoryEntry, ResponseSender, ServerControl, ServerMetadata, Status, TensorMetadata, api,
};
use galatea_protocol::inference::{ModelConfig, ModelInput, ModelOutput};
use galatea_tensor::DataType;
use prost::Message as _;

const MODEL: &str = "identity_fp32";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| String::from("127.0.0.1:8001"));
    let count = Arc::<AtomicU64>::default();
    let inline = Inline { count: count.clone() };
    let service: Arc<dyn InferenceService> = match arguments.next().as_deref() {
        Some("inline") => Arc::new(inline),
        _ => Arc::new(OtherThread::new(inline)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let workers = [runtime.handle().clone()];
    let listener = std::net::TcpListener::bind(address)?;
    let options = galatea_grpc::GrpcOptions::default();
    let door =
        galatea_grpc::start(&workers, listener, service, Arc::new(OneModel { count }), options)?;
    runtime.block_on(async {
        let _ = tokio::signal::ctrl_c().await;
        door.stop_accepting();
        door.drained().await;
    });
    Ok(())
}

fn echo(request: InferenceRequest, sender: ResponseSender) {
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

struct Inline {
    count: Arc<AtomicU64>,
}

impl InferenceService for Inline {
    fn infer(&self, _: Pass<api::Inference>, request: InferenceRequest, sender: ResponseSender) {
        self.count.fetch_add(1, Ordering::Relaxed);
        echo(request, sender);
    }
}

/// Responds on a thread of its own, as the server does.
struct OtherThread {
    work: mpsc::Sender<(InferenceRequest, ResponseSender)>,
}

impl OtherThread {
    fn new(service: Inline) -> Self {
        let (work, inbox) = mpsc::channel();
        std::thread::spawn(move || {
            for (request, sender) in inbox {
                service.infer(Pass::in_process(), request, sender);
            }
        });
        Self { work }
    }
}

impl InferenceService for OtherThread {
    fn infer(&self, _: Pass<api::Inference>, request: InferenceRequest, sender: ResponseSender) {
        // The sender of a request that can't be sent is dropped, and then sends an error.
        let _ = self.work.send((request, sender));
    }
}

struct OneModel {
    count: Arc<AtomicU64>,
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

impl ServerControl for OneModel {
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
        let count = self.count.load(Ordering::Relaxed);
        let counted = DurationStatistic { count, ns: count };
        Ok(vec![ModelStatistics {
            name: MODEL.into(),
            version: 1,
            last_inference_ms: count,
            inference_count: count,
            execution_count: count,
            inference: InferenceStatistics {
                success: counted,
                queue: counted,
                compute_input: counted,
                compute_infer: counted,
                compute_output: counted,
                ..Default::default()
            },
            ..ModelStatistics::default()
        }])
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
