//! What travels between the steps of an ensemble.

use std::sync::Arc;

use galatea_infer::{
    CorrelationId, InferenceResponse, Parameter, ParameterValue, SequenceFlags, Status,
};
use galatea_tensor::{Buffer, DataType, Shape};

/// A tensor on its way. Whoever needs it holds a count of it.
#[derive(Debug)]
pub(crate) struct Carried {
    pub(crate) datatype: DataType,
    /// As whoever made it gave it, with its batch dimension.
    pub(crate) shape: Shape,
    pub(crate) data: Buffer,
    /// The batch size of the request that made it; `None` if its model has no
    /// batches.
    pub(crate) batch: Option<u32>,
    /// `None` for what the client brought.
    pub(crate) sequence: Option<Arc<SequencePlace>>,
}

/// The sequence that a tensor belongs to, which the steps behind it go on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SequencePlace {
    pub(crate) correlation_id: CorrelationId,
    pub(crate) flags: SequenceFlags,
}

impl Carried {
    /// The shape in which a model takes the tensor, or a client gets it: one that
    /// has batches, or has none, and says `dims` of a batch element.
    ///
    /// As in the original, a batch is one tensor to a model without batches if
    /// its shape says so, and a batch of one loses its batch dimension there;
    /// the other way round a tensor becomes a batch of one.
    pub(crate) fn shape_for(&self, dims: &[i64], batches: bool) -> Result<Shape, Status> {
        let own = self.shape.dims();
        let changed = match (self.batch, batches) {
            (None, true) if may_be(dims, own) => {
                Some(std::iter::once(1).chain(own.iter().copied()).collect::<Vec<_>>())
            }
            (Some(1), false) if !may_be(dims, own) => Some(own.iter().skip(1).copied().collect()),
            (None | Some(_), true | false) => None,
        };
        match changed {
            None => Ok(self.shape.clone()),
            Some(dims) => Shape::new(&dims).map_err(|error| Status::internal(error.to_string())),
        }
    }
}

/// Whether a shape is what a configuration says, where -1 is any size.
fn may_be(configured: &[i64], dims: &[i64]) -> bool {
    let mut pairs = configured.iter().zip(dims);
    configured.len() == dims.len() && pairs.all(|(want, got)| *want == -1 || want == got)
}

const SEQUENCE_ID: &str = "sequence_id";
const SEQUENCE_START: &str = "sequence_start";
const SEQUENCE_END: &str = "sequence_end";

impl SequencePlace {
    /// Where a response's tensors belong: as its request, unless its parameters
    /// say something else. Then a flag that they don't name is not set.
    pub(crate) fn of_response(
        request: &Arc<Self>,
        response: &InferenceResponse,
    ) -> Result<Arc<Self>, Status> {
        let mut said = None;
        let mut change = |apply: &dyn Fn(&mut Self)| {
            apply(said.get_or_insert_with(|| Self {
                correlation_id: request.correlation_id.clone(),
                flags: SequenceFlags::default(),
            }));
        };
        for Parameter { name, value } in &response.parameters {
            match (name.as_str(), value) {
                (SEQUENCE_ID, ParameterValue::Int64(id)) => {
                    change(&|place| place.correlation_id = numbered(*id));
                }
                (SEQUENCE_ID, ParameterValue::String(id)) => {
                    change(&|place| place.correlation_id = named(id));
                }
                (SEQUENCE_START, ParameterValue::Bool(start)) => {
                    change(&|place| place.flags.start = *start);
                }
                (SEQUENCE_END, ParameterValue::Bool(end)) => {
                    change(&|place| place.flags.end = *end);
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
        Ok(said.map_or_else(|| request.clone(), Arc::new))
    }

    /// What the original tells the clients of an ensemble with each output.
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        let id = match &self.correlation_id {
            CorrelationId::None => ParameterValue::Int64(0),
            // The same bits: the protocols have no larger integer.
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

fn numbered(id: i64) -> CorrelationId {
    match id.cast_unsigned() {
        0 => CorrelationId::None,
        number => CorrelationId::Number(number),
    }
}

fn named(id: &str) -> CorrelationId {
    if id.is_empty() { CorrelationId::None } else { CorrelationId::Text(id.to_owned()) }
}
