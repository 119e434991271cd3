//! Responses as Python receives them.

use galatea_infer::{InferenceResponse, OutputTensor, ParameterValue, Status};
use pyo3::prelude::*;

use crate::memory::OutputMemory;

/// The data type's number in `TRITONSERVER_DataType`, the name, the shape and the elements.
type OutputTuple = (u32, String, Vec<i64>, Py<OutputMemory>);

/// One response to a request.
#[pyclass(frozen, get_all, module = "galatea._galatea")]
pub(crate) struct Response {
    model_name: String,
    model_version: i64,
    id: String,
    parameters: Vec<(String, Value)>,
    outputs: Vec<OutputTuple>,
}

/// A parameter's value.
#[derive(Clone, IntoPyObject, FromPyObject)]
pub(crate) enum Value {
    Bool(bool),
    Int64(i64),
    Double(f64),
    String(String),
}

impl From<ParameterValue> for Value {
    fn from(value: ParameterValue) -> Self {
        match value {
            ParameterValue::Bool(value) => Self::Bool(value),
            ParameterValue::Int64(value) => Self::Int64(value),
            ParameterValue::Double(value) => Self::Double(value),
            ParameterValue::String(value) => Self::String(value),
        }
    }
}

impl From<Value> for ParameterValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Bool(value) => Self::Bool(value),
            Value::Int64(value) => Self::Int64(value),
            Value::Double(value) => Self::Double(value),
            Value::String(value) => Self::String(value),
        }
    }
}

/// A response whose outputs have already been copied, so it doesn't require the interpreter lock.
pub(crate) struct CopiedResponse {
    response: InferenceResponse,
    outputs: Vec<(OutputTensor, OutputMemory)>,
}

impl CopiedResponse {
    pub(crate) fn new(mut response: InferenceResponse) -> Result<Self, Status> {
        let outputs = std::mem::take(&mut response.outputs);
        let copied = outputs.into_iter().map(|mut output| {
            output.data.make_owned()?;
            let elements = output.data.host_bytes().ok_or_else(|| {
                Status::unsupported(format!("output '{}' is not in CPU memory", output.name))
            })?;
            let memory = OutputMemory::copy_of(elements);
            Ok((output, memory))
        });
        let outputs = copied.collect::<Result<_, Status>>()?;
        Ok(Self { response, outputs })
    }

    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Response> {
        let Self { response, outputs } = self;
        let outputs = outputs.into_iter().map(|(output, memory)| {
            let shape = output.shape.dims().to_vec();
            let datatype = output.datatype.config_number().unsigned_abs();
            Ok((datatype, output.name.to_string(), shape, Py::new(py, memory)?))
        });
        let parameters = response.parameters.iter().cloned();
        Ok(Response {
            model_name: response.model_name.to_string(),
            model_version: response.model_version,
            id: response.id,
            parameters: parameters.map(|one| (one.name, one.value.into())).collect(),
            outputs: outputs.collect::<PyResult<_>>()?,
        })
    }
}
