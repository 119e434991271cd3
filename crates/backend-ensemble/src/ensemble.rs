//! A loaded ensemble.

use std::sync::Arc;

use galatea_backend::{ComposingModels, ModelHost};

use crate::executor::Executor;
use crate::gates::Gates;
use crate::plan::EnsemblePlan;

/// The state that all requests to an ensemble share.
pub(crate) struct Ensemble {
    pub(crate) plan: EnsemblePlan,
    pub(crate) models: Arc<dyn ComposingModels>,
    /// `None` if the number of requests in a step is not limited.
    pub(crate) gates: Option<Arc<Gates>>,
    pub(crate) host: Arc<dyn ModelHost>,
    pub(crate) executor: Arc<Executor>,
}
