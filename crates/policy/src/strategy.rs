//! Custom batching: a model's own say in which requests share a batch.

use std::fmt::Debug;

use crate::ids::RequestKey;

/// Whether a request may join the batch that is open.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Inclusion {
    /// It joins.
    Include,
    /// The batch closes before it.
    CloseBefore,
}

/// A model's own rule for where a batch ends, beside size, batch key and delay,
/// which go on to hold. Only with the dynamic batcher.
///
/// The calls come in this order: `open`, `include` for each candidate in the
/// order of service, `close`; and so on with the next batch. A batch that is
/// looked at again from its start, because the order of the queue changed, is
/// closed and opened anew. The first request of a batch always runs in it: what
/// `include` says of it decides nothing.
pub trait BatchStrategy: Send + Debug {
    /// A batch opens.
    fn open(&mut self);
    /// May this queued request join it?
    fn include(&mut self, request: RequestKey) -> Inclusion;
    /// The batch has closed.
    fn close(&mut self);
}

/// The rule of models that have none: there is no such value.
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
