//! The time at which each model became known.

use std::collections::BTreeMap;

use galatea_openai::ModelEntry;
use galatea_stdx::Lock;

/// The time at which each model became known, in seconds since 1970. Triton's frontend records them
/// when it starts and when it loads a model.
#[derive(Debug, Default)]
pub(super) struct ModelTimes(Lock<BTreeMap<String, u64>>);

impl ModelTimes {
    /// Returns the entries of these models. Other models are forgotten, and the times of new ones
    /// begin now.
    pub(super) fn entries(&self, names: Vec<String>, now_secs: u64) -> Vec<ModelEntry> {
        let mut times = self.0.lock("list the models");
        times.retain(|known, _| names.contains(known));
        let entry = |id: String| {
            let created_secs = *times.entry(id.clone()).or_insert(now_secs);
            ModelEntry { id, created_secs }
        };
        names.into_iter().map(entry).collect()
    }
}
