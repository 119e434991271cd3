//! A batch on its way from the scheduler, which knows requests by their keys, to a backend, which
//! receives the requests themselves.
//!
//! **Shape classes.** Requests share a batch only if their shape classes are equal. [`ShapeClass`]
//! describes what must be equal; [`ShapeClasses`] maps each class to a small integer that the
//! scheduler compares.
//!
//! **Sequences.** The scheduler closes a sequence model's batch as rows. To a backend, controls and
//! states are inputs like any other, so the [`SequenceAssembler`] adds them to each row's request,
//! on the thread that executes the batch. The backend reports new states on the request. A row
//! without a request is padding, and nothing waits for its result.

mod initial_state;
mod sequence_assembler;
mod shape_class;

use galatea_infer::{PendingRequest, SequenceFlags, StateTensor};
use galatea_policy::RequestKey;

pub(crate) use self::sequence_assembler::SequenceAssembler;
pub(crate) use self::shape_class::{ShapeClass, ShapeClasses};

/// A batch as the scheduler closed it, on its way to an instance.
#[derive(Debug)]
pub(crate) enum ClosedBatch {
    /// Requests that are ready to be executed.
    Requests(Vec<PendingRequest>),
    /// The rows of a sequence batch; `None` is padding.
    Rows(Vec<Option<SequenceRow>>),
}

impl ClosedBatch {
    /// The total size of the inputs, excluding the inputs that the sequence assembler adds.
    pub(crate) fn input_byte_size(&self) -> usize {
        let size = |request: &PendingRequest| -> usize {
            request.request().inputs.iter().map(|input| input.data.len()).sum()
        };
        match self {
            Self::Requests(requests) => requests.iter().map(size).sum(),
            Self::Rows(rows) => rows.iter().flatten().map(|row| size(&row.request)).sum(),
        }
    }
}

/// A row of a sequence batch: the next request of a sequence.
#[derive(Debug)]
pub(crate) struct SequenceRow {
    pub(crate) request: PendingRequest,
    pub(crate) key: RequestKey,
    /// The flags that mark this request as the sequence's first or last.
    pub(crate) flags: SequenceFlags,
    /// The states left by the sequence's previous request. Unused if this request begins the
    /// sequence.
    pub(crate) states: Vec<StateTensor>,
}
