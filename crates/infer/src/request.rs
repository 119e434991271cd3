//! The inference request.

use std::any::Any;
use std::sync::Arc;

use galatea_tensor::DataType;

use crate::{
    Backpressure, CancelToken, ClassificationInfoOnce, Deadline, InputTensor, Parameter,
    RequestBytesGuard, StepExecutionObserver, Trace,
};

/// One inference request, as a door decoded it.
///
/// Doors fill it in. Admission checks it, sorts its inputs into the order of the model's
/// configuration and gives them the shapes that the backend sees. The request does not change after
/// admission.
#[derive(Clone, Debug, Default)]
pub struct InferenceRequest {
    /// The client's identifier of this request, echoed in the response; may be
    /// empty.
    pub id: String,
    /// The model's name.
    pub model_name: String,
    /// The model's version; `None` selects the newest ready version.
    pub model_version: Option<i64>,
    /// The server's handle for that model version, if the door has looked it up. The server takes
    /// it; without a handle, the server looks up the model by name and version.
    pub found_model: Option<Arc<dyn Any + Send + Sync>>,
    /// The input tensors.
    pub inputs: Vec<InputTensor>,
    /// The client's descriptions of inputs with an invalid type or shape. Admission refuses such
    /// inputs; until then, their types and shapes in `inputs` are placeholders.
    pub malformed_inputs: Vec<MalformedInput>,
    /// The names of the requested outputs; if empty, all outputs are requested.
    pub outputs: Vec<String>,
    /// Parameters for the backend, which the server does not interpret.
    pub parameters: Vec<Parameter>,
    /// The priority level: 1 is the highest, 0 selects the model's default.
    pub priority: u64,
    /// The time that the request may wait in the queue, in microseconds; 0 selects
    /// the model's default.
    pub timeout_microseconds: u64,
    /// The deadline of the response. Doors set it from the client's headers; admission adds the
    /// timeout and the model's objective.
    pub deadline: Deadline,
    /// The sequence that the request belongs to.
    pub correlation_id: CorrelationId,
    /// The flags that state whether the request starts or ends that sequence.
    pub sequence_flags: SequenceFlags,
    /// Set when the client cancels the request.
    pub cancel: CancelToken,
    /// The points where the responses may pile up.
    pub backpressure: Backpressure,
    /// The run that made this request as a step of an ensemble; admission takes it.
    pub execution_observer: Option<Arc<dyn StepExecutionObserver>>,
    /// Records the request's trace points; admission takes it.
    pub trace: Option<Arc<Trace>>,
    /// Set by the model version that admits the request, if the door turns
    /// outputs into classes.
    pub classes: Option<ClassificationInfoOnce>,
    /// The caller's query for output memory, used by backends that recognize its type, such as the
    /// C API's query functions. If `None`, outputs are placed in CPU memory.
    pub output_query: Option<Arc<dyn Any + Send + Sync>>,
    /// The outputs that may stay in GPU memory. Other outputs are returned in host memory.
    pub device_outputs: DeviceOutputs,
    /// The request's share of the bytes that its model's requests hold; admission sets it.
    pub held: Option<RequestBytesGuard>,
}

impl InferenceRequest {
    /// The prefix that names this request in messages and logs.
    #[must_use]
    pub fn log_prefix(&self) -> String {
        if self.id.is_empty() {
            String::from("[request id: <id_unknown>] ")
        } else {
            format!("[request id: {}] ", self.id)
        }
    }

    /// The input with this name.
    #[must_use]
    pub fn input(&self, name: &str) -> Option<&InputTensor> {
        self.inputs.iter().find(|input| input.name == name)
    }

    /// Returns true if the output with this name is requested.
    #[must_use]
    pub fn wants_output(&self, name: &str) -> bool {
        self.outputs.is_empty() || self.outputs.iter().any(|output| output == name)
    }
}

/// An input whose type or shape is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedInput {
    /// The input's name.
    pub name: String,
    /// The data type; `None` if the client specified an unknown type.
    pub datatype: Option<DataType>,
    /// The dimensions.
    pub dims: Vec<i64>,
}

/// The outputs that the receiver accepts in GPU memory (`Buffer::foreign`), if the backend produces
/// them there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceOutputs {
    /// No outputs.
    #[default]
    None,
    /// All outputs.
    All,
    /// The outputs with these names.
    Named(Arc<[String]>),
}

impl DeviceOutputs {
    /// Returns true if the output with this name may stay in GPU memory.
    #[must_use]
    pub fn include(&self, name: &str) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Named(names) => names.iter().any(|one| one == name),
        }
    }
}

/// The correlation ID that identifies a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum CorrelationId {
    /// The request belongs to no sequence.
    #[default]
    None,
    /// A number other than 0.
    Number(u64),
    /// A non-empty string.
    Text(String),
}

/// The flags of a request that starts or ends its sequence.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceFlags {
    /// True for the first request of the sequence.
    pub start: bool,
    /// True for the last request of the sequence.
    pub end: bool,
}
