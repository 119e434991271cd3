//! The backend and its models.

use std::any::Any;
use std::sync::Arc;

use galatea_backend::{
    AcceptedInputMemory, Backend, ExecutionPolicy, Instance, InstanceCreation, Model, ModelFiles,
    ModelHost, Placement,
};
use galatea_config::{ConfigDraft, ModelSpec, SupportedFeatures};
use galatea_infer::{MemoryUsage, Status};
use galatea_text::{RunLimits, TextDescription, TextModel, TextModelError, TextSettings, TextTask};

use crate::files::VersionFiles;
use crate::instance::TextInstance;
use crate::interface;
use crate::network::{Network, network_spec};
use crate::served::ServedText;

/// The backend that executes networks.
pub struct NetworkBackend {
    /// Its name in configurations.
    pub name: String,
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// The features that its configurations may use.
    pub support: SupportedFeatures,
}

/// The `text` backend.
pub struct TextBackend {
    network: NetworkBackend,
}

impl TextBackend {
    /// The parameter that names the backend for the network.
    pub const RUNTIME_PARAMETER: &str = "text_runtime";

    /// Creates the backend for models whose networks `network` executes.
    #[must_use]
    pub const fn new(network: NetworkBackend) -> Self {
        Self { network }
    }

    fn load_network(
        &self,
        spec: &ModelSpec,
        description: &TextDescription,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<(Network, Box<dyn Model>), Status> {
        let NetworkBackend { name, backend, support } = &self.network;
        let network_spec = network_spec(spec, description, &**backend, name, files, support)?;
        let network = Network::new(&network_spec, &description.task)?;
        let model = backend.load(Arc::new(network_spec), files, host)?;
        Ok((network, model))
    }
}

impl Backend for TextBackend {
    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn gpus_refused(&self) -> Option<String> {
        self.network.backend.gpus_refused()
    }

    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
    ) -> Result<(), Status> {
        let parameters = &draft.message().parameters;
        let parameters =
            parameters.iter().map(|(name, value)| (name.clone(), value.string_value.clone()));
        let settings = TextSettings::parse(&parameters.collect()).map_err(refused)?;
        let description =
            TextDescription::read(&VersionFiles(files), &settings).map_err(refused)?;
        interface::complete(draft, &description);
        Ok(())
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        let settings = TextSettings::parse(&spec.parameters).map_err(refused)?;
        let description =
            TextDescription::read(&VersionFiles(files), &settings).map_err(refused)?;
        let text = TextModel::read(&VersionFiles(files), description).map_err(refused)?;
        let (network, model) = self.load_network(&spec, &text.description, files, host.clone())?;
        let served = ServedText {
            width: row_width(&text.description.task, &network).map_err(refused)?,
            model_name: Arc::from(&*spec.name),
            output_name: Arc::from(interface::output_name(&text.description.task)),
            limits: RunLimits {
                rows_max: usize::try_from(spec.max_batch_size).unwrap_or(usize::MAX),
                tokens_max: settings.run_tokens,
            },
            text,
            network,
            host,
        };
        interface::check(&spec, &served.text.description.task, served.width)?;
        Ok(Box::new(TextServedModel { served: Arc::new(served), network: model }))
    }
}

/// The number of values of the output for each row.
fn row_width(task: &TextTask, network: &Network) -> Result<usize, TextModelError> {
    match task {
        TextTask::Embedding(task) if network.is_per_token => {
            let modes = task.pooling.as_ref().map_or(1, |pooling| pooling.modes.len());
            task.width(network.width.saturating_mul(modes))
        }
        TextTask::Embedding(task) => task.check_embedding(&network.output, network.width),
        TextTask::Scores { .. } => Ok(network.width),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a mapping of errors takes them")]
fn refused(error: TextModelError) -> Status {
    Status::invalid_argument(error.to_string())
}

/// A loaded model.
struct TextServedModel {
    served: Arc<ServedText>,
    network: Box<dyn Model>,
}

impl Model for TextServedModel {
    fn create_instance(&self, at: &Placement) -> Result<Box<dyn Instance>, Status> {
        let network = self.network.create_instance(at)?;
        Ok(Box::new(TextInstance::new(self.served.clone(), network)))
    }

    fn instance_creation(&self) -> InstanceCreation {
        self.network.instance_creation()
    }

    fn check_ready(&self) -> Result<(), Status> {
        self.network.check_ready()
    }

    fn readiness_may_block(&self) -> bool {
        self.network.readiness_may_block()
    }

    fn wait_until_unused(&self) {
        self.network.wait_until_unused();
    }

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.network.memory_usage()
    }

    fn input_memory(&self) -> AcceptedInputMemory {
        AcceptedInputMemory::Host
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.network.underlying()
    }
}
