//! Descriptions of the server and its models.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use galatea_control::{
    BatchStatistics, DurationStatistic, InferenceStatistics, LoadParameters, ModelConfigDocument,
    ModelMetadata, ModelNameMapping, ModelState, ModelStatistics, PriorityLevels, RepositoryEntry,
    ServedModel, ServerControl, ServerMetadata, TensorMetadata,
};
use galatea_infer::{AccessPass, Code, Status, api};
use galatea_protocol::inference::ModelConfig;
use galatea_tensor::DataType;
use prost::Message as _;

use crate::{FakeServer, Hook};

impl FakeServer {
    fn check(&self, name: &str, version: Option<i64>) -> Result<(), Status> {
        match (name, version) {
            ("unknown", _) => {
                Err(Status::not_found("Request for unknown model: 'unknown' is not found"))
            }
            ("buggy", _) if self.names_have_effects => panic!("on purpose"),
            (_, Some(9)) => {
                Err(Status::unavailable(format!("'{name}' version 9 is not at ready state")))
            }
            _ => Ok(()),
        }
    }

    fn config(&self, name: &str, version: Option<i64>) -> Result<Arc<ModelConfigDocument>, Status> {
        self.check(name, version)?;
        let config = ModelConfig { name: name.into(), ..self.model.clone() };
        let json = format!(r#"{{"name":"{name}","max_batch_size":{}}}"#, config.max_batch_size);
        Ok(Arc::new(ModelConfigDocument { json, protobuf: config.encode_to_vec() }))
    }

    fn order(&self, text: String) {
        if self.names_have_effects {
            self.orders.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
    }
}

fn call(hook: &Hook) {
    let taken = hook.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.into_iter().for_each(|hook| hook());
}

fn tensor(name: &str, number: i32, dims: &[i64]) -> TensorMetadata {
    let datatype = DataType::from_config_number(number).unwrap();
    TensorMetadata { name: name.into(), datatype, shape: dims.to_vec() }
}

/// The model that the fake server has under any name. Replies depend only on the name.
struct FakeModel {
    config: Arc<ModelConfigDocument>,
    is_decoupled: bool,
}

impl ServedModel for FakeModel {
    fn is_decoupled(&self) -> bool {
        self.is_decoupled
    }

    fn config(&self) -> Arc<ModelConfigDocument> {
        self.config.clone()
    }

    fn priority_levels(&self) -> PriorityLevels {
        PriorityLevels { count: u64::MAX, default: 0 }
    }
}

impl ServerControl for FakeServer {
    fn live(&self, _: AccessPass<api::Health>) -> bool {
        true
    }

    fn ready(&self, _: AccessPass<api::Health>) -> Result<bool, Status> {
        if self.is_stopping.load(Ordering::SeqCst) {
            return Err(Status::unavailable("Server is stopping."));
        }
        Ok(!self.is_unready.load(Ordering::SeqCst))
    }

    fn model_ready(
        &self,
        pass: AccessPass<api::Health>,
        name: &str,
        version: Option<i64>,
    ) -> Result<bool, Status> {
        Ok(self.check(name, version).is_ok() && self.ready(pass)?)
    }

    fn server_metadata(&self, _: AccessPass<api::Metadata>) -> ServerMetadata {
        ServerMetadata { name: "fake".into(), version: "1".into(), extensions: vec!["a", "b"] }
    }

    fn model_metadata(
        &self,
        _: AccessPass<api::Metadata>,
        name: &str,
        version: Option<i64>,
    ) -> Result<ModelMetadata, Status> {
        self.check(name, version)?;
        let model = &self.model;
        Ok(ModelMetadata {
            name: name.into(),
            versions: vec![version.unwrap_or(1), 7],
            platform: model.backend.clone(),
            inputs: model.input.iter().map(|t| tensor(&t.name, t.data_type, &t.dims)).collect(),
            outputs: model.output.iter().map(|t| tensor(&t.name, t.data_type, &t.dims)).collect(),
        })
    }

    fn model_config(
        &self,
        _: AccessPass<api::ModelConfig>,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<ModelConfigDocument>, Status> {
        self.config(name, version)
    }

    fn model_for_inference(
        &self,
        _: AccessPass<api::Inference>,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<dyn ServedModel>, Status> {
        call(&self.before_inference);
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let config = self.config(name, version)?;
        let is_decoupled = self.names_have_effects && name == "decoupled";
        Ok(Arc::new(FakeModel { config, is_decoupled }))
    }

    fn has_report(&self, report: &str) -> bool {
        report == "scheduler"
    }

    fn model_report(
        &self,
        _: AccessPass<api::Statistics>,
        name: &str,
        version: Option<i64>,
        report: &str,
    ) -> Result<String, Status> {
        self.check(name, version)?;
        if !self.has_report(report) {
            return Err(Status::not_found(format!("there is no report '{report}'")));
        }
        Ok(String::from(r#"{"queues":[]}"#))
    }

    /// Statistics in which each counter starts at a distinct number; the request count is added to
    /// some counters.
    fn statistics(
        &self,
        _: AccessPass<api::Statistics>,
        name: Option<&str>,
        version: Option<i64>,
    ) -> Result<Vec<ModelStatistics>, Status> {
        if name.is_some_and(|name| self.check(name, version).is_err()) {
            return Err(Status::invalid_argument("requested model is not available"));
        }
        if name.is_none() {
            self.statistics_reads.fetch_add(1, Ordering::SeqCst);
            call(&self.before_statistics);
        }
        let requests = self.requests.load(Ordering::SeqCst);
        let counted = DurationStatistic { count: requests, ns: requests };
        let compute_infer = DurationStatistic { count: 0, ns: 6 };
        Ok(vec![ModelStatistics {
            name: name.unwrap_or("echo").into(),
            version: version.unwrap_or(1),
            last_inference_ms: 10,
            inference_count: 11 + requests,
            execution_count: 12 + requests,
            inference: InferenceStatistics {
                success: counted,
                queue: DurationStatistic { count: 3 + requests, ns: 4 + requests },
                compute_input: counted,
                compute_infer: counted,
                compute_output: counted,
                ..Default::default()
            },
            batches: vec![BatchStatistics { batch_size: 5, compute_infer, ..Default::default() }],
            ..ModelStatistics::default()
        }])
    }

    fn repository_index(
        &self,
        _: AccessPass<api::ModelRepository>,
        only_ready: bool,
    ) -> Result<Vec<RepositoryEntry>, Status> {
        let entry = |name: &str, version, state, reason: &str| RepositoryEntry {
            name: name.into(),
            version,
            state,
            reason: reason.into(),
        };
        if !self.names_have_effects {
            // For a model that is always ready, an unload would never finish.
            return Ok(Vec::new());
        }
        let mut entries = vec![entry("echo", Some(1), Some(ModelState::Ready), "")];
        if !only_ready {
            entries.push(entry("b", Some(2), Some(ModelState::Unavailable), "unloaded"));
            entries.push(entry("c", None, None, ""));
        }
        Ok(entries)
    }

    fn load_model(
        &self,
        _: AccessPass<api::ModelRepository>,
        name: &str,
        parameters: LoadParameters,
    ) -> Result<(), Status> {
        self.check(name, None)?;
        call(&self.before_load);
        let LoadParameters { config, files } = parameters;
        let with = config.map(|config| format!(" config {config}")).unwrap_or_default();
        let files: String =
            files.iter().map(|(path, content)| format!(" {path} {content:?}")).collect();
        self.order(format!("load {name}{with}{files}"));
        match name {
            "broken" => Err(Status::internal("failed to load 'broken'")),
            "large" => Err(Status::internal("failed to load 'large': CUDA out of memory")),
            _ => Ok(()),
        }
    }

    fn unload_model(
        &self,
        _: AccessPass<api::ModelRepository>,
        name: &str,
        unload_dependents: bool,
    ) -> Result<(), Status> {
        self.check(name, None)?;
        self.order(format!("unload {name} {unload_dependents}"));
        Ok(())
    }

    fn register_repository(
        &self,
        _: AccessPass<api::ModelRepository>,
        path: &str,
        names: &[ModelNameMapping],
    ) -> Result<(), Status> {
        if self.names_have_effects && path.contains("taken") {
            let text = format!("model repository '{path}' has already been registered");
            return Err(Status::new(Code::AlreadyExists, text));
        }
        let names: String =
            names.iter().map(|given| format!(" {}={}", given.directory, given.name)).collect();
        self.order(format!("register {path}{names}"));
        Ok(())
    }

    fn unregister_repository(
        &self,
        _: AccessPass<api::ModelRepository>,
        path: &str,
    ) -> Result<(), Status> {
        self.order(format!("unregister {path}"));
        Ok(())
    }
}
