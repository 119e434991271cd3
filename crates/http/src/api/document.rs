//! Documents about all models, or of unbounded length, which are not rendered on I/O threads.

use bytes::Bytes;
use galatea_codec::http::encode_statistics;
use galatea_infer::{ServerControl, Status};

/// A document that takes long to render.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Document {
    /// The statistics of all models.
    Statistics,
    /// What the queues, slots and instances of a model wait for.
    Scheduler { model: String, version: Option<i64> },
}

impl Document {
    /// The text of the document now.
    pub(crate) fn render(&self, control: &dyn ServerControl) -> Result<Bytes, Status> {
        match self {
            Self::Statistics => {
                control.statistics(None, None).map(|all| encode_statistics(&all).into())
            }
            Self::Scheduler { model, version } => {
                control.scheduler_status(model, *version).map(Bytes::from)
            }
        }
    }
}
