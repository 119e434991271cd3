//! From the tensors of a run to each request's outputs and states.

use std::ops::Range;
use std::sync::Arc;

use galatea_infer::{OutputTensor, PendingRequest, Status};
use galatea_tensor::{Buffer, DataType, Shape};
use smallvec::SmallVec;

use super::state_memory::{StateMemory, StateRows};
use crate::api::{Output, OutputData};
use crate::signature::{OutputPlan, ScatterPlan};

/// An output of a whole batch, from which requests take their parts in turn.
/// Parts of a fixed size are not copied for clients.
pub(super) struct BatchOutput<'plan> {
    plan: &'plan OutputPlan,
    content: Result<Content<'plan>, Status>,
    /// The tensor again, if it is a state with elements of a fixed size.
    states: Option<StateRows>,
    next_element: u64,
}

/// What one request gets of an output.
pub(super) struct Share {
    /// For its client, if that wants it.
    pub(super) tensor: Option<OutputTensor>,
    /// For the next request of its sequence, if it is a state.
    pub(super) state: Option<NewState>,
}

/// A sequence's state as a run left it.
pub(super) struct NewState {
    pub(super) shape: Shape,
    pub(super) data: Buffer,
}

struct Content<'plan> {
    datatype: DataType,
    shape: Shape,
    data: OutputData,
    division: Division<'plan>,
}

/// How an output is divided among the requests of its batch.
#[derive(Copy, Clone)]
enum Division<'plan> {
    /// There is one request.
    Whole,
    /// By its first dimension, which is the batch.
    Rows,
    /// By the shapes of an input.
    Scatter(&'plan ScatterPlan),
}

/// The part of one request: its shape, and where its elements are.
struct Place {
    shape: Shape,
    elements: Range<u64>,
}

impl<'plan> BatchOutput<'plan> {
    /// `batch` is the size of the whole batch if the model has batches.
    pub(super) fn new(
        plan: &'plan OutputPlan,
        output: Option<Output>,
        batch: Option<u64>,
        requests: &[PendingRequest],
        memory: &StateMemory,
    ) -> Self {
        let content = Content::new(plan, output, batch);
        let states = match &content {
            Ok(Content { data: OutputData::Fixed(bytes), .. }) if plan.is_state => {
                let used = used_bytes(bytes.len(), batch, requests);
                Some(memory.rows(bytes.clone(), used))
            }
            Ok(_) | Err(_) => None,
        };
        Self { plan, content, states, next_element: 0 }
    }

    pub(super) const fn name(&self) -> &Arc<str> {
        &self.plan.name
    }

    /// Steps over the part of the next request and returns what it gets of it.
    pub(super) fn next_share(&mut self, pending: &PendingRequest) -> Result<Share, Status> {
        let place = self.next_place(pending);
        let wanted = self.plan.is_wanted_by(pending);
        let is_state = self.plan.is_state && !pending.is_padding();
        if !wanted && !is_state {
            return Ok(Share { tensor: None, state: None });
        }
        let Place { shape, elements } = place?;
        let content = self.content.as_ref().map_err(Clone::clone)?;
        let state = match &self.states {
            Some(rows) if is_state => {
                Some(Buffer::from_bytes(rows.row(content.byte_range(&elements)?)))
            }
            Some(_) | None => None,
        };
        // Strings are written out anew, once for both who read them.
        let data = match &state {
            Some(state) if !wanted => state.clone(),
            Some(_) | None => content.elements(&elements)?,
        };
        let state = is_state.then(|| NewState {
            shape: shape.clone(),
            data: state.unwrap_or_else(|| data.clone()),
        });
        let name = self.plan.name.clone();
        let datatype = content.datatype;
        let tensor = wanted.then_some(OutputTensor { name, datatype, shape, data });
        Ok(Share { tensor, state })
    }

    /// Where the next request's part is. Without that nothing is known of the
    /// parts behind it either.
    fn next_place(&mut self, pending: &PendingRequest) -> Result<Place, Status> {
        let content = self.content.as_ref().map_err(Clone::clone)?;
        match content.place(self.plan, self.next_element, pending) {
            Ok(place) => {
                self.next_element = place.elements.end;
                Ok(place)
            }
            Err(status) => {
                self.content = Err(status.clone());
                Err(status)
            }
        }
    }
}

/// How many bytes of a tensor go to sequences: all but the rows of padding.
fn used_bytes(length: usize, batch: Option<u64>, requests: &[PendingRequest]) -> usize {
    let Some(batch) = batch.and_then(|batch| usize::try_from(batch).ok()) else { return length };
    let padding = requests.iter().filter(|pending| pending.is_padding()).count();
    let row = length.checked_div(batch).unwrap_or(0);
    length.saturating_sub(row.saturating_mul(padding))
}

impl<'plan> Content<'plan> {
    fn new(
        plan: &'plan OutputPlan,
        output: Option<Output>,
        batch: Option<u64>,
    ) -> Result<Self, Status> {
        let name = &plan.name;
        let Some(Output { datatype, mut shape, data }) = output else {
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
        let division = match (&plan.scatter, batch) {
            (Some(scatter), _) => Division::Scatter(scatter),
            (None, None) => Division::Whole,
            (None, Some(batch)) => {
                check_batch_size(plan, &shape, batch)?;
                Division::Rows
            }
        };
        Ok(Self { datatype, shape, data, division })
    }

    fn place(
        &self,
        plan: &OutputPlan,
        start: u64,
        pending: &PendingRequest,
    ) -> Result<Place, Status> {
        let shape = match self.division {
            Division::Whole => self.shape.clone(),
            Division::Rows => self.rows_shape(pending.batch_size())?,
            Division::Scatter(scatter) => scattered_shape(plan, scatter, pending)?,
        };
        let end = start.checked_add(shape.element_count());
        match end {
            Some(end) if end <= self.shape.element_count() => {
                Ok(Place { shape, elements: start..end })
            }
            Some(_) | None => Err(Status::unsupported(format!(
                "failed to split the output tensor '{}' in responses: a part of shape {shape} \
                 behind {start} elements is not in the model output of shape {}",
                plan.name, self.shape
            ))),
        }
    }

    /// The shape of so many rows.
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
                Ok(Buffer::from_bytes(part).retaining(bytes.len()))
            }
            OutputData::Strings(strings) => {
                let range = index(elements.start)?..index(elements.end)?;
                Ok(Buffer::from_vec(strings.framed(range)?))
            }
        }
    }

    /// Where elements of a fixed size are; always within the tensor, as a
    /// [`Place`] is.
    fn byte_range(&self, elements: &Range<u64>) -> Result<Range<usize>, Status> {
        let size = self.datatype.byte_size().unwrap_or(0);
        let place = |element: u64| index(element)?.checked_mul(size).ok_or_else(too_large);
        Ok(place(elements.start)?..place(elements.end)?)
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

/// The shape of a request's part: the configured one, with the sizes of its
/// input where any size is configured.
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
    for (place, dim) in dims.iter_mut().enumerate().filter(|(_, dim)| **dim == -1) {
        *dim = *source.get(place).ok_or_else(|| unknown("which has too few dimensions"))?;
    }
    Shape::new(&dims).map_err(|error| unknown(&error.to_string()))
}

fn index(number: u64) -> Result<usize, Status> {
    usize::try_from(number).map_err(|_| too_large())
}

fn too_large() -> Status {
    Status::internal("an output is too large")
}
