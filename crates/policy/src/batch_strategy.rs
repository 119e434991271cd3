//! Custom batching: a model's own decision on which requests share a batch.

use std::fmt::Debug;

use crate::ids::RequestKey;

/// The place of a request: in the batch that is open, or in a later one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Inclusion {
    /// It joins the batch.
    Include,
    /// The batch closes before it.
    CloseBefore,
}

/// A model's own rule for where a batch ends, in addition to size, shape class and
/// delay. Only with the dynamic batcher.
///
/// For each batch the calls are `open`, `include` for each request in the order of
/// service, and `close`. When the order of the queue changes, the batch is closed and
/// opened again from its first request. The first request of a batch is always
/// included: the result of `include` for it is ignored.
pub trait BatchStrategy: Send + Debug {
    /// A batch opens.
    fn open(&mut self);
    /// Decides about this queued request.
    fn include(&mut self, request: RequestKey) -> Inclusion;
    /// The batch has closed.
    fn close(&mut self);
}

/// The strategy of models without custom batching: a type without values.
#[derive(Copy, Clone, Debug)]
pub enum NoStrategy {}

impl BatchStrategy for NoStrategy {
    fn open(&mut self) {
        match *self {}
    }

    fn include(&mut self, _: RequestKey) -> Inclusion {
        match *self {}
    }

    fn close(&mut self) {
        match *self {}
    }
}
