//! Custom batching: a model decides for itself which requests share a batch.

use std::fmt::Debug;

use crate::ids::RequestKey;

/// The placement of a request: in the open batch or in a later one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BatchInclusion {
    /// The request joins the batch.
    Include,
    /// The batch closes before the request.
    CloseBefore,
}

/// A model's own rule for ending batches, in addition to size, shape class and delay. Only the
/// dynamic batcher supports it.
///
/// For each batch, the scheduler calls `open`, then `include` for each request in service order,
/// and finally `close`. If the queue order changes, the batch is closed and reopened from its first
/// request. The first request of a batch is always included: the result of `include` for it is
/// ignored.
pub trait BatchStrategy: Send + Debug {
    /// Opens a batch.
    fn open(&mut self);
    /// Decides whether a queued request joins the batch.
    fn include(&mut self, request: RequestKey) -> BatchInclusion;
    /// Closes the batch.
    fn close(&mut self);
}

/// The strategy type for models without custom batching. It is uninhabited.
#[derive(Copy, Clone, Debug)]
pub enum NoBatchStrategy {}

impl BatchStrategy for NoBatchStrategy {
    fn open(&mut self) {
        match *self {}
    }

    fn include(&mut self, _: RequestKey) -> BatchInclusion {
        match *self {}
    }

    fn close(&mut self) {
        match *self {}
    }
}
