//! Tensors that are passed between an ensemble's steps.

use std::sync::Arc;

use galatea_infer::{
    CorrelationId, InferenceResponse, Parameter, ParameterValue, SequenceFlags, Status,
};
use galatea_tensor::{Buffer, DataType, Shape};

/// A tensor that a step produced or the caller supplied. The run shares it with the calls that need
/// it.
#[derive(Debug)]
pub(crate) struct StepTensor {
    pub(crate) datatype: DataType,
    /// The shape that the step produced, including its batch dimension.
    pub(crate) shape: Shape,
    pub(crate) data: Buffer,
    /// The batch size of the request that produced the tensor; `None` if the request's model
    /// doesn't support batching.
    pub(crate) batch_size: Option<u32>,
    /// `None` for tensors from the caller.
    pub(crate) sequence: Option<Arc<SequencePosition>>,
}

/// The sequence that a tensor belongs to, with its flags. Steps that use the tensor continue the
/// sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SequencePosition {
    pub(crate) correlation_id: CorrelationId,
    pub(crate) flags: SequenceFlags,
}

impl StepTensor {
    /// The tensor's shape for a model or for the ensemble's response. `dims` contains the
    /// configured dimensions without the batch dimension, which exists if `batches` is true.
    ///
    /// As in Triton, a model without batching takes a batch as a single tensor if its dimensions
    /// allow that; otherwise, a batch of one loses its batch dimension. Conversely, a tensor
    /// becomes a batch of one.
    pub(crate) fn shape_for(&self, dims: &[i64], batches: bool) -> Result<Shape, Status> {
        let own = self.shape.dims();
        let changed = match (self.batch_size, batches) {
            (None, true) if matches_dims(dims, own) => {
                Some(std::iter::once(1).chain(own.iter().copied()).collect::<Vec<_>>())
            }
            (Some(1), false) if !matches_dims(dims, own) => {
                Some(own.iter().skip(1).copied().collect())
            }
            (None | Some(_), true | false) => None,
        };
        match changed {
            None => Ok(self.shape.clone()),
            Some(dims) => Shape::new(&dims).map_err(|error| Status::internal(error.to_string())),
        }
    }
}

/// Returns true if a shape matches the configured dimensions, where -1 means any size.
fn matches_dims(configured: &[i64], dims: &[i64]) -> bool {
    let mut pairs = configured.iter().zip(dims);
    configured.len() == dims.len()
        && pairs.all(|(expected, actual)| *expected == -1 || expected == actual)
}

const SEQUENCE_ID: &str = "sequence_id";
const SEQUENCE_START: &str = "sequence_start";
const SEQUENCE_END: &str = "sequence_end";

impl SequencePosition {
    /// The position for a response's tensors. It is the request's position, unless the response's
    /// parameters change it, in which case flags that the parameters omit are cleared.
    pub(crate) fn of_response(
        request: &Arc<Self>,
        response: &InferenceResponse,
    ) -> Result<Arc<Self>, Status> {
        let mut changed = None;
        let mut change = |apply: &dyn Fn(&mut Self)| {
            apply(changed.get_or_insert_with(|| Self {
                correlation_id: request.correlation_id.clone(),
                flags: SequenceFlags::default(),
            }));
        };
        for Parameter { name, value } in &response.parameters {
            match (name.as_str(), value) {
                (SEQUENCE_ID, ParameterValue::Int64(id)) => {
                    change(&|position| position.correlation_id = number_id(*id));
                }
                (SEQUENCE_ID, ParameterValue::String(id)) => {
                    change(&|position| position.correlation_id = text_id(id));
                }
                (SEQUENCE_START, ParameterValue::Bool(start)) => {
                    change(&|position| position.flags.start = *start);
                }
                (SEQUENCE_END, ParameterValue::Bool(end)) => {
                    change(&|position| position.flags.end = *end);
                }
                (SEQUENCE_ID, _) => {
                    return Err(Status::invalid_argument(
                        "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or \
                         TRITONSERVER_PARAMETER_STRING",
                    ));
                }
                (SEQUENCE_START | SEQUENCE_END, _) => {
                    return Err(Status::invalid_argument(format!(
                        "expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL"
                    )));
                }
                _ => {}
            }
        }
        Ok(changed.map_or_else(|| request.clone(), Arc::new))
    }

    /// The response parameters with which Triton reports the position to an ensemble's client.
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        let id = match &self.correlation_id {
            CorrelationId::None => ParameterValue::Int64(0),
            // Reinterprets the bits as signed, because the protocols have no unsigned integers.
            CorrelationId::Number(number) => ParameterValue::Int64(number.cast_signed()),
            CorrelationId::Text(text) => ParameterValue::String(text.clone()),
        };
        let values = [
            (SEQUENCE_ID, id),
            (SEQUENCE_START, ParameterValue::Bool(self.flags.start)),
            (SEQUENCE_END, ParameterValue::Bool(self.flags.end)),
        ];
        let parameter = |(name, value): (&str, _)| Parameter { name: name.to_owned(), value };
        values.into_iter().map(parameter).collect()
    }
}

fn number_id(id: i64) -> CorrelationId {
    match id.cast_unsigned() {
        0 => CorrelationId::None,
        number => CorrelationId::Number(number),
    }
}

fn text_id(id: &str) -> CorrelationId {
    if id.is_empty() { CorrelationId::None } else { CorrelationId::Text(id.to_owned()) }
}
