//! The GPUs that a configuration names.

use std::collections::BTreeMap;

use galatea_protocol::inference::model_instance_group::Kind;

use crate::{ConfigDraft, SupportedFeatures};

impl ConfigDraft {
    /// Returns the number of instances on each GPU that the configuration names: by a group of
    /// `KIND_GPU`, or by a group without a kind that lists GPUs. Other groups may be on GPUs too, as
    /// their backend decides.
    #[must_use]
    pub fn named_gpu_instances(&self, support: &SupportedFeatures) -> BTreeMap<i32, u32> {
        let mut instances: BTreeMap<i32, u32> = BTreeMap::new();
        for group in &self.message().instance_group {
            let is_named = group.kind() == Kind::Gpu || !group.gpus.is_empty();
            if !is_named || support.resolved_kind(group) != Kind::Gpu {
                continue;
            }
            let gpus = if group.gpus.is_empty() { &support.gpus } else { &group.gpus };
            let count = u32::try_from(group.count).unwrap_or(0).max(1);
            for gpu in gpus {
                let sum = instances.entry(*gpu).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        instances
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::read_config;

    fn check(text: &str, expected: &[(i32, u32)]) {
        let draft = read_config("config.pbtxt", text).unwrap();
        let support = SupportedFeatures { gpus: vec![0, 1], ..SupportedFeatures::default() };
        let found: Vec<(i32, u32)> = draft.named_gpu_instances(&support).into_iter().collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn groups_on_gpus_are_counted() {
        check("", &[]);
        check("instance_group { count: 3 }", &[]);
        check("instance_group { kind: KIND_CPU }", &[]);
        check("instance_group { kind: KIND_GPU }", &[(0, 1), (1, 1)]);
        check("instance_group { kind: KIND_GPU gpus: 1 count: 2 }", &[(1, 2)]);
        check("instance_group { gpus: 0 } instance_group { gpus: 0 count: 4 }", &[(0, 5)]);
        // A group without a kind whose GPUs don't exist isn't on GPUs.
        check("instance_group { gpus: 7 }", &[]);
    }
}
