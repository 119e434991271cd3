//! From the tensors of a run to each request's outputs.

use std::ops::Range;
use std::sync::Arc;

use galatea_infer::{OutputTensor, Status};
use galatea_tensor::{Buffer, DataType, Shape};
use smallvec::SmallVec;

use crate::api::{Output, OutputData};
use crate::signature::OutputPlan;

/// An output of a whole batch, from which requests take their rows in turn.
/// Rows of a fixed size are not copied.
pub(super) struct BatchOutput {
    pub(super) name: Arc<str>,
    content: Result<Content, Status>,
    next_row: u64,
}

struct Content {
    datatype: DataType,
    shape: Shape,
    data: OutputData,
    /// The size of the batch, if there are batches: then the first dimension
    /// is as large.
    batch: Option<u64>,
}

impl BatchOutput {
    pub(super) fn new(plan: &OutputPlan, output: Option<Output>, batch: Option<u64>) -> Self {
        Self { name: plan.name.clone(), content: Content::new(plan, output, batch), next_row: 0 }
    }

    /// The rows of the next request, which has `batch_size` of them.
    pub(super) fn next_rows(&mut self, batch_size: u32) -> Range<u64> {
        let start = self.next_row;
        self.next_row = start.saturating_add(u64::from(batch_size));
        start..self.next_row
    }

    /// The output with these rows alone.
    pub(super) fn part(&self, rows: Range<u64>) -> Result<OutputTensor, Status> {
        let content = self.content.as_ref().map_err(Clone::clone)?;
        let (shape, data) = match content.batch {
            Some(batch) if rows != (0..batch) => content.rows(rows, batch)?,
            Some(_) | None => content.whole()?,
        };
        Ok(OutputTensor { name: self.name.clone(), datatype: content.datatype, shape, data })
    }
}

impl Content {
    fn new(plan: &OutputPlan, output: Option<Output>, batch: Option<u64>) -> Result<Self, Status> {
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
        let rows = shape.dims().first().copied();
        if let Some(batch) = batch
            && rows.and_then(|rows| u64::try_from(rows).ok()) != Some(batch)
        {
            return Err(Status::unsupported(format!(
                "failed to split the output tensor '{name}' in responses: expected batch size of \
                 {batch} in model output, got shape {shape}"
            )));
        }
        Ok(Self { datatype, shape, data, batch })
    }

    fn whole(&self) -> Result<(Shape, Buffer), Status> {
        let data = match &self.data {
            OutputData::Fixed(bytes) => Buffer::from_bytes(bytes.clone()),
            OutputData::Strings(strings) => {
                let count = index(self.shape.element_count())?;
                Buffer::from_vec(strings.framed(0..count)?)
            }
        };
        Ok((self.shape.clone(), data))
    }

    fn rows(&self, rows: Range<u64>, batch: u64) -> Result<(Shape, Buffer), Status> {
        let mut dims: SmallVec<[i64; 8]> = SmallVec::from_slice(self.shape.dims());
        let count = rows.end.saturating_sub(rows.start);
        if let (Some(first), Ok(count)) = (dims.first_mut(), i64::try_from(count)) {
            *first = count;
        }
        let shape = Shape::new(&dims).map_err(|error| Status::internal(error.to_string()))?;
        // The batch is the first dimension, so it divides what is counted.
        let data = match &self.data {
            OutputData::Fixed(bytes) => {
                let range = part_of(bytes.len(), &rows, batch)?;
                Buffer::from_bytes(bytes.slice(range))
            }
            OutputData::Strings(strings) => {
                let range = part_of(index(self.shape.element_count())?, &rows, batch)?;
                Buffer::from_vec(strings.framed(range)?)
            }
        };
        Ok((shape, data))
    }
}

/// What `rows` of `batch` are of `length` things; always within them.
fn part_of(length: usize, rows: &Range<u64>, batch: u64) -> Result<Range<usize>, Status> {
    let row = length.checked_div(index(batch)?);
    let place = |rows: u64| row?.checked_mul(usize::try_from(rows).ok()?);
    match (place(rows.start), place(rows.end)) {
        (Some(start), Some(end)) if start <= end && end <= length => Ok(start..end),
        _ => Err(Status::internal(format!("a batch of {batch} has no rows {rows:?}"))),
    }
}

fn index(number: u64) -> Result<usize, Status> {
    usize::try_from(number).map_err(|_| Status::internal("an output is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stay_within_the_batch() {
        assert_eq!(part_of(12, &(1..3), 3), Ok(4..12));
        assert_eq!(part_of(0, &(1..3), 3), Ok(0..0));
        assert!(part_of(12, &(1..4), 3).is_err());
        assert!(part_of(12, &(0..1), 0).is_err());
    }
}
