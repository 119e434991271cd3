//! Names of things, and what the scheduler sees of a request.

/// A request, named by the driver. No two queued requests have equal keys.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RequestKey(pub u64);

/// An instance of the model, named by the driver.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct InstanceId(pub u32);

/// What requests must have in common to share a batch, interned per model.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BatchKey(pub u32);

/// What the scheduler knows of a request: plain data, no tensors.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The request's name.
    pub key: RequestKey,
    /// Rows of the first dimension; 0 counts as 1.
    pub batch_size: u32,
    /// Only requests of equal batch key share a batch.
    pub batch_key: BatchKey,
    /// 1 is served first; 0 or out of range means the default level.
    pub priority: u64,
    /// The request's own timeout from its arrival; 0 is none.
    pub timeout_ns: u64,
}

impl Ticket {
    /// Rows that the request takes up in a batch.
    pub(crate) fn rows(&self) -> u32 {
        self.batch_size.max(1)
    }
}
