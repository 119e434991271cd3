//! The settings of a scheduler under test.

use galatea_policy::{SchedulingMode, SchedulingSpec};

use crate::custom_batching::{CustomBatching, Scheduler};

/// A specification, and perhaps a custom batching strategy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// The specification.
    pub spec: SchedulingSpec,
    /// The strategy; only with the dynamic batcher.
    pub custom: Option<CustomBatching>,
}

impl From<SchedulingSpec> for Setup {
    fn from(spec: SchedulingSpec) -> Self {
        Setup { spec, custom: None }
    }
}

impl Setup {
    pub(crate) fn scheduler(&self) -> Scheduler {
        let strategy = self.custom.map(CustomBatching::strategy);
        Scheduler::with_batch_strategy(self.spec.clone(), strategy)
    }

    /// Returns true if the scheduler keeps sequences.
    pub(crate) fn is_sequential(&self) -> bool {
        matches!(self.spec.mode, SchedulingMode::Sequence(_))
    }
}
