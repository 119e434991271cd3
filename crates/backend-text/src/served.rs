//! A loaded model without its instances.

use std::sync::Arc;

use galatea_backend::ModelHost;
use galatea_text::{RunLimits, TextModel};

use crate::network::Network;

/// The parts of a model that its instances share.
pub(crate) struct ServedText {
    pub(crate) text: TextModel,
    pub(crate) network: Network,
    /// The number of values of the output for each row.
    pub(crate) width: usize,
    pub(crate) limits: RunLimits,
    pub(crate) model_name: Arc<str>,
    pub(crate) output_name: Arc<str>,
    pub(crate) host: Arc<dyn ModelHost>,
}
