//! Whether a configuration and its model agree, and which tensor is which.

use std::sync::Arc;

use galatea_config::{InputSpec, ModelSpec, OutputSpec};
use galatea_infer::Status;
use galatea_tensor::{DataType, Shape};

use crate::api::{Session, TensorInfo, ValueType};

/// What an instance knows of its model's tensors.
#[derive(Debug)]
pub(crate) struct Signature {
    pub(crate) model_name: Arc<str>,
    /// Whether the first dimension is a batch.
    pub(crate) batched: bool,
    /// In the order of the configuration, as requests bring them.
    pub(crate) inputs: Vec<InputPlan>,
    /// In the order of their names: so Triton answers.
    pub(crate) outputs: Vec<OutputPlan>,
}

/// An input of the configuration and the model's input behind it.
#[derive(Debug)]
pub(crate) struct InputPlan {
    pub(crate) name: String,
    pub(crate) datatype: DataType,
    /// The session's number for it.
    pub(crate) index: usize,
    /// Whether the model takes a scalar, where requests bring a shape of ones.
    pub(crate) scalar: bool,
}

/// An output of the configuration and the model's output behind it.
#[derive(Debug)]
pub(crate) struct OutputPlan {
    pub(crate) name: Arc<str>,
    pub(crate) datatype: DataType,
    /// The session's number for it.
    pub(crate) index: usize,
    /// The shape of ones in the place of the model's scalar.
    pub(crate) scalar_shape: Option<Shape>,
}

impl Signature {
    /// Compares a configuration with a loaded model.
    pub(crate) fn new(spec: &ModelSpec, session: &Session) -> Result<Self, Status> {
        let check = Check { spec, session };
        check.input_count()?;
        let inputs =
            spec.inputs.iter().map(|input| check.input(input)).collect::<Result<_, _>>()?;
        let outputs = spec.outputs.iter().map(|output| check.output(output));
        let mut outputs: Vec<OutputPlan> = outputs.collect::<Result<_, _>>()?;
        outputs.sort_by(|a, b| a.name.cmp(&b.name));
        let model_name = Arc::from(spec.name.as_str());
        Ok(Self { model_name, batched: spec.max_batch_size > 0, inputs, outputs })
    }
}

struct Check<'a> {
    spec: &'a ModelSpec,
    session: &'a Session,
}

/// Which sizes may stand for a dimension of any size.
#[derive(Copy, Clone, PartialEq, Eq)]
enum AnySize {
    /// The configuration may be narrower than the model.
    AcceptsAll,
    /// The configuration must say -1 too: it is a promise to clients.
    StaysAny,
}

impl Check<'_> {
    fn refuse<T>(&self, reason: &str) -> Result<T, Status> {
        Err(Status::invalid_argument(format!(
            "unable to load model '{}', {reason}",
            self.spec.name
        )))
    }

    /// Every input without a default must be in the configuration, so that
    /// requests bring it.
    fn input_count(&self) -> Result<(), Status> {
        let expected = self.spec.inputs.iter().filter(|input| !input.optional).count();
        let provided = self.session.required_inputs();
        if expected == provided {
            return Ok(());
        }
        let required = self.session.inputs().iter().take(provided);
        self.refuse(&format!(
            "configuration expects {expected} inputs, model provides {provided}: {}",
            names(required)
        ))
    }

    fn input(&self, input: &InputSpec) -> Result<InputPlan, Status> {
        let tensors = self.session.inputs();
        let (index, tensor) = find(tensors, &input.name).ok_or_else(|| {
            let InputSpec { name, .. } = input;
            let allowed = names(tensors.iter());
            Status::invalid_argument(format!(
                "unexpected inference input '{name}', allowed inputs are: {allowed}"
            ))
        })?;
        if input.optional && self.spec.max_batch_size > 0 {
            return self.refuse(&format!(
                "optional input '{}' is not supported for models that support batching",
                input.name
            ));
        }
        if input.allow_ragged_batch {
            return self.refuse(&format!(
                "allow_ragged_batch of input '{}' is not supported by this backend",
                input.name
            ));
        }
        self.datatype("input", &input.name, input.datatype, tensor)?;
        let dims = input.reshape.as_ref().unwrap_or(&input.dims);
        self.dims(&input.name, dims, tensor, AnySize::AcceptsAll)?;
        let scalar = tensor.dims.is_empty();
        Ok(InputPlan { name: input.name.clone(), datatype: input.datatype, index, scalar })
    }

    fn output(&self, output: &OutputSpec) -> Result<OutputPlan, Status> {
        let tensors = self.session.outputs();
        let (index, tensor) = find(tensors, &output.name).ok_or_else(|| {
            let OutputSpec { name, .. } = output;
            let allowed = names(tensors.iter());
            Status::invalid_argument(format!(
                "unexpected inference output '{name}', allowed outputs are: {allowed}"
            ))
        })?;
        self.datatype("output", &output.name, output.datatype, tensor)?;
        let dims = output.reshape.as_ref().unwrap_or(&output.dims);
        self.dims(&output.name, dims, tensor, AnySize::StaysAny)?;
        let scalar_shape = tensor.dims.is_empty().then(|| Shape::new(dims)).transpose();
        let scalar_shape =
            scalar_shape.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let name = Arc::from(output.name.as_str());
        Ok(OutputPlan { name, datatype: output.datatype, index, scalar_shape })
    }

    fn datatype(
        &self,
        direction: &str,
        name: &str,
        datatype: DataType,
        tensor: &TensorInfo,
    ) -> Result<(), Status> {
        let provided = match tensor.value_type {
            ValueType::Tensor(element) if element.datatype() == Some(datatype) => return Ok(()),
            ValueType::Tensor(element) => element.config_name(),
            ValueType::Other(kind) => return Err(not_a_tensor(name, kind)),
        };
        let expected = datatype.config_name();
        self.refuse(&format!(
            "configuration expects datatype {expected} for {direction} '{name}', model provides \
             {provided}"
        ))
    }

    fn dims(
        &self,
        name: &str,
        dims: &[i64],
        tensor: &TensorInfo,
        any_size: AnySize,
    ) -> Result<(), Status> {
        let place = format!("model '{}', tensor '{name}'", self.spec.name);
        let batched = self.spec.max_batch_size > 0;
        let model = Dims(&tensor.dims);
        if batched && tensor.dims.first() != Some(&-1) {
            return Err(Status::invalid_argument(format!(
                "{place}: for the model to support batching the shape should have at least 1 \
                 dimension and the first dimension must be -1; but shape expected by the model is \
                 {model}"
            )));
        }
        if tensor.dims.is_empty() {
            return self.scalar(name, dims);
        }
        let full: Vec<i64> =
            batched.then_some(-1).into_iter().chain(dims.iter().copied()).collect();
        let fits = |(model, ours): (&i64, &i64)| {
            model == ours || (*model == -1 && any_size == AnySize::AcceptsAll)
        };
        if full.len() == tensor.dims.len() && tensor.dims.iter().zip(&full).all(fits) {
            return Ok(());
        }
        let reason = if batched {
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor \
             shape, making complete shape"
        } else {
            "shape"
        };
        Err(Status::invalid_argument(format!(
            "{place}: the model expects {} dimensions (shape {model}) but the model configuration \
             specifies {} dimensions ({reason} {})",
            tensor.dims.len(),
            full.len(),
            Dims(&full)
        )))
    }

    fn scalar(&self, name: &str, dims: &[i64]) -> Result<(), Status> {
        if dims.iter().all(|&dim| dim == 1) {
            return Ok(());
        }
        self.refuse(&format!(
            "scalar tensor '{name}', should only provide 1 in the model configuration when the \
             model doesn't support batching. Model configuration provided: {}.",
            Dims(dims)
        ))
    }
}

/// The refusal of something that is no tensor.
pub(crate) fn not_a_tensor(name: &str, kind: &str) -> Status {
    Status::unsupported(format!(
        "Unsupported ONNX Type '{kind}' for I/O '{name}', expected 'ONNX_TYPE_TENSOR'."
    ))
}

fn find<'a>(tensors: &'a [TensorInfo], name: &str) -> Option<(usize, &'a TensorInfo)> {
    tensors.iter().enumerate().find(|(_, tensor)| tensor.name == name)
}

fn names<'a>(tensors: impl Iterator<Item = &'a TensorInfo>) -> String {
    let mut names: Vec<&str> = tensors.map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    names.join(", ")
}

/// Prints dimensions as Triton does: `[-1,3]`.
struct Dims<'a>(&'a [i64]);

impl std::fmt::Display for Dims<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dims: Vec<String> = self.0.iter().map(i64::to_string).collect();
        write!(f, "[{}]", dims.join(","))
    }
}
