//! Splits a run's output tensors into each request's outputs and states.

use std::ops::Range;
use std::sync::Arc;

use galatea_infer::{OutputTensor, PendingRequest, Status};
use galatea_tensor::{Buffer, DataType, Shape};
use smallvec::SmallVec;

use super::copier::Copier;
use super::state_memory::{StateMemory, StateRows, StateTensor, sub_region};
use super::strings;
use crate::session::{OutputData, OutputPlace, OwnedRunOutput};
use crate::signature::{OutputPlan, ScatterPlan};

/// An output of a whole batch. Requests take their parts in order. Fixed-size elements are not
/// copied for clients.
pub(super) struct BatchOutput<'plan> {
    plan: &'plan OutputPlan,
    tensor: Result<OutputContent<'plan>, Status>,
    /// The tensor's rows, if the output is a state with fixed-size elements.
    states: Option<StateRows>,
    next_element: u64,
    /// The length of the longest state in the run, if the output is a padded state.
    longest: Option<i64>,
}

/// One request's part of an output.
pub(super) struct RequestOutput {
    /// The response's tensor, if the request wants it.
    pub(super) tensor: Option<OutputTensor>,
    /// The new state of the request's sequence, if the output is a state.
    pub(super) state: Option<NewState>,
    /// True if the output requests another execution.
    pub(super) continues: bool,
}

/// A sequence's state after a run.
pub(super) struct NewState {
    pub(super) shape: Shape,
    pub(super) data: Buffer,
    /// The input in whose memory the state grows.
    pub(super) grows_in: Option<Arc<str>>,
}

struct OutputContent<'plan> {
    datatype: DataType,
    shape: Shape,
    data: OutputData,
    split: OutputSplit<'plan>,
    copier: &'plan Copier<'plan>,
}

/// The way in which an output is split among its batch's requests.
#[derive(Copy, Clone)]
enum OutputSplit<'plan> {
    /// Not split, because there is only one request.
    Whole,
    /// By the first dimension, which is the batch dimension.
    Rows,
    /// By the shapes of an input.
    Scatter(&'plan ScatterPlan),
}

/// One request's part: the shape and the range of elements.
struct OutputPart {
    shape: Shape,
    elements: Range<u64>,
}

/// The location of a run's output. Outputs of instances on a GPU can stay in its memory.
pub(super) fn place(
    plan: &OutputPlan,
    requests: &[PendingRequest],
    copier: Copier<'_>,
) -> OutputPlace {
    let stays = copier.stream().is_some() && can_stay_on_gpu(plan, requests);
    if stays { OutputPlace::Device } else { OutputPlace::Host }
}

/// Returns true if the output can stay in a GPU's memory: it is a state, or it isn't read in host
/// memory.
fn can_stay_on_gpu(plan: &OutputPlan, requests: &[PendingRequest]) -> bool {
    plan.datatype.byte_size().is_some() && (plan.is_state || !is_read_on_host(plan, requests))
}

/// Returns true if the output is read in host memory: a request wants it there, or it says whether
/// requests are executed again.
fn is_read_on_host(plan: &OutputPlan, requests: &[PendingRequest]) -> bool {
    let wants = |pending: &PendingRequest| {
        plan.is_wanted_by(pending) && !pending.request().device_outputs.include(&plan.name)
    };
    plan.is_continuation || requests.iter().any(wants)
}

impl<'plan> BatchOutput<'plan> {
    /// `batch` is the size of the whole batch if the model supports batching.
    pub(super) fn new(
        plan: &'plan OutputPlan,
        output: Option<OwnedRunOutput>,
        batch: Option<u64>,
        requests: &[PendingRequest],
        memory: &StateMemory,
        copier: &'plan Copier<'plan>,
    ) -> Self {
        let mut tensor = OutputContent::new(plan, output, batch, copier);
        let states = match &mut tensor {
            Ok(content) => match content.rows(plan, batch, requests, memory) {
                Ok(states) => states,
                Err(status) => {
                    tensor = Err(status);
                    None
                }
            },
            Err(_) => None,
        };
        let longest = longest_state(plan, requests);
        Self { plan, tensor, states, next_element: 0, longest }
    }

    pub(super) const fn name(&self) -> &Arc<str> {
        &self.plan.name
    }

    /// Takes the next request's part. Must be called for every request of the batch, in order, even
    /// if the request doesn't want the output.
    pub(super) fn take_next(&mut self, pending: &PendingRequest) -> Result<RequestOutput, Status> {
        let part = self.next_part(pending).and_then(|part| self.without_padding(part, pending));
        let wanted = self.plan.is_wanted_by(pending);
        let is_state = self.plan.is_state && !pending.is_padding();
        let decides = self.plan.is_continuation && !pending.is_padding();
        if !wanted && !is_state && !decides {
            return Ok(RequestOutput { tensor: None, state: None, continues: false });
        }
        let OutputPart { shape, elements } = part?;
        let content = self.tensor.as_ref().map_err(Clone::clone)?;
        let state = match &self.states {
            Some(rows) if is_state => Some(rows.row(content.byte_range(&elements)?)),
            Some(_) | None => None,
        };
        // Strings are encoded again, but only once for both the response and the state.
        let data = match &state {
            Some(state) if !wanted && !decides => state.clone(),
            Some(_) | None => content.elements(&elements)?,
        };
        let state = is_state.then(|| NewState {
            shape: shape.clone(),
            data: state.unwrap_or_else(|| data.clone()),
            grows_in: self.plan.grows_in.clone(),
        });
        let continues = decides && data.host_bytes().is_some_and(|bytes| bytes.first() == Some(&1));
        let name = self.plan.name.clone();
        let datatype = content.datatype;
        let tensor = wanted.then_some(OutputTensor { name, datatype, shape, data });
        Ok(RequestOutput { tensor, state, continues })
    }

    /// The part without the elements that the padding of the old state added to the new one.
    fn without_padding(
        &self,
        part: OutputPart,
        pending: &PendingRequest,
    ) -> Result<OutputPart, Status> {
        let Some(longest) = self.longest else { return Ok(part) };
        let padding = longest - state_length(self.plan, pending);
        let mut dims: SmallVec<[i64; 8]> = SmallVec::from_slice(part.shape.dims());
        let (Some(length), true) = (dims.get_mut(1), padding > 0) else { return Ok(part) };
        *length -= padding;
        let too_short = || {
            Status::internal(format!(
                "output state tensor '{}' of shape {} is shorter than its padding of {padding}",
                self.plan.name, part.shape
            ))
        };
        let shape = Shape::new(&dims).map_err(|_| too_short())?;
        let start = part.elements.end.checked_sub(shape.element_count()).ok_or_else(too_short)?;
        Ok(OutputPart { shape, elements: start..part.elements.end })
    }

    /// The next request's part. An error also applies to all later parts, because their positions
    /// depend on this part.
    fn next_part(&mut self, pending: &PendingRequest) -> Result<OutputPart, Status> {
        let content = self.tensor.as_ref().map_err(Clone::clone)?;
        match content.part(self.plan, self.next_element, pending) {
            Ok(part) => {
                self.next_element = part.elements.end;
                Ok(part)
            }
            Err(status) => {
                self.tensor = Err(status.clone());
                Err(status)
            }
        }
    }
}

/// The length of a request's old state, if the output is a padded state.
fn state_length(plan: &OutputPlan, pending: &PendingRequest) -> i64 {
    let input = plan.padded_input.as_ref().and_then(|name| pending.request().input(name));
    input.and_then(|input| input.shape.dims().get(1).copied()).unwrap_or(0)
}

/// The length of the longest old state, if the output is a padded state.
fn longest_state(plan: &OutputPlan, requests: &[PendingRequest]) -> Option<i64> {
    plan.padded_input.as_ref()?;
    requests.iter().map(|pending| state_length(plan, pending)).max()
}

/// The share of a padded state's tensor that no sequence receives: the removed lengths, and all
/// lengths.
fn padded_elements(
    plan: &OutputPlan,
    shape: &Shape,
    requests: &[PendingRequest],
) -> (usize, usize) {
    let Some(longest) = longest_state(plan, requests) else { return (0, 1) };
    let rows = requests.iter().filter(|pending| !pending.is_padding());
    let removed: i64 = rows.map(|pending| longest - state_length(plan, pending)).sum();
    let all = match shape.dims() {
        [rows, length, ..] => rows.saturating_mul(*length),
        _ => 0,
    };
    (usize::try_from(removed).unwrap_or(0), usize::try_from(all).unwrap_or(0))
}

/// The number of a tensor's bytes that sequences receive, which excludes padding rows.
fn used_bytes(length: usize, batch: Option<u64>, requests: &[PendingRequest]) -> usize {
    let Some(batch) = batch.and_then(|batch| usize::try_from(batch).ok()) else { return length };
    let padding = requests.iter().filter(|pending| pending.is_padding()).count();
    let row = length.checked_div(batch).unwrap_or(0);
    length.saturating_sub(row.saturating_mul(padding))
}

impl<'plan> OutputContent<'plan> {
    fn new(
        plan: &'plan OutputPlan,
        output: Option<OwnedRunOutput>,
        batch: Option<u64>,
        copier: &'plan Copier<'plan>,
    ) -> Result<Self, Status> {
        let name = &plan.name;
        let Some(OwnedRunOutput { datatype, mut shape, data }) = output else {
            return Err(Status::internal(format!("output tensor '{name}' is not found")));
        };
        if datatype != plan.datatype {
            return Err(Status::internal(format!(
                "output tensor '{name}' has datatype {datatype}, expected {}",
                plan.datatype
            )));
        }
        if let (Some(ones), 0) = (&plan.scalar_shape, shape.rank()) {
            shape = ones.clone();
        }
        let split = match (&plan.scatter, batch) {
            (Some(scatter), _) => OutputSplit::Scatter(scatter),
            (None, None) => OutputSplit::Whole,
            (None, Some(batch)) => {
                check_batch_size(plan, &shape, batch)?;
                OutputSplit::Rows
            }
        };
        Ok(Self { datatype, shape, data, split, copier })
    }

    /// The tensor's rows, if the output is a state with fixed-size elements. Elements in GPU memory
    /// that are read in host memory are copied there.
    fn rows(
        &mut self,
        plan: &OutputPlan,
        batch: Option<u64>,
        requests: &[PendingRequest],
        memory: &StateMemory,
    ) -> Result<Option<StateRows>, Status> {
        let padding = padded_elements(plan, &self.shape, requests);
        let used = |length: usize| {
            let padding = length.saturating_mul(padding.0).checked_div(padding.1).unwrap_or(0);
            used_bytes(length, batch, requests).saturating_sub(padding)
        };
        match &self.data {
            OutputData::Strings(_) => Ok(None),
            OutputData::Fixed(bytes) => {
                Ok(plan.is_state.then(|| memory.rows(bytes.clone().into(), used(bytes.len()))))
            }
            OutputData::Device(tensor) => {
                let region = tensor.region();
                let mut wanting = requests.iter().filter(|pending| plan.is_wanted_by(pending));
                // A growing state is copied to its own memory before this memory is reused, but a
                // response may live longer.
                let grows = plan.grows_in.is_some();
                let is_read =
                    is_read_on_host(plan, requests) || (grows && wanting.next().is_some());
                // Memory that would be mostly unused for a long time, or that belongs to an input,
                // is copied to the host.
                let length = region.byte_size;
                let wasted = plan.is_state && memory.would_waste(length, used(length));
                let stays = grows || (!tensor.is_input && !wasted);
                let copy = (is_read || !stays).then(|| self.copier.to_host(&region)).transpose()?;
                let kept = match &copy {
                    Some(copy) if !stays => StateTensor::from(copy.clone()),
                    Some(_) | None => StateTensor::Device(region),
                };
                if let Some(copy) = copy {
                    self.data = OutputData::Fixed(copy);
                }
                Ok(plan.is_state.then(|| memory.rows(kept, used(length))))
            }
        }
    }

    fn part(
        &self,
        plan: &OutputPlan,
        start: u64,
        pending: &PendingRequest,
    ) -> Result<OutputPart, Status> {
        let shape = match self.split {
            OutputSplit::Whole => self.shape.clone(),
            OutputSplit::Rows => self.rows_shape(pending.batch_size())?,
            OutputSplit::Scatter(scatter) => scattered_shape(plan, scatter, pending)?,
        };
        let end = start.checked_add(shape.element_count());
        match end {
            Some(end) if end <= self.shape.element_count() => {
                Ok(OutputPart { shape, elements: start..end })
            }
            Some(_) | None => Err(Status::unsupported(format!(
                "failed to split the output tensor '{}' in responses: a part of shape {shape} \
                 behind {start} elements is not in the model output of shape {}",
                plan.name, self.shape
            ))),
        }
    }

    /// The shape of a tensor with `rows` rows.
    fn rows_shape(&self, rows: u32) -> Result<Shape, Status> {
        let mut dims: SmallVec<[i64; 8]> = SmallVec::from_slice(self.shape.dims());
        if let Some(first) = dims.first_mut() {
            *first = i64::from(rows);
        }
        Shape::new(&dims).map_err(|error| Status::internal(error.to_string()))
    }

    fn elements(&self, elements: &Range<u64>) -> Result<Buffer, Status> {
        match &self.data {
            OutputData::Fixed(bytes) => {
                let part = bytes.slice(self.byte_range(elements)?);
                Ok(Buffer::from_bytes(part).with_retained_bytes(bytes.len()))
            }
            OutputData::Device(tensor) => {
                let range = self.byte_range(elements)?;
                self.copier.tensor(&sub_region(&tensor.region(), &range))
            }
            OutputData::Strings(strings) => {
                let range = index(elements.start)?..index(elements.end)?;
                Ok(strings::charged(strings.framed(range)?, self.copier.account())?)
            }
        }
    }

    /// The byte range of fixed-size elements. It is within the tensor, as every [`OutputPart`] is.
    fn byte_range(&self, elements: &Range<u64>) -> Result<Range<usize>, Status> {
        let size = self.datatype.byte_size().unwrap_or(0);
        let offset = |element: u64| index(element)?.checked_mul(size).ok_or_else(too_large);
        Ok(offset(elements.start)?..offset(elements.end)?)
    }
}

fn check_batch_size(plan: &OutputPlan, shape: &Shape, batch: u64) -> Result<(), Status> {
    let rows = shape.dims().first().copied();
    if rows.and_then(|rows| u64::try_from(rows).ok()) == Some(batch) {
        return Ok(());
    }
    let kind = if plan.is_visible { "output tensor" } else { "output state tensor" };
    Err(Status::unsupported(format!(
        "failed to split the {kind} '{}' in responses: expected batch size of {batch} in model \
         output, got shape {shape}",
        plan.name
    )))
}

/// The shape of a request's part: the configured shape, with variable sizes replaced by those of
/// the request's input.
fn scattered_shape(
    plan: &OutputPlan,
    scatter: &ScatterPlan,
    pending: &PendingRequest,
) -> Result<Shape, Status> {
    let unknown = |reason: &str| {
        Status::internal(format!(
            "output tensor '{}' is split by the shapes of input '{}', {reason}",
            plan.name, scatter.source_input
        ))
    };
    let source = pending.request().input(&scatter.source_input);
    let source = source.ok_or_else(|| unknown("which a request leaves out"))?.shape.dims();
    let mut dims: SmallVec<[i64; 8]> = SmallVec::from_slice(&scatter.dims);
    for (position, dim) in dims.iter_mut().enumerate().filter(|(_, dim)| **dim == -1) {
        *dim = *source.get(position).ok_or_else(|| unknown("which has too few dimensions"))?;
    }
    Shape::new(&dims).map_err(|error| unknown(&error.to_string()))
}

fn index(number: u64) -> Result<usize, Status> {
    usize::try_from(number).map_err(|_| too_large())
}

fn too_large() -> Status {
    Status::internal("an output is too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_is_read_does_not_stay_on_a_gpu() {
        let check = |datatype, is_state, is_continuation, expected| {
            let plan = OutputPlan {
                name: Arc::from("MORE"),
                datatype,
                index: 0,
                scalar_shape: None,
                is_visible: false,
                is_state,
                grows_in: None,
                padded_input: None,
                is_continuation,
                scatter: None,
            };
            assert_eq!(can_stay_on_gpu(&plan, &[]), expected);
            assert_eq!(is_read_on_host(&plan, &[]), is_continuation);
        };
        check(DataType::Bool, false, false, true);
        check(DataType::Bool, false, true, false);
        // A state stays, and is copied to be read.
        check(DataType::Bool, true, true, true);
        check(DataType::Bytes, true, false, false);
    }
}
