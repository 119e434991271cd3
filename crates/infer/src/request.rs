//! What a client asks for.

use std::any::Any;
use std::sync::Arc;

use galatea_tensor::{Buffer, DataType, Shape};

use crate::{CancelToken, ClassesCell, ExecutionObserver, Throttle, Trace};

/// One inference request, as a door decoded it.
///
/// Doors fill it in; admission checks it, brings its inputs into the order of
/// the model's configuration and gives them the shapes that the backend sees;
/// after that nobody changes it.
#[derive(Clone, Debug, Default)]
pub struct InferenceRequest {
    /// The client's identifier for this request, echoed in the response;
    /// empty if it gave none.
    pub id: String,
    /// The model's name.
    pub model_name: String,
    /// The model's version; `None` asks for the newest that is ready.
    pub model_version: Option<i64>,
    /// The input tensors.
    pub inputs: Vec<InputTensor>,
    /// The names of the outputs wanted; empty asks for all of them.
    pub outputs: Vec<String>,
    /// Parameters without a meaning to the server, for the backend.
    pub parameters: Vec<Parameter>,
    /// 1 is the highest; 0 asks for the model's default.
    pub priority: u64,
    /// How long the request may wait in the queue, in microseconds; 0 asks
    /// for the model's default.
    pub timeout_microseconds: u64,
    /// The sequence that the request belongs to.
    pub correlation_id: CorrelationId,
    /// Where in that sequence the request stands.
    pub sequence_flags: SequenceFlags,
    /// Set when the client gives up.
    pub cancel: CancelToken,
    /// What the responses may have to wait for.
    pub throttle: Throttle,
    /// Whoever made this request as a part of another one; admission takes it.
    pub execution_observer: Option<Arc<dyn ExecutionObserver>>,
    /// Who is told where the request is; admission takes it.
    pub trace: Option<Arc<Trace>>,
    /// Filled by the model version that takes the request, if its door asks how
    /// outputs become classes.
    pub classes: Option<ClassesCell>,
    /// Says where outputs would go, to backends that know its kind: C asks functions of
    /// C. Without it they go into the CPU's memory.
    pub output_query: Option<Arc<dyn Any + Send + Sync>>,
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

    /// Whether the client wants the output with this name.
    #[must_use]
    pub fn wants_output(&self, name: &str) -> bool {
        self.outputs.is_empty() || self.outputs.iter().any(|wanted| wanted == name)
    }
}

/// One input tensor of a request.
#[derive(Clone, Debug)]
pub struct InputTensor {
    /// The name in the model's configuration.
    pub name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape, with the batch dimension if the model has one.
    pub shape: Shape,
    /// Its elements in row-major order, little-endian; `BYTES` elements each
    /// behind their length.
    pub data: Buffer,
}

/// A named value that travels with a request or a response.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: ParameterValue,
}

/// The value of a [`Parameter`].
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    /// A boolean.
    Bool(bool),
    /// A signed integer.
    Int64(i64),
    /// A floating-point number.
    Double(f64),
    /// A string.
    String(String),
}

/// The identity of a sequence, as the client names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum CorrelationId {
    /// The request belongs to no sequence.
    #[default]
    None,
    /// A number other than 0.
    Number(u64),
    /// A string that is not empty.
    Text(String),
}

/// Where in its sequence a request stands.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceFlags {
    /// It is the first.
    pub start: bool,
    /// It is the last.
    pub end: bool,
}
