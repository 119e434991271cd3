//! The records of a traced request.

use std::time::Duration;

use galatea_tensor::DataType;

/// A record. `trace` is a trace number, unique within the process. Each client request has a trace,
/// and so does each request made to serve it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// A trace begins. Its model is known by then.
    Begin { trace: u64, subject: Subject },
    /// A trace passed a trace point.
    Time { trace: u64, activity: TraceActivity, ns: u64 },
    /// A tensor was recorded in a trace.
    Tensor { trace: u64, activity: &'static str, tensor: RecordedTensor },
}

/// The subject of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The number of the parent trace; 0 means none.
    pub(crate) parent: u64,
    pub(crate) model_name: String,
    pub(crate) model_version: i64,
    pub(crate) request_id: String,
    /// The time from arrival to deadline, if the request has a deadline.
    pub(crate) deadline: Option<Duration>,
    /// The identifier that collectors use for the trace.
    pub(crate) span: [u8; 8],
}

/// A trace point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TraceActivity {
    /// A point in the door.
    Door(&'static str),
    /// A point in the server.
    Point(&'static str),
    /// A point named by a backend.
    Custom(Box<str>),
}

impl TraceActivity {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Door(name) | Self::Point(name) => name,
            Self::Custom(name) => name,
        }
    }
}

/// A copy of a tensor, needed because the source may be freed or modified before the copy is
/// written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecordedTensor {
    pub(crate) name: String,
    pub(crate) datatype: DataType,
    pub(crate) dims: Vec<i64>,
    pub(crate) data: Vec<u8>,
}

impl Event {
    /// The number of the trace that the record belongs to.
    pub(crate) const fn trace(&self) -> u64 {
        match self {
            Self::Begin { trace, .. } | Self::Time { trace, .. } | Self::Tensor { trace, .. } => {
                *trace
            }
        }
    }

    /// The memory that the record uses, in bytes.
    pub(crate) fn byte_size(&self) -> usize {
        let texts = match self {
            Self::Begin { subject, .. } => {
                subject.model_name.len().saturating_add(subject.request_id.len())
            }
            Self::Time { activity: TraceActivity::Door(_) | TraceActivity::Point(_), .. } => 0,
            Self::Time { activity: TraceActivity::Custom(name), .. } => name.len(),
            Self::Tensor { tensor, .. } => tensor
                .data
                .len()
                .saturating_add(tensor.name.len())
                .saturating_add(tensor.dims.len().saturating_mul(size_of::<i64>())),
        };
        texts.saturating_add(size_of::<Self>())
    }
}
