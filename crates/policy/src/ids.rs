//! Identifiers, and the scheduler's view of a request.

use crate::time::Time;
use crate::units::{Length, Rows};

/// A request, numbered by the driver. The keys of all requests that are queued, or
/// that a sequence has in execution, differ.
///
/// The low half is the request's index in the driver's slab and is as unique. It
/// indexes tables of this crate, whose size is therefore that of the driver's slab.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RequestKey(pub u64);

/// An instance of the model, numbered by the driver.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct InstanceId(pub u32);

/// The number of a shape class among those of its model. Requests with equal shape classes
/// may share a batch.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ShapeClassId(pub u32);

/// A sequence, numbered by the driver. A key may be used again after the action
/// [`SequenceEnded`](crate::Action::SequenceEnded).
///
/// The low half is the sequence's index in the driver's slab, as with [`RequestKey`].
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SequenceKey(pub u64);

/// The sequence of a request, and the request's position in it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SequencePosition {
    /// The sequence. A key that the scheduler does not know begins a new one. The driver
    /// looks the key up after a `Tick` for due deadlines, see
    /// [`Event::Enqueue`](crate::Event::Enqueue).
    pub sequence: SequenceKey,
    /// It is the first request of its sequence.
    pub start: bool,
    /// It is the last request of its sequence.
    pub end: bool,
}

/// The scheduler's view of a request: plain data, no tensors.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RequestInfo {
    /// The request's key.
    pub key: RequestKey,
    /// Rows of the first dimension; 0 counts as 1.
    pub batch_size: u32,
    /// Only requests of one shape class share a batch.
    pub shape_class: ShapeClassId,
    /// 1 is served first; 0 or out of range means the default level.
    pub priority: u64,
    /// The request's own timeout from its arrival; 0 is none.
    pub timeout_ns: u64,
    /// With the deadline batcher: when it must be answered; [`Time::MAX`] is without limit.
    pub deadline: Time,
    /// The cost of its execution beside its rows: for padded batches, the size of the dimension
    /// that is padded; with the deadline batcher alone, the number of elements that a row of its
    /// inputs with variable dimensions has. 0 without any.
    pub length: u32,
    /// Its sequence; needed with a sequence batcher and unused without.
    pub sequence: Option<SequencePosition>,
}

impl RequestInfo {
    /// Rows that the request takes up in a batch.
    pub(crate) fn rows(&self) -> Rows {
        Rows(u64::from(self.batch_size.max(1)))
    }

    /// Elements of each of its rows.
    pub(crate) fn row_length(&self) -> Length {
        Length(self.length)
    }
}
