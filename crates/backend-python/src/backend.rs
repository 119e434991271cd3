//! The backend, which chooses the interpreter for a model and prepares the worker's configuration.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use galatea_backend::{
    AcceptedInputMemory, Backend, Device, ExecutionPolicy, Instance, InstanceCreation, LogLevel,
    Model, ModelFiles, ModelHost, Placement, misnamed_file_hint_in,
};
use galatea_config::{ConfigDraft, InstanceKind, ModelSpec, PreferredInstances};
use galatea_infer::Status;
use galatea_stdx::Lock;
use serde_json::{Map, Value, json};

use crate::confinement::{self, PassedVariables, VersionConfinement, WithoutControl};
use crate::gpus::{GpuUse, Gpus};
use crate::held::ModelLabel;
use crate::instance::PythonInstance;
use crate::interpreter::{ENVIRONMENT, Environments, Interpreter};
use crate::options::{BackendScript, PythonOptions};
use crate::server::ServerAccess;
use crate::slot::SlotInstance;
use crate::sources::{self, InstanceForm, SuppliedScript};
use crate::supervisor::{Starter, SupervisedInstance, Supervisor};
use crate::template::{Environment, TemplateImports, TemplateOptions, Templates};
use crate::wire::to_a;
use crate::worker::{ModelContext, StartedWorker, WorkerLaunch};

/// The model's file name if the configuration doesn't specify one.
const MODEL_FILE: &str = "model.py";
/// The maximum time for a model's `finalize` function.
const FINALIZE_PATIENCE: Duration = Duration::from_secs(30);

/// Serves Python models. Each instance has its own process.
pub struct PythonBackend {
    options: PythonOptions,
    environments: Environments,
    templates: Arc<Templates>,
    /// A counter that spreads workers over processors.
    turn: Arc<AtomicUsize>,
}

impl PythonBackend {
    /// Creates a backend with these options.
    #[must_use]
    pub fn new(options: PythonOptions) -> Self {
        let interpreter = options.interpreter.clone();
        let environments =
            Environments::new(interpreter, options.temporary_folder.clone(), options.withheld);
        Self { options, environments, templates: Arc::default(), turn: Arc::default() }
    }

    fn runtime<'a>(
        &self,
        files: &dyn ModelFiles,
        file: &str,
        parameter: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<ModelRuntime, Status> {
        let environment = parameter(ENVIRONMENT);
        let confinement = self.options.confinement.tightened(parameter)?;
        let variables = PassedVariables {
            inherited: self.options.inherited,
            further: self.options.sandbox_variables.clone(),
        };
        let confined = confinement::of_version(
            confinement,
            (files.model_path(), files.version_path()),
            &self.options.temporary_folder,
            (self.turn.clone(), variables),
        )?;
        let directory = files.model_path();
        let file = if file.is_empty() { MODEL_FILE } else { file };
        let runtime = self.options.runtime.as_ref();
        let common = runtime.and_then(|runtime| runtime.environment.as_deref()?.to_str());
        let environment = environment.filter(|text| !text.is_empty()).or(common);
        if let Some(environment) = environment {
            let text = format!("Using Python execution env {environment}");
            self.options.server.log(LogLevel::Info, file!(), line!(), &text);
        }
        let interpreter = self.environments.interpreter(environment, directory)?;
        let variables = interpreter.variables(self.options.library_path.clone());
        // A worker that is forked from a template would have the template's limits and permissions.
        let environment = confined.is_none().then(|| {
            let options = TemplateOptions {
                patience: self.options.start_timeout,
                server: self.options.server.clone(),
                inherited: self.options.inherited,
            };
            self.templates.environment(&interpreter, variables.clone(), &options)
        });
        let model_path = match runtime.map(|runtime| &runtime.script) {
            Some(BackendScript::File(path)) => path.clone(),
            Some(BackendScript::Supplied(_)) => sources::model_path(files, file)?,
            None => files.version_path().join(file),
        };
        Ok(ModelRuntime {
            interpreter,
            variables,
            environment,
            model_path,
            directory: directory.to_owned(),
            version: files.version(),
            options: self.options.clone(),
            confined,
            job: Value::Null,
        })
    }

    /// Asks the supplied script about the model of a job, which it need not execute.
    ///
    /// # Errors
    ///
    /// The script's error, or the reason why no worker could be started.
    pub fn describe_job(
        &self,
        spec: &ModelSpec,
        files: &dyn ModelFiles,
        job: Value,
    ) -> Result<Value, Status> {
        let parameter = |key: &str| spec.parameters.get(key).map(String::as_str);
        let runtime = self.runtime(files, &spec.default_model_filename, parameter)?;
        let runtime = ModelRuntime { job, ..runtime };
        let answer = runtime.ask_before_load(&spec.name, &spec.to_json(), &Map::new())?;
        serde_json::from_str(&answer)
            .map_err(|_| Status::internal("the worker sent a wrong description"))
    }

    /// Loads a version like [`Backend::load`], with a job that tells the supplied script which
    /// model it executes.
    ///
    /// # Errors
    ///
    /// Same as for [`Backend::load`].
    pub fn load_job(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
        job: Value,
    ) -> Result<Box<dyn Model>, Status> {
        let parameter = |key: &str| spec.parameters.get(key).map(String::as_str);
        let runtime = self.runtime(files, &spec.default_model_filename, parameter)?;
        let runtime = ModelRuntime { job, ..runtime };
        runtime.check_file(&spec.name)?;
        let is_shared = gets_tensors_on_gpus(parameter("FORCE_CPU_ONLY_INPUT_TENSORS"))?;
        let use_of_gpus = match is_shared {
            _ if runtime.is_in_sandbox() => GpuUse::None,
            true => GpuUse::Shared,
            false => GpuUse::Asked,
        };
        let context = Arc::new(ModelContext {
            label: ModelLabel { name: Arc::from(&*spec.name), version: runtime.version },
            is_decoupled: spec.decoupled,
            outputs: spec.outputs.iter().map(|output| Arc::from(&*output.name)).collect(),
            host: Some(host),
            server: runtime.server(),
            gpus: Gpus::new(self.options.devices.clone(), use_of_gpus),
        });
        let templates = self.templates.clone();
        let use_of_numpy = Lock::default();
        let shared = Arc::new(PythonModel { spec, runtime, context, templates, use_of_numpy });
        let (instances, slots) = (Lock::default(), Lock::default());
        Ok(Box::new(LoadedPythonModel { shared, instances, slots }))
    }
}

/// The interpreter for a model, with its files, its environment and its limits.
struct ModelRuntime {
    interpreter: Interpreter,
    /// The environment's variables, in addition to the server's.
    variables: Vec<(&'static str, OsString)>,
    /// The environment in which workers are forked; `None` if each one starts an interpreter.
    environment: Option<Arc<Environment>>,
    model_path: PathBuf,
    directory: PathBuf,
    version: i64,
    options: PythonOptions,
    confined: Option<VersionConfinement>,
    /// The job of a supplied script.
    job: Value,
}

impl ModelRuntime {
    /// The server, restricted to the operations that the model may use.
    fn server(&self) -> Arc<dyn ServerAccess> {
        let server = self.options.server.clone();
        if self.is_in_sandbox() { Arc::new(WithoutControl(server)) } else { server }
    }

    fn is_in_sandbox(&self) -> bool {
        self.confined.as_ref().is_some_and(|one| one.confinement.sandbox)
    }

    /// The script of the program that executes the model instead of a file.
    fn supplied(&self) -> Option<SuppliedScript> {
        match self.options.runtime.as_ref()?.script {
            BackendScript::Supplied(script) => Some(script),
            BackendScript::File(_) => None,
        }
    }

    fn check_file(&self, model: &str) -> Result<(), Status> {
        if self.supplied().is_some() || self.model_path.is_file() {
            return Ok(());
        }
        let expected = self.model_path.file_name().unwrap_or_default().to_string_lossy();
        let advice = match (&self.options.runtime, self.model_path.parent()) {
            (None, Some(directory)) => misnamed_file_hint_in(directory, &expected),
            _ => String::new(),
        };
        let text = format!(
            "Python model file not found for model '{model}': {}{advice}",
            self.model_path.display()
        );
        Err(Status::internal(text))
    }

    /// The module directories in Triton's order: the directory of the file, followed by the model's
    /// directory unless the file belongs to a backend.
    fn module_paths(&self) -> impl Iterator<Item = &Path> {
        let belongs_to_backend = self.options.runtime.is_some() && self.supplied().is_none();
        let count = if belongs_to_backend { 1 } else { 2 };
        let own = self.model_path.ancestors().skip(1).take(count);
        own.chain(self.options.module_paths.iter().map(PathBuf::as_path))
    }

    /// The document that describes the model to a worker.
    fn document(&self, arguments: Value, is_decoupled: bool) -> Value {
        let paths = self.module_paths();
        let paths: Vec<_> = paths.map(|path| path.to_string_lossy()).collect();
        let mut document = json!({
            "args": arguments,
            "model_path": self.model_path.to_string_lossy(),
            "module_paths": paths,
            "decoupled": is_decoupled,
        });
        if let (Some(script), Some(object)) = (self.supplied(), document.as_object_mut()) {
            object.insert(String::from("supplied"), script.to_json());
            object.insert(String::from("job"), self.job.clone());
        }
        document
    }

    /// Starts a worker that completes a configuration or describes the model of a job, and ends it.
    fn ask_before_load(
        &self,
        model: &str,
        config: &str,
        config_map: &Map<String, Value>,
    ) -> Result<String, Status> {
        let context = Arc::new(ModelContext {
            label: ModelLabel { name: Arc::from(model), version: self.version },
            is_decoupled: false,
            outputs: Vec::new(),
            host: None,
            server: self.server(),
            gpus: Gpus::default(),
        });
        let launch = WorkerLaunch {
            interpreter: &self.interpreter,
            instance: model,
            patience: self.options.start_timeout,
            variables: self.variables.clone(),
            execute_timeout: None,
            confined: self.confined.as_ref(),
            model: context,
            gpu: None,
            templates: self.environment.as_deref().map(|one| (one, TemplateImports::Own)),
            is_cancelled: &|| false,
        };
        let mut started = StartedWorker::launch(&launch)?;
        let arguments = self.arguments(model, config, model, Device::Cpu);
        let mut document = self.document(arguments, false);
        if let Some(object) = document.as_object_mut() {
            object.insert(String::from("config"), config_map.clone().into());
        }
        started.ask(to_a::AUTO_COMPLETE, &document.to_string(), &|| false)
    }

    fn arguments(&self, model: &str, config: &str, instance: &str, device: Device) -> Value {
        let (kind, number) = match device {
            Device::Cpu => ("CPU", 0),
            Device::Gpu(number) => ("GPU", number),
            Device::Model => ("MODEL", 0),
        };
        json!({
            "model_config": config,
            "model_instance_kind": kind,
            "model_instance_name": instance,
            "model_instance_device_id": number.to_string(),
            "model_repository": self.directory.to_string_lossy(),
            "model_version": self.version.to_string(),
            "model_name": model,
        })
    }
}

impl Backend for PythonBackend {
    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn gpus_refused(&self) -> Option<String> {
        let script = self.options.runtime.as_ref().map(|runtime| &runtime.script);
        let Some(BackendScript::Supplied(script)) = script else { return None };
        matches!(script.instances, InstanceForm::Slot { .. }).then(|| {
            String::from(
                "the instances are slots of one process, whose parameters say which GPUs it uses",
            )
        })
    }

    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
    ) -> Result<(), Status> {
        let message = draft.message();
        let parameter = |key: &str| Some(&*message.parameters.get(key)?.string_value);
        let runtime = self.runtime(files, &message.default_model_filename, parameter)?;
        let (name, config) =
            (draft.name().to_owned(), draft.normalized_json(&self.options.support));
        runtime.check_file(&name)?;
        let mut config_map: Map<String, Value> = serde_json::from_str(&config)
            .map_err(|error| Status::internal(format!("the configuration is no JSON: {error}")))?;
        let changed = runtime.ask_before_load(&name, &config, &config_map)?;
        let changed: Map<String, Value> = serde_json::from_str(&changed)
            .map_err(|_| Status::internal("the worker sent a wrong configuration"))?;
        let script = runtime.supplied();
        if let Some(InstanceForm::Slot { count }) = script.map(|script| script.instances) {
            let slots =
                PreferredInstances { kind: Some(InstanceKind::Cpu), count, gpus: Vec::new() };
            draft.apply_preferred_instances(&[slots], &self.options.support);
        }
        if changed.is_empty() {
            return Ok(());
        }
        config_map.extend(changed);
        let source = "the configuration that auto_complete_config returns";
        let completed = ConfigDraft::from_json(source, &Value::from(config_map).to_string())
            .map_err(|errors| Status::invalid_argument(errors.to_string()))?;
        draft.merge_completed(&completed).map_err(Status::internal)?;
        if script.is_some() {
            draft.add_missing_parameters(&completed);
        }
        Ok(())
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        self.load_job(spec, files, host, Value::Null)
    }
}

/// Returns true if the model receives inputs in GPU memory unchanged.
fn gets_tensors_on_gpus(force_cpu: Option<&str>) -> Result<bool, Status> {
    match force_cpu {
        None | Some("yes") => Ok(false),
        Some("no") => Ok(true),
        // Triton's text, byte for byte.
        Some(other) => Err(Status::unsupported(format!(
            "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {other}'"
        ))),
    }
}

/// A loaded model.
struct PythonModel {
    spec: Arc<ModelSpec>,
    runtime: ModelRuntime,
    context: Arc<ModelContext>,
    templates: Arc<Templates>,
    use_of_numpy: Lock<UseOfNumpy>,
}

/// The way in which a model's workers import numpy.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum UseOfNumpy {
    /// The workers don't import numpy, or the server doesn't know yet how they import it.
    #[default]
    Unknown,
    /// The workers import numpy the way a template does.
    Usual,
    /// The workers import numpy after the model has changed the environment.
    Special,
}

impl Drop for PythonModel {
    fn drop(&mut self) {
        self.templates.expect_none();
    }
}

struct LoadedPythonModel {
    shared: Arc<PythonModel>,
    /// The instances, for readiness checks.
    instances: Lock<Vec<(String, std::sync::Weak<Supervisor>)>>,
    /// The worker that all instances share, if they are slots.
    slots: Lock<std::sync::Weak<Supervisor>>,
}

impl LoadedPythonModel {
    fn are_slots(&self) -> bool {
        let script = self.shared.runtime.supplied();
        script.is_some_and(|script| matches!(script.instances, InstanceForm::Slot { .. }))
    }

    /// Starts a worker for an instance.
    fn start(&self, placement: &Placement) -> Result<Arc<Supervisor>, Status> {
        let starter = InstanceStarter {
            model: self.shared.clone(),
            name: placement.name.clone(),
            device: placement.device,
        };
        let supervisor = Arc::new(Supervisor::start(Box::new(starter))?);
        let mut instances = self.instances.lock("add an instance");
        instances.retain(|(_, one)| one.strong_count() > 0);
        instances.push((placement.name.clone(), Arc::downgrade(&supervisor)));
        drop(instances);
        Ok(supervisor)
    }

    /// The worker that all instances share. The first instance starts it.
    fn shared_worker(&self, placement: &Placement) -> Result<Arc<Supervisor>, Status> {
        // Instances of this form are created one at a time.
        let running = self.slots.lock("find the shared worker").upgrade();
        if let Some(running) = running {
            return Ok(running);
        }
        let started = self.start(placement)?;
        *self.slots.lock("share a worker") = Arc::downgrade(&started);
        Ok(started)
    }
}

impl Model for LoadedPythonModel {
    fn create_instance(&self, placement: &Placement) -> Result<Box<dyn Instance>, Status> {
        if self.are_slots() {
            return Ok(Box::new(SlotInstance::new(self.shared_worker(placement)?)));
        }
        Ok(Box::new(PythonInstance::new(self.start(placement)?)))
    }

    fn instance_creation(&self) -> InstanceCreation {
        if self.are_slots() { InstanceCreation::Sequential } else { InstanceCreation::Parallel }
    }

    fn input_memory(&self) -> AcceptedInputMemory {
        if self.shared.context.gpus.are_shared() {
            AcceptedInputMemory::Device
        } else {
            AcceptedInputMemory::Host
        }
    }

    fn check_ready(&self) -> Result<(), Status> {
        let instances: Vec<(String, Arc<Supervisor>)> = self
            .instances
            .lock("check readiness")
            .iter()
            .filter_map(|(name, one)| Some((name.clone(), one.upgrade()?)))
            .collect();
        instances.iter().try_for_each(|(name, supervisor)| check(name, supervisor.shared()))
    }

    fn readiness_may_block(&self) -> bool {
        true
    }
}

fn check(name: &str, supervised: &SupervisedInstance) -> Result<(), Status> {
    let Some(worker) = supervised.serving() else {
        return Err(Status::internal(format!("Stub process '{name}' is not healthy.")));
    };
    if worker.is_ready()? {
        return Ok(());
    }
    let text = format!("Model '{name}' is not ready (user-defined check failed).");
    Err(Status::unavailable(text))
}

/// Starts the workers of one instance.
struct InstanceStarter {
    model: Arc<PythonModel>,
    name: String,
    device: Device,
}

impl InstanceStarter {
    /// Starts a worker and makes it initialize the model. Also returns the worker's answer.
    fn initialize(
        &self,
        templates: Option<(&Environment, TemplateImports)>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(StartedWorker, Value), Status> {
        let PythonModel { spec, runtime, context, .. } = &*self.model;
        let mut started = StartedWorker::launch(&WorkerLaunch {
            interpreter: &runtime.interpreter,
            instance: &self.name,
            patience: runtime.options.start_timeout,
            variables: runtime.variables.clone(),
            execute_timeout: runtime.options.execute_timeout,
            confined: runtime.confined.as_ref(),
            model: context.clone(),
            gpu: match self.device {
                Device::Gpu(gpu) => Some(gpu),
                Device::Cpu | Device::Model => None,
            },
            templates,
            is_cancelled,
        })?;
        let arguments = runtime.arguments(&spec.name, &spec.to_json(), &self.name, self.device);
        let document = runtime.document(arguments, spec.decoupled);
        let answer = started.ask(to_a::INITIALIZE, &document.to_string(), is_cancelled)?;
        Ok((started, serde_json::from_str(&answer).unwrap_or_default()))
    }
}

/// Returns true if the model has its own readiness check.
fn has_check(answer: &Value) -> bool {
    answer.get("is_ready").and_then(Value::as_bool).unwrap_or_default()
}

impl Starter for InstanceStarter {
    fn start(&self, is_cancelled: &dyn Fn() -> bool) -> Result<StartedWorker, Status> {
        let use_of_numpy = *self.model.use_of_numpy.lock("choose a template");
        let environment = self.model.runtime.environment.as_deref();
        let is_usual = use_of_numpy == UseOfNumpy::Usual;
        let imports = if is_usual { TemplateImports::Numpy } else { TemplateImports::Own };
        let templates = environment.map(|one| (one, imports));
        let (started, answer) = self.initialize(templates, is_cancelled)?;
        let says = |key: &str| answer.get(key).and_then(Value::as_bool).unwrap_or_default();
        if says("anew") {
            drop(started);
            *self.model.use_of_numpy.lock("remember a special model") = UseOfNumpy::Special;
            let (started, answer) = self.initialize(None, is_cancelled)?;
            started.begin_serving(has_check(&answer));
            return Ok(started);
        }
        let mut known = self.model.use_of_numpy.lock("remember what a model imports");
        if *known == UseOfNumpy::Unknown && says("numpy") {
            *known = UseOfNumpy::Usual;
        }
        drop(known);
        started.begin_serving(has_check(&answer));
        Ok(started)
    }

    fn instance(&self) -> &str {
        &self.name
    }

    fn log(&self, level: LogLevel, message: &str) {
        if let Some(host) = &self.model.context.host {
            host.log(level, message);
        }
    }

    fn finalize_patience(&self) -> Duration {
        FINALIZE_PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // row: PY-11
    fn a_model_says_whether_it_takes_tensors_on_gpus() {
        let parsed = |value| gets_tensors_on_gpus(value).ok();
        assert_eq!((parsed(None), parsed(Some("yes"))), (Some(false), Some(false)));
        assert_eq!(parsed(Some("no")), Some(true));
        let error = gets_tensors_on_gpus(Some("No")).unwrap_err();
        assert_eq!(error.message(), "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: No'");
    }
}
