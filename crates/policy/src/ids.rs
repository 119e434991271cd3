//! Identifiers, and the scheduler's view of a request.

use crate::time::Time;
use crate::units::{Length, Rows};

/// A request key assigned by the driver. Keys are unique among all requests that are queued or that
/// a sequence is executing.
///
/// The low half is the request's index in the driver's slab and is equally unique. It indexes
/// tables in this crate, so these tables are as large as the driver's slab.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RequestKey(pub u64);

/// An instance of the model. The driver numbers instances.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct InstanceId(pub u32);

/// The number of a shape class within its model. Requests with equal shape classes may share a
/// batch.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ShapeClassId(pub u32);

/// A sequence key assigned by the driver. A key may be reused after the action
/// [`SequenceEnded`](crate::SchedulerAction::SequenceEnded).
///
/// The low half is the sequence's index in the driver's slab, as with [`RequestKey`].
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SequenceKey(pub u64);

/// A request's sequence and its position within that sequence.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SequencePosition {
    /// The sequence. A key that the scheduler doesn't know begins a new one. The driver looks up
    /// the key after a `Tick` for due deadlines; see
    /// [`SchedulerEvent::Enqueue`](crate::SchedulerEvent::Enqueue).
    pub sequence: SequenceKey,
    /// True for the first request of its sequence.
    pub start: bool,
    /// True for the last request of its sequence.
    pub end: bool,
}

/// The scheduler's view of a request: plain data without tensors.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RequestInfo {
    /// The request's key.
    pub key: RequestKey,
    /// The number of rows in the first dimension; 0 counts as 1.
    pub batch_size: u32,
    /// The shape class. Only requests of the same class share a batch.
    pub shape_class: ShapeClassId,
    /// The priority level. Level 1 is served first; 0 or an out-of-range value selects the default
    /// level.
    pub priority: u64,
    /// The request's own timeout from its arrival; 0 means none.
    pub timeout_ns: u64,
    /// The deadline for the response, used by the deadline batcher; [`Time::MAX`] means no limit.
    pub deadline: Time,
    /// The property that, together with the rows, determines the cost of the execution. For padded
    /// batches, this is the size of the padded dimension. With the deadline batcher and no padding,
    /// it is the number of elements per row of the inputs with variable dimensions. 0 if there is
    /// no such dimension.
    pub length: u32,
    /// The request's sequence: required with a sequence batcher, and unused without one.
    pub sequence: Option<SequencePosition>,
}

impl RequestInfo {
    /// Returns the number of rows that the request takes up in a batch.
    pub(crate) fn rows(&self) -> Rows {
        Rows(u64::from(self.batch_size.max(1)))
    }

    /// Returns the number of elements in each row of the request.
    pub(crate) fn row_length(&self) -> Length {
        Length(self.length)
    }
}
