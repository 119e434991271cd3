//! The settings of a scheduler under test.

use galatea_policy::{DynamicBatcherSpec, SchedulingMode, SchedulingSpec};

use crate::custom_batching::{Scheduler, WeightLimitBatching};

/// A specification with an optional custom batching strategy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchedulerSetup {
    /// The specification.
    pub spec: SchedulingSpec,
    /// The strategy; only with the dynamic batcher.
    pub custom: Option<WeightLimitBatching>,
}

/// Returns the dynamic batcher settings of a sequence batcher with the `oldest` strategy.
pub(crate) fn oldest_settings(
    preferred_batch_sizes: &[u32],
    max_queue_delay_ns: u64,
) -> DynamicBatcherSpec {
    let preferred_batch_sizes = preferred_batch_sizes.to_vec();
    DynamicBatcherSpec {
        preferred_batch_sizes,
        max_queue_delay_ns,
        ..DynamicBatcherSpec::default()
    }
}

impl From<SchedulingSpec> for SchedulerSetup {
    fn from(spec: SchedulingSpec) -> Self {
        SchedulerSetup { spec, custom: None }
    }
}

impl SchedulerSetup {
    pub(crate) fn scheduler(&self) -> Scheduler {
        let strategy = self.custom.map(WeightLimitBatching::strategy);
        Scheduler::with_batch_strategy(self.spec.clone(), strategy)
    }

    /// Returns true if the scheduler handles sequences.
    pub(crate) fn is_sequential(&self) -> bool {
        matches!(self.spec.mode, SchedulingMode::Sequence(_))
    }
}
