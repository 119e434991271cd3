//! Counters of a version that Triton lacks, as metric families.

use galatea_control::{CounterFamily, CounterReadings, ModelMeasurements};

use crate::dispatcher::SchedulingCounts;
use crate::statistics::Statistics;

/// All families, in the order of the metrics.
pub(super) fn families(
    statistics: &Statistics,
    scheduling: &SchedulingCounts,
) -> Vec<CounterFamily> {
    let mut unexecuted = vec![("invalid", statistics.invalid())];
    unexecuted.extend(scheduling.unexecuted());
    vec![
        CounterFamily {
            name: ModelMeasurements::CLOSED_BATCHES,
            help: "Batches by the reason why they were closed and executed",
            counts: CounterReadings::ByReason(scheduling.closed_batches()),
        },
        CounterFamily {
            name: ModelMeasurements::UNEXECUTED,
            help: "Requests that were refused, expired or cancelled before they were executed",
            counts: CounterReadings::ByReason(unexecuted),
        },
    ]
}
