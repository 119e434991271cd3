//! Activities that a model reports to its requests' traces, if its configuration requests this.

use std::thread::sleep;
use std::time::{Duration, Instant};

use galatea_config::ModelSpec;
use galatea_infer::Trace;

use crate::checks::integer_parameter;

/// The duration of each activity, as in Triton's backend.
const STEP: Duration = Duration::from_millis(100);

/// A model's activities, according to its parameters.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Activities {
    nested_count: u64,
    /// One out of this many nested activities also reports a single activity.
    single_frequency: u64,
}

impl Activities {
    /// Returns `None` if the model shouldn't report activities.
    pub(crate) fn parse(spec: &ModelSpec) -> Result<Option<Self>, String> {
        if spec.parameters.get("enable_custom_tracing").is_none_or(|value| value != "true") {
            return Ok(None);
        }
        let frequency = "single_activity_frequency";
        let single_frequency = match spec.parameters.get(frequency) {
            Some(_) => integer_parameter(spec, frequency)?,
            None => 1,
        };
        if single_frequency == 0 {
            return Err(format!("parameter '{frequency}' must be positive"));
        }
        Ok(Some(Self {
            nested_count: integer_parameter(spec, "nested_span_count")?,
            single_frequency,
        }))
    }

    /// Reports all activities under the names that Triton's backend uses.
    pub(crate) fn report(self, trace: &Trace) {
        let report = |name: &str| trace.record_custom_at(name, Instant::now());
        report("CUSTOM_ACTIVITY_START");
        sleep(STEP);
        report("CUSTOM_ACTIVITY_END");
        report("CUSTOM_SINGLE_ACTIVITY");
        for number in 0..self.nested_count {
            report(&format!("CUSTOM_ACTIVITY{number}_START"));
            sleep(STEP);
            if number % self.single_frequency == 0 {
                report("CUSTOM_SINGLE_ACTIVITY");
            }
        }
        for number in (0..self.nested_count).rev() {
            report(&format!("CUSTOM_ACTIVITY{number}_END"));
        }
    }
}
