//! The sessions of a model.

use std::path::PathBuf;
use std::sync::Arc;

use galatea_backend::{ExecutionGuarantee, Host, LogLevel};
use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_runtime::{Interface, Opened, SessionSource};
use galatea_tensor::DataType;

use crate::api::{CompiledModel, Core, InferRequest, Library, Model};
use crate::parameters::ModelParameters;
use crate::session::OpenVinoSession;

/// Opens the sessions of a version of a model.
pub(crate) struct OpenVinoSource {
    pub(crate) library: Arc<Library>,
    pub(crate) path: PathBuf,
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) parameters: ModelParameters,
    pub(crate) host: Arc<dyn Host>,
}

/// A compiled model with the tensors that its infer requests need to know.
pub(crate) struct SharedModel {
    model: CompiledModel,
    input_count: usize,
    outputs: Vec<(DataType, Vec<i64>)>,
}

impl SessionSource for OpenVinoSource {
    type Shared = Arc<SharedModel>;
    type Session = OpenVinoSession;

    fn open_shared(&self) -> Result<Opened<Self::Shared>, Status> {
        let core = Core::new(self.library.clone())?;
        let ModelParameters { target_device, cpu_extension, properties, .. } = &self.parameters;
        if !cpu_extension.is_empty() {
            core.add_extension(cpu_extension)?;
            let line = format!("CPU extensions are loaded: '{cpu_extension}'");
            self.host.log(LogLevel::Info, &line);
        }
        for (property, value) in properties {
            core.set_property(target_device, property, value)?;
        }
        let mut model = core.read_model(&self.path)?;
        self.reshape(&mut model)?;
        let interface = model.interface()?;
        let model = core.compile_model(&model, target_device)?;
        let outputs = interface
            .outputs
            .iter()
            .filter_map(|output| Some((output.element.datatype()?, output.dims.clone())));
        let outputs: Vec<(DataType, Vec<i64>)> = outputs.collect();
        if let Some(unknown) = interface.outputs.iter().find(|one| one.element.datatype().is_none())
        {
            let words = unknown.element.config_name()?;
            let text = format!("output '{}' has {words}", unknown.name);
            return Err(Status::unsupported(text));
        }
        let input_count = interface.inputs.len();
        let session = Arc::new(SharedModel { model, input_count, outputs });
        Ok(Opened { session, interface, guarantee: ExecutionGuarantee::NonBlocking })
    }

    fn session(&self, shared: Self::Shared) -> Result<OpenVinoSession, Status> {
        let SharedModel { model, input_count, outputs } = &*shared;
        InferRequest::new(model, *input_count, outputs).map(OpenVinoSession)
    }
}

impl OpenVinoSource {
    /// Gives the inputs the dimensions of the configuration, if it asks for that, and a variable
    /// batch dimension if the model is to execute batches. Triton fixes the batch dimension at the
    /// largest batch, and fails or pads smaller ones.
    fn reshape(&self, model: &mut Model) -> Result<(), Status> {
        let batched = self.spec.max_batch_size > 0 && !self.parameters.keeps_batch_dimension;
        let Interface { inputs, .. } = model.interface()?;
        let mut shapes = Vec::new();
        for tensor in &inputs {
            let mut dims = tensor.dims.clone();
            if self.parameters.reshapes_inputs
                && let Some(input) = self.spec.input(&tensor.name)
            {
                let configured = input.reshape.as_ref().unwrap_or(&input.dims);
                let own = usize::from(self.spec.max_batch_size > 0);
                dims.truncate(own);
                dims.extend(configured);
            }
            if let Some(first) = dims.first_mut().filter(|_| batched) {
                *first = -1;
            }
            if dims != tensor.dims {
                shapes.push((tensor.name.clone(), dims));
            }
        }
        if shapes.is_empty() { Ok(()) } else { model.reshape(&shapes) }
    }
}

/// The interface for completing a configuration: Triton makes all sizes of a tensor variable if one
/// of them is.
pub(crate) fn for_completion(mut interface: Interface) -> Interface {
    for tensor in interface.inputs.iter_mut().chain(&mut interface.outputs) {
        if tensor.dims.contains(&-1) {
            tensor.dims.fill(-1);
        }
    }
    interface
}
