//! One run of the network.

use std::sync::Arc;
use std::time::Instant;

use galatea_backend::Instance;
use galatea_infer::{
    AdmissionTimes, ExecutionSummary, FailureReason, Finality, InferenceRequest, InferenceResponse,
    InputTensor, OutputTensor, PendingRequest, Reply, RequestObserver, ResponseSender, Status,
};
use galatea_stdx::Lock;
use galatea_tensor::{Buffer, DataType, Shape};
use galatea_text::{PoolingSettings, TextTask, TokenRow, widen_half};

use crate::network::{InputRole, NetworkInput};
use crate::served::ServedText;

/// A row of a run.
#[derive(Copy, Clone)]
pub(crate) struct RunRow<'a> {
    pub(crate) tokens: &'a TokenRow,
    /// The number of tokens at the beginning that pooling leaves out.
    pub(crate) prompt_tokens: usize,
}

/// Executes rows, each padded to the longest one. Returns the values of all rows: embeddings before
/// scaling, or the network's outputs.
pub(crate) fn execute(
    served: &ServedText,
    network: &mut dyn Instance,
    rows: &[RunRow<'_>],
) -> Result<Vec<f32>, Status> {
    // A text without tokens has one token of padding, because tensors are never empty.
    let length = rows.iter().map(|row| row.tokens.ids.len()).max().unwrap_or(0).max(1);
    let mut inputs = Vec::with_capacity(served.network.inputs.len());
    for input in &served.network.inputs {
        inputs.push(tensor(input, rows, length)?);
    }
    let request = InferenceRequest {
        model_name: served.model_name.to_string(),
        inputs,
        outputs: vec![served.network.output.clone()],
        ..InferenceRequest::default()
    };
    let response = infer(network, request, rows.len())?;
    let mut outputs = response.outputs.into_iter();
    let output = outputs.find(|output| *output.name == *served.network.output);
    let output = output.ok_or_else(|| {
        Status::internal(format!("the network did not return '{}'", served.network.output))
    })?;
    values(served, &output, rows, length)
}

/// An input of the network for all rows.
fn tensor(input: &NetworkInput, rows: &[RunRow<'_>], length: usize) -> Result<InputTensor, Status> {
    let size = input.datatype.byte_size().unwrap_or(8);
    let bytes = rows.len().saturating_mul(length).saturating_mul(size);
    let mut data = Vec::new();
    data.try_reserve_exact(bytes)
        .map_err(|_| Status::unavailable("there is not enough memory for the tokens of a batch"))?;
    for row in rows {
        let tokens = row.tokens;
        let count = tokens.ids.len();
        let mut push = |value: u32| match input.datatype {
            DataType::Int32 => data.extend_from_slice(&value.to_le_bytes()),
            _ => data.extend_from_slice(&u64::from(value).to_le_bytes()),
        };
        match input.role {
            InputRole::Ids => tokens.ids.iter().for_each(|id| push(*id)),
            InputRole::Mask => (0..count).for_each(|_| push(1)),
            InputRole::TypeIds => tokens.type_ids.iter().for_each(|id| push(*id)),
            InputRole::Positions => {
                (0..count).for_each(|place| push(u32::try_from(place).unwrap_or(u32::MAX)));
            }
        }
        // Padding is 0 in every input. The mask hides it from the network.
        (count..length).for_each(|_| push(0));
    }
    let dims = [rows.len(), length].map(|dim| i64::try_from(dim).unwrap_or(i64::MAX));
    let shape = Shape::new(&dims).map_err(|error| Status::internal(error.to_string()))?;
    let (name, datatype) = (input.name.clone(), input.datatype);
    Ok(InputTensor { name, datatype, shape, data: Buffer::from_vec(data) })
}

/// The place where a response arrives.
type ReplySlot = Arc<Lock<Option<Result<InferenceResponse, Status>>>>;

/// Executes one request with the network's instance, which replies before it returns.
fn infer(
    network: &mut dyn Instance,
    request: InferenceRequest,
    rows: usize,
) -> Result<InferenceResponse, Status> {
    let slot = ReplySlot::default();
    let arriving = slot.clone();
    let sender = ResponseSender::new(Box::new(move |reply: Reply| {
        if let Reply::Response { result, finality: Finality::Final | Finality::EndApart } = reply {
            *arriving.lock("keep the network's response") = Some(result);
        }
    }));
    let now = Instant::now();
    let times = AdmissionTimes { arrival: now, queued: now };
    let batch_size = u32::try_from(rows).unwrap_or(u32::MAX);
    let pending = PendingRequest::new(request, sender, batch_size, times, Arc::new(Unobserved));
    network.execute(vec![pending]).map_err(|refused| refused.status)?;
    let reply = slot.lock("take the network's response").take();
    reply.unwrap_or_else(|| Err(Status::internal("the network did not respond")))
}

/// The statistics of a text model count its own requests.
#[derive(Debug)]
struct Unobserved;

impl RequestObserver for Unobserved {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {}
    fn failed(&self, _: &AdmissionTimes, _: FailureReason) {}
}

/// Converts the network's output to the values of all rows.
fn values(
    served: &ServedText,
    output: &OutputTensor,
    rows: &[RunRow<'_>],
    length: usize,
) -> Result<Vec<f32>, Status> {
    let network = &served.network;
    let expected: &[usize] = &[rows.len(), length, network.width];
    let expected = if network.is_per_token { expected } else { &[rows.len(), network.width] };
    let is_expected = output.shape.rank() == expected.len()
        && output
            .shape
            .dims()
            .iter()
            .zip(expected)
            .all(|(dim, expected)| usize::try_from(*dim).is_ok_and(|dim| dim == *expected));
    let bytes = output.data.host_bytes();
    let (Some(bytes), true) = (bytes, is_expected) else {
        return Err(Status::internal(format!(
            "the network's output '{}' has the shape {} instead of {expected:?}",
            network.output, output.shape
        )));
    };
    let widened: Vec<[u8; 4]>;
    let numbers: &[[u8; 4]] = if output.datatype == DataType::Fp16 {
        widened = bytes.as_chunks().0.iter().map(|half| widen_half(*half).to_le_bytes()).collect();
        &widened
    } else {
        bytes.as_chunks::<4>().0
    };
    let default = PoolingSettings::default();
    let pooling = match &served.text.description.task {
        TextTask::Embedding(task) if network.is_per_token => {
            task.pooling.as_ref().unwrap_or(&default)
        }
        TextTask::Embedding(_) | TextTask::Scores { .. } => {
            return Ok(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect());
        }
    };
    let mut pooled = Vec::new();
    let row_size = length.saturating_mul(network.width);
    for (row, vectors) in rows.iter().zip(numbers.chunks(row_size.max(1))) {
        let count = row.tokens.ids.len();
        let tokens = row.prompt_tokens.min(count)..count;
        pooling.pool(vectors, network.width, tokens, &mut pooled);
    }
    Ok(served.text.apply_dense(pooled))
}
