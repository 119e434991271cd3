//! A model's sessions.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use galatea_backend::{ExecutionPredictability, LogLevel, ModelHost};
use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_runtime::configured::{input_dims, is_batch_output};
use galatea_runtime::{CpuOrGpu, OpenedModel, SessionInterface, SessionSource, TensorInfo};
use galatea_tensor::DataType;

use crate::api::{
    BatchRows, CompiledModel, Core, InferRequest, Library, Model, OvDimension, Port, TypeChange,
};
use crate::network::read_network;
use crate::parameters::{CPU, ModelParameters};
use crate::predictable::is_predictable;
use crate::session::OpenVinoSession;
use crate::signature::Comparison;

/// Opens the sessions of one model version.
pub(crate) struct OpenVinoSource {
    pub(crate) library: Arc<Library>,
    pub(crate) path: PathBuf,
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) parameters: ModelParameters,
    pub(crate) host: Arc<dyn ModelHost>,
}

/// A compiled model, and the tensor descriptions that its infer requests need.
pub(crate) struct SharedModel {
    model: CompiledModel,
    input_count: usize,
    outputs: Vec<Port>,
    rows: BatchRows,
}

/// A model that is ready to be compiled.
struct Prepared {
    model: Model,
    /// The interface with the configuration's dimensions.
    interface: SessionInterface,
    rows: BatchRows,
}

impl SessionSource for OpenVinoSource {
    type Shared = Arc<SharedModel>;
    type Session = OpenVinoSession;

    fn open_shared(&self) -> Result<OpenedModel<Self::Shared>, Status> {
        let core = self.core()?;
        let Prepared { model, interface, rows } = self.prepare(&core)?;
        let session = self.compile(&core, &model, rows)?;
        Ok(OpenedModel { session, interface, guarantee: self.guarantee() })
    }

    fn session(&self, shared: Self::Shared) -> Result<OpenVinoSession, Status> {
        let SharedModel { model, input_count, outputs, rows } = &*shared;
        InferRequest::new(model, *input_count, outputs, *rows).map(OpenVinoSession)
    }
}

impl OpenVinoSource {
    fn is_batched(&self) -> bool {
        self.spec.max_batch_size > 0
    }

    /// Compiles a model for the device.
    pub(crate) fn compile(
        &self,
        core: &Core,
        model: &Model,
        rows: BatchRows,
    ) -> Result<Arc<SharedModel>, Status> {
        let ModelParameters { target_device, skips_dynamic_batches, .. } = &self.parameters;
        let may_batch = self.is_batched() && !skips_dynamic_batches;
        let compiled = core.compile_model(model, target_device, may_batch)?;
        self.log_precision(&compiled);
        self.log_properties(&compiled);
        let (inputs, outputs) = (model.inputs()?, model.outputs()?);
        self.log_narrowing(inputs.iter().chain(&outputs));
        let input_count = inputs.len();
        Ok(Arc::new(SharedModel { model: compiled, input_count, outputs, rows }))
    }

    /// The object that compiles the model, with the model's parameters.
    pub(crate) fn core(&self) -> Result<Core, Status> {
        let core = Core::new(self.library.clone())?;
        let ModelParameters { target_device, cpu_extension, .. } = &self.parameters;
        if !cpu_extension.is_empty() {
            core.add_extension(cpu_extension)?;
            let line = format!("CPU extensions are loaded: '{cpu_extension}'");
            self.host.log(LogLevel::Info, &line);
        }
        core.load_device(target_device)?;
        let instances = CpuOrGpu::Cpu.sharing_instance_count(&self.spec);
        for (property, value) in self.parameters.properties_for(instances) {
            core.set_property(target_device, property, &value)?;
        }
        Ok(core)
    }

    /// Reads the model and applies the configuration's types and dimensions. The batch dimension
    /// becomes variable where the model allows it; Triton fixes it at the maximum batch size, and
    /// refuses or pads smaller batches.
    fn prepare(&self, core: &Core) -> Result<Prepared, Status> {
        let comparison = Comparison(&self.spec);
        let mut model = core.read_model(&self.path)?;
        let mut own = model.interface()?;
        if !self.parameters.reshapes_inputs {
            comparison.inputs(&mut own)?;
        }
        self.convert(&mut model)?;
        let variable = self.reshape(&mut model, -1).and_then(|()| model.interface());
        let failure = match variable {
            Ok(interface) if !self.is_batched() || self.has_variable_batches(&interface) => {
                let interface = self.adopted(interface)?;
                self.log_padding();
                return Ok(Prepared { model, interface, rows: BatchRows::Variable });
            }
            Ok(_) => None,
            Err(failure) => Some(failure),
        };
        match self.with_fixed_batch(core)? {
            Some(prepared) => Ok(prepared),
            None => Err(failure.unwrap_or_else(|| self.contradiction(&model))),
        }
    }

    /// The interface with the configuration's dimensions.
    fn adopted(&self, mut interface: SessionInterface) -> Result<SessionInterface, Status> {
        let comparison = Comparison(&self.spec);
        comparison.inputs(&mut interface)?;
        comparison.outputs(&mut interface)?;
        Ok(interface)
    }

    /// The error for outputs whose first dimension is not the batch dimension.
    fn contradiction(&self, model: &Model) -> Status {
        let adopted = model.interface().and_then(|interface| self.adopted(interface));
        adopted.err().unwrap_or_else(|| {
            Status::invalid_argument(format!(
                "model '{}' does not support batches: the first dimension of its outputs is fixed",
                self.spec.name
            ))
        })
    }

    /// Returns true if the first dimension of every requested output is variable.
    fn has_variable_batches(&self, interface: &SessionInterface) -> bool {
        let mut shared = self.outputs_of_requests(interface);
        shared.all(|tensor| tensor.dims.first() == Some(&-1))
    }

    fn outputs_of_requests<'a>(
        &'a self,
        interface: &'a SessionInterface,
    ) -> impl Iterator<Item = &'a TensorInfo> {
        interface.outputs.iter().filter(move |tensor| {
            self.spec.output(&tensor.name).is_some() && !is_batch_output(&self.spec, &tensor.name)
        })
    }

    /// Returns true if rows can be appended to every input and removed from every output, which
    /// requires that no tensor has its own number of rows.
    fn may_pad(&self) -> bool {
        let spec = &self.spec;
        spec.batch_inputs.is_empty()
            && spec.batch_outputs.is_empty()
            && !spec.inputs.iter().any(|input| input.allow_ragged_batch)
    }

    /// Reads the model with its own batch dimension, if that is fixed at the maximum batch size in
    /// all tensors. Smaller batches are then padded, because there is no alternative.
    fn with_fixed_batch(&self, core: &Core) -> Result<Option<Prepared>, Status> {
        if !self.may_pad() {
            return Ok(None);
        }
        let mut model = core.read_model(&self.path)?;
        self.convert(&mut model)?;
        let rows = i64::from(self.spec.max_batch_size);
        let is_fixed = |tensor: &TensorInfo| tensor.dims.first() == Some(&rows);
        let has_rows = model.interface()?.inputs.iter().all(is_fixed);
        if !has_rows || self.reshape(&mut model, rows).is_err() {
            return Ok(None);
        }
        let mut interface = model.interface()?;
        if !self.outputs_of_requests(&interface).all(is_fixed) {
            return Ok(None);
        }
        for tensor in interface.inputs.iter_mut().chain(&mut interface.outputs) {
            if let Some(first) = tensor.dims.first_mut() {
                *first = -1;
            }
        }
        let line = format!(
            "model '{}': smaller batches are padded, because the model's batch dimension is fixed \
             at {rows}",
            self.spec.name
        );
        self.host.log(LogLevel::Warning, &line);
        let rows = BatchRows::Fixed(usize::try_from(rows).unwrap_or(1));
        Ok(Some(Prepared { model, interface: self.adopted(interface)?, rows }))
    }

    fn log_padding(&self) {
        if self.is_batched() && self.parameters.pads_batches {
            let line = format!(
                "model '{}': ENABLE_BATCH_PADDING changes nothing, because batches of any size are \
                 executed as they are",
                self.spec.name
            );
            self.host.log(LogLevel::Warning, &line);
        }
    }

    /// Logs the properties that OpenVINO derived from the parameters.
    fn log_properties(&self, compiled: &CompiledModel) {
        let keys = [
            c"NUM_STREAMS",
            c"INFERENCE_NUM_THREADS",
            c"INFERENCE_PRECISION_HINT",
            c"PERFORMANCE_HINT",
        ];
        let known = keys.iter().filter_map(|key| {
            let value = compiled.property(key)?;
            Some(format!("{}={value}", key.to_string_lossy()))
        });
        let known: Vec<String> = known.collect();
        if !known.is_empty() {
            let line = format!("model '{}' is compiled with {}", self.spec.name, known.join(", "));
            self.host.log(LogLevel::Info, &line);
        }
    }

    /// Logs that results are less precise than 32-bit results.
    fn log_precision(&self, compiled: &CompiledModel) {
        let precision = compiled.property(c"INFERENCE_PRECISION_HINT");
        if let Some(precision) = precision.filter(|precision| precision != "f32") {
            let line = format!(
                "model '{}': OpenVINO computes with {precision}; the parameter \
                 INFERENCE_PRECISION_HINT chooses another precision",
                self.spec.name
            );
            self.host.log(LogLevel::Info, &line);
        }
    }

    /// Logs that the CPU plug-in computes with fewer bits than the tensors have. It converts inputs,
    /// constants and results, so nothing shows this in the model's interface.
    fn log_narrowing<'a>(&self, ports: impl Iterator<Item = &'a Port>) {
        if self.parameters.target_device != CPU {
            return;
        }
        let types: BTreeSet<&str> =
            ports.filter_map(Port::datatype).map(DataType::protocol_name).collect();
        let among = |wide: &[&str]| {
            let found: Vec<&str> = types.iter().copied().filter(|one| wide.contains(one)).collect();
            Some(found.join(", ")).filter(|found| !found.is_empty())
        };
        let name = &self.spec.name;
        if let Some(found) = among(&["INT64", "UINT32", "UINT64"]) {
            let line = format!(
                "model '{name}' has tensors of {found}: OpenVINO computes with signed 32-bit \
                 integers, so larger numbers come out wrong"
            );
            self.host.log(LogLevel::Warning, &line);
        }
        if among(&["FP64"]).is_some() {
            let line = format!(
                "model '{name}' has tensors of FP64: OpenVINO computes with 32-bit numbers, so \
                 results have fewer digits"
            );
            self.host.log(LogLevel::Warning, &line);
        }
    }

    /// The guarantee for executions. Operators from a library may do anything, and devices other
    /// than the CPU may depend on the calling thread. Executions of several instances may wait for
    /// each other, because the library assigns one of the streams to each thread.
    fn guarantee(&self) -> ExecutionPredictability {
        let ModelParameters { target_device, cpu_extension, .. } = &self.parameters;
        if !cpu_extension.is_empty() {
            return ExecutionPredictability::Unspecified;
        }
        let is_predictable = || read_network(&self.path).is_some_and(|text| is_predictable(&text));
        let instances = CpuOrGpu::Cpu.sharing_instance_count(&self.spec);
        if target_device == CPU && instances <= 1 && is_predictable() {
            ExecutionPredictability::Predictable
        } else {
            ExecutionPredictability::NonBlocking
        }
    }

    /// Applies the configuration's types to inputs and outputs, as in Triton.
    fn convert(&self, model: &mut Model) -> Result<(), Status> {
        let SessionInterface { inputs, outputs, .. } = model.interface()?;
        let spec = &self.spec;
        let of_input = |name: &str| spec.input(name).map(|input| input.datatype);
        let of_output = |name: &str| {
            let output = spec.outputs.iter().find(|output| output.name == name);
            output.map(|output| output.datatype)
        };
        model.convert(&changes(&inputs, of_input), &changes(&outputs, of_output))
    }

    /// Applies the configuration's dimensions to the inputs, if it requests that. If the model
    /// executes batches, also applies this number of rows; -1 means any number.
    fn reshape(&self, model: &mut Model, rows: i64) -> Result<(), Status> {
        let is_batched = self.is_batched();
        let mut shapes = Vec::new();
        for (index, port) in model.inputs()?.into_iter().enumerate() {
            let own = port.bounds.unwrap_or_default();
            let mut bounds = own.clone();
            if self.parameters.reshapes_inputs
                && let Some(input) = self.spec.input(&port.name)
            {
                let configured = input_dims(input);
                if configured.iter().any(|&dim| dim == 0 || dim < -1) {
                    return Err(Status::internal(
                        "openvino backend does not support dimensions values other than `-1` or \
                         positive integers",
                    ));
                }
                bounds.resize(usize::from(is_batched), OvDimension::of(rows));
                bounds.extend(configured.iter().map(|&dim| OvDimension::of(dim)));
            }
            if let Some(first) = bounds.first_mut().filter(|_| is_batched) {
                *first = OvDimension::of(rows);
            }
            if bounds != own {
                shapes.push((index, bounds));
            }
        }
        if shapes.is_empty() { Ok(()) } else { model.reshape(&shapes, "setting max batch size") }
    }
}

/// The tensors whose types differ from the configuration's.
fn changes<'a>(
    tensors: &'a [TensorInfo],
    configured: impl Fn(&str) -> Option<DataType>,
) -> Vec<TypeChange<'a>> {
    let change = |(index, tensor): (usize, &'a TensorInfo)| {
        let datatype = configured(&tensor.name)?;
        let differs = tensor.element.datatype() != Some(datatype);
        differs.then_some(TypeChange { index, name: &tensor.name, datatype })
    };
    tensors.iter().enumerate().filter_map(change).collect()
}
