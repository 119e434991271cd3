//! Documents that cover all models or have no length limit, and are not rendered on I/O threads.

use bytes::Bytes;
use galatea_codec::documents::encode_statistics_json;
use galatea_control::ServerControl;
use galatea_infer::{AccessPass, Status, api};

/// A document that takes long to render.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Document {
    /// The statistics of all models.
    Statistics { pass: AccessPass<api::Statistics> },
    /// A report on a model.
    Report { pass: AccessPass<api::Statistics>, name: String, model: String, version: Option<i64> },
}

impl Document {
    /// Renders the current text of the document.
    pub(crate) fn render(&self, control: &dyn ServerControl) -> Result<Bytes, Status> {
        match self {
            Self::Statistics { pass } => {
                control.statistics(*pass, None, None).map(|all| encode_statistics_json(&all).into())
            }
            Self::Report { pass, name, model, version } => {
                control.model_report(*pass, model, *version, name).map(Bytes::from)
            }
        }
    }
}
