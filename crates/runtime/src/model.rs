//! A loaded model version.

use std::any::Any;
use std::sync::Arc;

use galatea_backend::{
    AcceptedInputMemory, Device, ExecutionPredictability, Instance, InstanceCreation, Model,
    ModelHost, Placement,
};
use galatea_config::{InstanceGroup, InstanceKind, ModelSpec};
use galatea_infer::Status;
use galatea_stdx::Lock;

use crate::instance::{InstanceParts, RuntimeInstance};
use crate::machine::MachineResources;
use crate::signature::ModelSignature;
use crate::source::{CpuOrGpu, OpenedModel, SessionSource};

/// A model that a library executes. It is loaded once for the CPU and once for each GPU instance.
pub struct RuntimeModel<S: SessionSource> {
    source: S,
    machine: MachineResources,
    spec: Arc<ModelSpec>,
    host: Arc<dyn ModelHost>,
    sessions: Lock<Sessions<S>>,
}

/// The sessions opened so far.
struct Sessions<S: SessionSource> {
    /// The model that all CPU instances share. Each instance has its own memory for gathering
    /// inputs.
    cpu: Option<CheckedSession<S::Shared>>,
    /// The session that was opened to compare the model with its configuration. The first instance
    /// on the session's GPU uses it.
    first_on_gpu: Option<(u32, CheckedSession<S::Session>)>,
}

/// A session whose model has been compared with its configuration.
#[derive(Clone)]
struct CheckedSession<S> {
    session: S,
    signature: Arc<ModelSignature>,
    guarantee: ExecutionPredictability,
}

impl<S: SessionSource> RuntimeModel<S> {
    /// Loads the model for the processor of its first instance group, and compares the model with
    /// its configuration.
    ///
    /// # Errors
    ///
    /// The library's error, or `InvalidArgument` for a configuration that the model contradicts.
    pub fn load(
        source: S,
        machine: MachineResources,
        spec: Arc<ModelSpec>,
        host: Arc<dyn ModelHost>,
    ) -> Result<Self, Status> {
        let first = CpuOrGpu::of_first_group(&spec);
        let sessions = Lock::new(Sessions { cpu: None, first_on_gpu: None });
        let model = Self { source, machine, spec, host, sessions };
        match first {
            Some(CpuOrGpu::Cpu) => {
                model.shared_session()?;
            }
            Some(CpuOrGpu::Gpu(gpu)) => {
                let first = model.open_on_gpu(gpu)?;
                model.sessions.lock("keep the first session").first_on_gpu = Some((gpu, first));
            }
            None => {}
        }
        Ok(model)
    }

    /// The model for CPU instances. It is loaded when the first one needs it.
    fn shared_session(&self) -> Result<CheckedSession<S::Shared>, Status> {
        let mut sessions = self.sessions.lock("find or create a session");
        if let Some(loaded) = &sessions.cpu {
            return Ok(loaded.clone());
        }
        let checked = self.check(self.source.open_shared()?)?;
        Ok(sessions.cpu.insert(checked).clone())
    }

    /// A session for one GPU instance.
    fn device_session(&self, gpu: u32) -> Result<CheckedSession<S::Session>, Status> {
        let mut sessions = self.sessions.lock("take the first session");
        let first = sessions.first_on_gpu.take_if(|(number, _)| *number == gpu);
        drop(sessions);
        first.map_or_else(|| self.open_on_gpu(gpu), |(_, session)| Ok(session))
    }

    fn open_on_gpu(&self, gpu: u32) -> Result<CheckedSession<S::Session>, Status> {
        self.check(self.source.open_on_gpu(gpu)?)
    }

    fn check<T>(&self, opened: OpenedModel<T>) -> Result<CheckedSession<T>, Status> {
        let OpenedModel { session, interface, guarantee } = opened;
        let signature = Arc::new(ModelSignature::new(&self.spec, &interface)?);
        Ok(CheckedSession { session, signature, guarantee })
    }
}

impl<S: SessionSource> Model for RuntimeModel<S> {
    fn create_instance(&self, at: &Placement) -> Result<Box<dyn Instance>, Status> {
        let CheckedSession { session, signature, guarantee } = match at.device {
            Device::Cpu | Device::Model => {
                let CheckedSession { session, signature, guarantee } = self.shared_session()?;
                let session = self.source.session(session)?;
                CheckedSession { session, signature, guarantee }
            }
            Device::Gpu(gpu) => self.device_session(gpu)?,
        };
        Ok(Box::new(RuntimeInstance::new(
            session,
            InstanceParts {
                signature,
                guarantee,
                machine: self.machine.clone(),
                pins_inputs: self.spec.optimization.input_pinned_memory,
                host_policy: at.host_policy(&self.spec),
                host: self.host.clone(),
            },
        )))
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.source.underlying()
    }

    /// GPU instances accept inputs in GPU memory. If the model has both kinds, CPU instances accept
    /// them too.
    fn input_memory(&self) -> AcceptedInputMemory {
        let on_gpu = |group: &InstanceGroup| group.kind == InstanceKind::Gpu;
        if self.spec.instance_groups.iter().any(on_gpu) {
            AcceptedInputMemory::Device
        } else {
            AcceptedInputMemory::Host
        }
    }

    fn instance_creation(&self) -> InstanceCreation {
        InstanceCreation::Parallel
    }
}
