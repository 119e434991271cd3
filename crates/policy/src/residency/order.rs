//! The order in which demands are met.

/// The position of a demand in the queue.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct DemandOrder {
    pub(crate) class: DemandClass,
    pub(crate) number: u64,
}

/// The class of a demand, in order of precedence.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum DemandClass {
    /// A client loads the model explicitly, or a request in execution waits for it. The demand
    /// doesn't wait until models that have just been loaded may be evicted.
    Urgent,
    /// Requests of clients need the model.
    Normal,
}
