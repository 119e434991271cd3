//! Counts and failure reasons that backends and caches report.

/// The reason why a request failed: the label of the failure metric.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// The scheduler rejected it, or its timeout in the queue expired.
    Rejected,
    /// Its client cancelled it.
    Canceled,
    /// The backend reported an error.
    Backend,
    /// Anything else.
    Other,
}

impl FailureReason {
    /// Every reason, in the order of the metrics.
    pub const ALL: [Self; 4] = [Self::Rejected, Self::Canceled, Self::Backend, Self::Other];

    /// The label's value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Rejected => "REJECTED",
            Self::Canceled => "CANCELED",
            Self::Backend => "BACKEND",
            Self::Other => "OTHER",
        }
    }
}

/// The counters of the server's response cache as a whole.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// The number of bytes that cached responses occupy.
    pub bytes_used: u64,
    /// The maximum number of bytes that cached responses may occupy.
    pub bytes_max: u64,
    /// The number of cached responses.
    pub entries: u64,
    /// Lookups that found a response.
    pub hits: u64,
    /// Lookups that found no response.
    pub misses: u64,
    /// Responses removed to make room for new ones.
    pub evictions: u64,
    /// The total time spent on lookups, in nanoseconds.
    pub lookup_ns: u64,
    /// The total time spent on insertions, in nanoseconds.
    pub insertion_ns: u64,
}

/// Memory of one kind that a model uses.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The kind of memory.
    pub kind: MemoryUsageKind,
    /// The instance of that kind, such as the number of a GPU.
    pub id: i64,
    /// The number of bytes.
    pub byte_size: u64,
}

/// The kind of memory that a model uses.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryUsageKind {
    /// CPU memory.
    Cpu,
    /// CPU memory that is pinned for transfers to a device.
    CpuPinned,
    /// GPU memory.
    Gpu,
}

impl MemoryUsageKind {
    /// The name that clients see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::CpuPinned => "CPU_PINNED",
            Self::Gpu => "GPU",
        }
    }
}
