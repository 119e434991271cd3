//! The settings of a scheduler under test.

use galatea_policy::{DynamicSpec, SchedulingMode, SchedulingSpec};

use crate::custom_batching::{CustomBatching, Scheduler};

/// A specification with an optional custom batching strategy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// The specification.
    pub spec: SchedulingSpec,
    /// The strategy; only with the dynamic batcher.
    pub custom: Option<CustomBatching>,
}

/// The dynamic batcher settings of a sequence batcher with the `oldest` strategy.
pub(crate) fn oldest_settings(
    preferred_batch_sizes: &[u32],
    max_queue_delay_ns: u64,
) -> DynamicSpec {
    let preferred_batch_sizes = preferred_batch_sizes.to_vec();
    DynamicSpec { preferred_batch_sizes, max_queue_delay_ns, ..DynamicSpec::default() }
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

    /// Returns true if the scheduler handles sequences.
    pub(crate) fn is_sequential(&self) -> bool {
        matches!(self.spec.mode, SchedulingMode::Sequence(_))
    }
}
