//! Counters of a version that Triton lacks, as metric families.

use galatea_control::{CounterFamily, CounterReadings, ModelMeasurements};

use crate::dispatcher::SchedulingCounts;
use crate::statistics::Statistics;

/// All families, in the order of the metrics. Requests that share an execution are counted only for
/// a model whose requests may do so.
pub(super) fn families(
    statistics: &Statistics,
    scheduling: &SchedulingCounts,
    coalesces: bool,
) -> Vec<CounterFamily> {
    let mut unexecuted = vec![("invalid", statistics.invalid())];
    unexecuted.extend(scheduling.unexecuted());
    let mut families = vec![
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
    ];
    if coalesces {
        families.push(CounterFamily {
            name: ModelMeasurements::COALESCED,
            help: "Requests that shared the execution of an equal request before them",
            counts: CounterReadings::Total(statistics.coalesced_count()),
        });
    }
    families
}
