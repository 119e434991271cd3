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
}

/// One request's part of an output.
pub(super) struct RequestOutput {
    /// The response's tensor, if the request wants it.
    pub(super) tensor: Option<OutputTensor>,
    /// The new state of the request's sequence, if the output is a state.
    pub(super) state: Option<NewState>,
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

/// The location of a run's output. States stay in the memory of the instance's GPU. An output also
/// stays there if all requests that want it accept this. Other outputs are read from host memory.
pub(super) fn place(
    plan: &OutputPlan,
    requests: &[PendingRequest],
    copier: Copier<'_>,
) -> OutputPlace {
    let stays = copier.stream().is_some()
        && plan.datatype.byte_size().is_some()
        && (plan.is_state || !is_wanted_on_host(plan, requests));
    if stays { OutputPlace::Device } else { OutputPlace::Host }
}

/// Returns true if a request wants the output in host memory.
fn is_wanted_on_host(plan: &OutputPlan, requests: &[PendingRequest]) -> bool {
    let wants = |pending: &PendingRequest| {
        plan.is_wanted_by(pending) && !pending.request().device_outputs.include(&plan.name)
    };
    requests.iter().any(wants)
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
        Self { plan, tensor, states, next_element: 0 }
    }

    pub(super) const fn name(&self) -> &Arc<str> {
        &self.plan.name
    }

    /// Takes the next request's part. Must be called for every request of the batch, in order, even
    /// if the request doesn't want the output.
    pub(super) fn take_next(&mut self, pending: &PendingRequest) -> Result<RequestOutput, Status> {
        let part = self.next_part(pending);
        let wanted = self.plan.is_wanted_by(pending);
        let is_state = self.plan.is_state && !pending.is_padding();
        if !wanted && !is_state {
            return Ok(RequestOutput { tensor: None, state: None });
        }
        let OutputPart { shape, elements } = part?;
        let content = self.tensor.as_ref().map_err(Clone::clone)?;
        let state = match &self.states {
            Some(rows) if is_state => Some(rows.row(content.byte_range(&elements)?)),
            Some(_) | None => None,
        };
        // Strings are encoded again, but only once for both the response and the state.
        let data = match &state {
            Some(state) if !wanted => state.clone(),
            Some(_) | None => content.elements(&elements)?,
        };
        let state = is_state.then(|| NewState {
            shape: shape.clone(),
            data: state.unwrap_or_else(|| data.clone()),
            grows_in: self.plan.grows_in.clone(),
        });
        let name = self.plan.name.clone();
        let datatype = content.datatype;
        let tensor = wanted.then_some(OutputTensor { name, datatype, shape, data });
        Ok(RequestOutput { tensor, state })
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
    /// that a request wants in host memory are copied there.
    fn rows(
        &mut self,
        plan: &OutputPlan,
        batch: Option<u64>,
        requests: &[PendingRequest],
        memory: &StateMemory,
    ) -> Result<Option<StateRows>, Status> {
        let used = |length| used_bytes(length, batch, requests);
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
                    is_wanted_on_host(plan, requests) || (grows && wanting.next().is_some());
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
