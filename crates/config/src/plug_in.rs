//! A plug-in backend's view of a configuration that isn't final yet, and the parts that the backend
//! may change.

use galatea_protocol::inference::model_instance_group::Kind;
use galatea_protocol::inference::{ModelInstanceGroup, ModelParameter};

use crate::spec::InstanceKind;
use crate::{ConfigDraft, SupportedFeatures, normalize};

/// Instances that a backend prefers if the configuration has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferredInstances {
    /// The device kind; `None` for the server's default.
    pub kind: Option<InstanceKind>,
    /// The number of instances; 0 for the server's default.
    pub count: u32,
    /// The GPUs; empty for any.
    pub gpus: Vec<i32>,
}

impl ConfigDraft {
    /// The backend library that the configuration names; empty for the default.
    #[must_use]
    pub fn runtime(&self) -> &str {
        &self.message().runtime
    }

    /// Adds a parameter with this value, unless the configuration already has it.
    pub fn set_missing_parameter(&mut self, key: &str, text: &str) {
        let parameters = &mut self.message_mut().parameters;
        if !parameters.contains_key(key) {
            let parameter = ModelParameter { string_value: text.to_owned() };
            parameters.insert(key.to_owned(), parameter);
        }
    }

    /// Adds the parameters of another configuration that this one lacks.
    pub fn add_missing_parameters(&mut self, other: &Self) {
        for (key, parameter) in &other.message().parameters {
            self.set_missing_parameter(key, &parameter.string_value);
        }
    }

    /// The current configuration as JSON, in the form of the configuration endpoint, with the
    /// defaults that depend only on the configuration.
    #[must_use]
    pub fn normalized_json(&self, support: &SupportedFeatures) -> String {
        let mut message = self.message().clone();
        normalize::normalize(&mut message, support);
        galatea_config_message::model_config_to_json(&message)
    }

    /// Merges a completed copy of this configuration: the batch size, the inputs and outputs, the
    /// decoupled setting, and the scheduler if none was selected. As in Triton, other fields are
    /// ignored.
    ///
    /// # Errors
    ///
    /// Returns an error if the copy has a different scheduler.
    pub fn merge_completed(&mut self, completed: &Self) -> Result<(), String> {
        let (from, to) = (completed.message(), self.message_mut());
        match (&to.scheduling_choice, &from.scheduling_choice) {
            (None, choice) => to.scheduling_choice.clone_from(choice),
            (Some(chosen), Some(other))
                if std::mem::discriminant(chosen) == std::mem::discriminant(other) => {}
            (Some(_), _) => {
                return Err(String::from(
                    "the scheduling choice of a configuration can't be changed when it is \
                     completed",
                ));
            }
        }
        to.max_batch_size = from.max_batch_size;
        to.input.clone_from(&from.input);
        to.output.clone_from(&from.output);
        if let Some(policy) = &from.model_transaction_policy {
            to.model_transaction_policy.get_or_insert_default().decoupled = policy.decoupled;
        }
        self.note_provided();
        Ok(())
    }

    /// Fills in the instances that a backend prefers: adds a group if there is none, and sets the
    /// counts of groups without one.
    pub fn apply_preferred_instances(
        &mut self,
        preferred: &[PreferredInstances],
        support: &SupportedFeatures,
    ) {
        let message = self.message_mut();
        let usable = preferred
            .iter()
            .find(|one| one.kind != Some(InstanceKind::Gpu) || support.gpus_available());
        if let (true, Some(usable)) = (message.instance_group.is_empty(), usable) {
            message.instance_group.push(group(&message.name, usable, support));
        }
        for group in &mut message.instance_group {
            let kind = support.resolved_kind(group);
            for same in preferred.iter().filter(|one| preferred_kind(one) == kind) {
                fill_in(group, kind, same, support);
            }
        }
    }
}

/// Fills in the fields that a group of this kind lacks, from a preferred group of the same kind.
fn fill_in(
    group: &mut ModelInstanceGroup,
    kind: Kind,
    same: &PreferredInstances,
    support: &SupportedFeatures,
) {
    if kind == Kind::Gpu && group.gpus.is_empty() && !same.gpus.is_empty() {
        group.gpus = support.usable(&same.gpus).collect();
        if group.gpus.is_empty() {
            return;
        }
    }
    if group.count < 1 && same.count > 0 {
        group.count = i32::try_from(same.count).unwrap_or(i32::MAX);
    }
}

fn preferred_kind(preferred: &PreferredInstances) -> Kind {
    match preferred.kind {
        None => Kind::Auto,
        Some(InstanceKind::Cpu) => Kind::Cpu,
        Some(InstanceKind::Gpu) => Kind::Gpu,
        Some(InstanceKind::Model) => Kind::Model,
    }
}

fn group(
    name: &str,
    preferred: &PreferredInstances,
    support: &SupportedFeatures,
) -> ModelInstanceGroup {
    let kind = preferred_kind(preferred);
    let mut group = ModelInstanceGroup {
        name: name.to_owned(),
        count: i32::try_from(preferred.count).unwrap_or(i32::MAX),
        gpus: match kind {
            Kind::Gpu => support.usable(&preferred.gpus).collect(),
            // If any preferred GPU is missing, this becomes a CPU group without devices.
            Kind::Auto if support.are_usable(&preferred.gpus) => preferred.gpus.clone(),
            Kind::Auto | Kind::Cpu | Kind::Model => Vec::new(),
        },
        ..ModelInstanceGroup::default()
    };
    group.set_kind(kind);
    group
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::read_config;

    fn draft(text: &str) -> ConfigDraft {
        let mut draft = read_config("config.pbtxt", text).unwrap();
        draft.message_mut().backend = String::from("b");
        draft.resolve_name_and_backend("m", &[]).unwrap();
        draft
    }

    fn groups(draft: &ConfigDraft) -> Vec<(String, Kind, i32)> {
        let groups = draft.message().instance_group.iter();
        groups.map(|group| (group.name.clone(), group.kind(), group.count)).collect()
    }

    #[test]
    fn merging_a_completed_copy_changes_only_permitted_fields() {
        let mut original = draft("parameters { key: 'a' value { string_value: '1' } }");
        let completed = draft(
            "max_batch_size: 3 input { name: 'I' data_type: TYPE_FP32 dims: 1 } \
             output { name: 'O' data_type: TYPE_FP32 dims: 1 } dynamic_batching { } \
             model_transaction_policy { decoupled: true } default_model_filename: 'x'",
        );
        original.merge_completed(&completed).unwrap();
        let message = original.message();
        assert_eq!((message.max_batch_size, message.input.len(), message.output.len()), (3, 1, 1));
        assert!(
            original.scheduling_is_set() && message.model_transaction_policy.unwrap().decoupled
        );
        assert_eq!((message.default_model_filename.as_str(), message.parameters.len()), ("", 1));
        original.merge_completed(&completed).unwrap();
        assert!(original.merge_completed(&draft("")).is_err());
        assert!(original.merge_completed(&draft("sequence_batching { }")).is_err());
    }

    #[test]
    fn preferred_instances_fill_in_missing_settings() {
        let gpu = PreferredInstances { kind: Some(InstanceKind::Gpu), count: 9, gpus: vec![0] };
        let model = PreferredInstances { kind: Some(InstanceKind::Model), count: 2, gpus: vec![] };
        let cpu = PreferredInstances { kind: Some(InstanceKind::Cpu), count: 3, gpus: vec![] };
        let check =
            |text: &str, preferred: &[PreferredInstances], expected: &[(&str, Kind, i32)]| {
                let mut draft = draft(text);
                draft.apply_preferred_instances(preferred, &SupportedFeatures::default());
                let expected: Vec<(String, Kind, i32)> = expected
                    .iter()
                    .map(|(name, kind, count)| ((*name).into(), *kind, *count))
                    .collect();
                assert_eq!(groups(&draft), expected, "{text}");
            };
        check("", &[], &[]);
        check("", std::slice::from_ref(&gpu), &[]);
        check("", &[gpu.clone(), model.clone(), cpu.clone()], &[("m", Kind::Model, 2)]);
        check("instance_group { }", &[gpu, cpu.clone()], &[("", Kind::Auto, 3)]);
        check("instance_group { count: 1 }", &[cpu], &[("", Kind::Auto, 1)]);
        check("instance_group { kind: KIND_CPU }", &[model], &[("", Kind::Cpu, 0)]);
    }

    #[test]
    fn the_json_of_a_draft_has_the_defaults() {
        let json = draft("runtime: 'r'").normalized_json(&SupportedFeatures::default());
        assert!(json.contains("\"instance_group\":[{") && json.contains("\"KIND_CPU\""), "{json}");
        assert_eq!(draft("runtime: 'r'").runtime(), "r");
    }
}
