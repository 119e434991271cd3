//! The current use of a version, read from counts that its requests change anyway.

use galatea_policy::InstanceStatus;
use galatea_stdx::len64;

use super::LoadedModel;

/// The current use of a version.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionUse {
    /// The number of queued requests.
    pub queued: u64,
    /// The number of instances that execute a batch.
    pub executing: u64,
    /// The number of live sequences.
    pub sequences: u64,
    /// The number of requests that have ended since the version was loaded.
    pub finished: u64,
}

impl LoadedModel {
    /// Reads the version's current use.
    #[must_use]
    pub fn current_use(&self) -> VersionUse {
        let status = self.dispatcher.scheduler_status();
        let is_executing = |lane: &&InstanceStatus| !matches!(lane, InstanceStatus::Free { .. });
        let executing = status.lanes.iter().filter(is_executing).count();
        let sequences = status.sequences.map_or(0, |sequences| {
            sequences.taken_slots.saturating_add(len64(sequences.backlogged))
        });
        let durations = self.host.statistics.durations();
        VersionUse {
            queued: len64(self.dispatcher.queued()),
            executing: len64(executing),
            sequences,
            finished: durations.success.count.saturating_add(durations.fail.count),
        }
    }

    /// The names of the models that execute the version's steps, if it is an ensemble.
    pub fn composing_model_names(&self) -> impl Iterator<Item = &str> {
        let mut names: Vec<&str> = match &self.spec.scheduling {
            galatea_config::SchedulingChoice::Ensemble(ensemble) => {
                ensemble.steps.iter().map(|step| step.model_name.as_str()).collect()
            }
            galatea_config::SchedulingChoice::Default
            | galatea_config::SchedulingChoice::Dynamic(_)
            | galatea_config::SchedulingChoice::Sequence(_) => Vec::new(),
        };
        names.sort_unstable();
        names.dedup();
        names.into_iter()
    }
}
