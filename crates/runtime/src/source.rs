//! A model's sessions, which its library opens.

use std::any::Any;
use std::sync::Arc;

use galatea_backend::ExecutionPredictability;
use galatea_config::{InstanceKind, ModelSpec};
use galatea_infer::Status;

use crate::interface::SessionInterface;
use crate::session::Session;

/// Opens the sessions of one model version.
///
/// CPU instances share one loaded model, so that its weights are in memory only once. As in Triton,
/// each GPU instance loads the model separately.
pub trait SessionSource: Send + Sync + 'static {
    /// The model that CPU instances share.
    type Shared: Clone + Send;

    /// The session of one instance.
    type Session: Session + 'static;

    /// Loads the model for the CPU. Called once, for the first CPU instance.
    ///
    /// # Errors
    ///
    /// The library's error, with the file name.
    fn open_shared(&self) -> Result<OpenedModel<Self::Shared>, Status>;

    /// Creates a session for another CPU instance.
    ///
    /// # Errors
    ///
    /// The library's error.
    fn session(&self, shared: Self::Shared) -> Result<Self::Session, Status>;

    /// Loads the model for one GPU instance.
    ///
    /// # Errors
    ///
    /// The library's error, with the file name. By default, the library doesn't support GPUs; its
    /// backend reports this in advance (`Backend::gpus_refused`).
    fn open_on_gpu(&self, gpu: u32) -> Result<OpenedModel<Self::Session>, Status> {
        Err(Status::unsupported(format!("there are no instances on GPUs, such as GPU {gpu}")))
    }

    /// The object that identifies the model to the backend (`Model::underlying`).
    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

/// A loaded model.
pub struct OpenedModel<S> {
    /// A session, or the model that sessions share.
    pub session: S,
    /// The model's inputs and outputs.
    pub interface: SessionInterface,
    /// The guarantee for executing the model.
    pub guarantee: ExecutionPredictability,
}

/// The processor that a model is loaded for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CpuOrGpu {
    /// The CPU.
    Cpu,
    /// The GPU with this number.
    Gpu(u32),
}

impl CpuOrGpu {
    /// The number of instances that share a loaded model on this processor.
    #[must_use]
    pub fn sharing_instance_count(self, spec: &ModelSpec) -> u32 {
        if self != Self::Cpu {
            return 1;
        }
        // Passive instances don't execute anything.
        let groups = spec.instance_groups.iter().filter(|group| !group.passive);
        let counts = groups.map(|group| match group.kind {
            InstanceKind::Cpu | InstanceKind::Model => group.count,
            InstanceKind::Gpu => 0,
        });
        counts.fold(0, u32::saturating_add)
    }

    /// The processor of a model's first instance group.
    pub(crate) fn of_first_group(spec: &ModelSpec) -> Option<Self> {
        let group = spec.instance_groups.first()?;
        match group.kind {
            InstanceKind::Cpu | InstanceKind::Model => Some(Self::Cpu),
            InstanceKind::Gpu => {
                group.gpus.first().and_then(|&gpu| u32::try_from(gpu).ok()).map(Self::Gpu)
            }
        }
    }
}
