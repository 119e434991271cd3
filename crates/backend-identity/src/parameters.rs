//! What a model's parameters ask for.

use std::time::Duration;

use galatea_config::ModelSpec;
use galatea_infer::Status;

/// The delays of a model.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    execute_delay_ms: u64,
    delay_multiplier: u64,
    pub(crate) creation_delay: Duration,
}

impl Parameters {
    pub(crate) fn parse(spec: &ModelSpec) -> Result<Self, Status> {
        if spec.parameters.get("enable_custom_tracing").is_some_and(|value| value == "true") {
            return Err(Status::unsupported(format!(
                "model '{}': parameter 'enable_custom_tracing' is not supported: this server's \
                 identity backend makes no spans of its own",
                spec.name
            )));
        }
        Ok(Self {
            execute_delay_ms: number(spec, "execute_delay_ms")?,
            delay_multiplier: number(spec, "instance_wise_delay_multiplier")?,
            creation_delay: Duration::from_secs(number(spec, "creation_delay_sec")?),
        })
    }

    /// Whether executing may take time.
    pub(crate) const fn may_sleep(&self) -> bool {
        self.execute_delay_ms > 0
    }

    /// How long instance number `instance` sleeps in each execution.
    pub(crate) fn delay(&self, instance: u64) -> Duration {
        let times = self.delay_multiplier.saturating_mul(instance).max(1);
        Duration::from_millis(self.execute_delay_ms.saturating_mul(times))
    }
}

/// The parameter's value; 0 if it isn't given.
fn number(spec: &ModelSpec, key: &str) -> Result<u64, Status> {
    let Some(text) = spec.parameters.get(key) else { return Ok(0) };
    let number: Option<u32> = text.trim().parse().ok();
    number.map(u64::from).ok_or_else(|| {
        Status::invalid_argument(format!(
            "model '{}': parameter '{key}' is '{text}', which is not a number from 0 to {}",
            spec.name,
            u32::MAX
        ))
    })
}
