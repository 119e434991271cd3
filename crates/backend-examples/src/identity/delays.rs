//! Delays that a model's parameters request.

use std::time::Duration;

use galatea_config::ModelSpec;
use galatea_infer::Status;

use crate::checks::{integer_parameter, refused};

/// The delays of a model.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delays {
    execution_ms: u64,
    instance_multiplier: u64,
    pub(crate) creation: Duration,
}

impl Delays {
    pub(crate) fn parse(spec: &ModelSpec) -> Result<Self, Status> {
        let parameter = |key| integer_parameter(spec, key).map_err(|reason| refused(spec, &reason));
        Ok(Self {
            execution_ms: parameter("execute_delay_ms")?,
            instance_multiplier: parameter("instance_wise_delay_multiplier")?,
            creation: Duration::from_secs(parameter("creation_delay_sec")?),
        })
    }

    /// Returns true if executions sleep.
    pub(crate) const fn delay_execution(&self) -> bool {
        self.execution_ms > 0
    }

    /// The time that instance number `instance` sleeps during each execution.
    pub(crate) fn execution(&self, instance: u64) -> Duration {
        let times = self.instance_multiplier.saturating_mul(instance).max(1);
        Duration::from_millis(self.execution_ms.saturating_mul(times))
    }
}
