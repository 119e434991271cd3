//! Fills in the defaults that follow from the configuration alone, so that
//! the configuration endpoint shows what is in force.

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::model_instance_group::Kind;
use galatea_protocol::inference::model_optimization_policy::PinnedMemoryBuffer;
use galatea_protocol::inference::model_version_policy::{Latest, PolicyChoice};
use galatea_protocol::inference::{ModelConfig, ModelInstanceGroup, ModelVersionPolicy};

use crate::Support;

/// Backends for which one CPU instance leaves too much of the machine idle.
const TWO_CPU_INSTANCES: [&str; 2] = ["onnxruntime", "tensorflow"];

pub(crate) fn normalise(message: &mut ModelConfig, support: &Support) {
    if message.version_policy.is_none() {
        let latest = PolicyChoice::Latest(Latest { num_versions: 1 });
        message.version_policy = Some(ModelVersionPolicy { policy_choice: Some(latest) });
    }
    if let Some(SchedulingChoice::DynamicBatching(batching)) = &mut message.scheduling_choice
        && batching.preferred_batch_size.is_empty()
        && message.max_batch_size > 0
    {
        batching.preferred_batch_size.push(message.max_batch_size);
    }
    if matches!(message.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_))) {
        return;
    }
    let optimization = message.optimization.get_or_insert_default();
    let enabled = PinnedMemoryBuffer { enable: true };
    optimization.input_pinned_memory.get_or_insert(enabled);
    optimization.output_pinned_memory.get_or_insert(enabled);
    instance_groups(message, support);
}

fn instance_groups(message: &mut ModelConfig, support: &Support) {
    if message.instance_group.is_empty() {
        let group = ModelInstanceGroup { name: message.name.clone(), ..Default::default() };
        message.instance_group.push(group);
    }
    let cpu_count = if TWO_CPU_INSTANCES.contains(&message.backend.as_str()) { 2 } else { 1 };
    for (index, group) in message.instance_group.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = format!("{}_{index}", message.name);
        }
        if group.kind() == Kind::Auto {
            let usable = group.gpus.iter().all(|gpu| support.gpus.contains(gpu));
            group.set_kind(if support.gpus_available() && usable { Kind::Gpu } else { Kind::Cpu });
        }
        if group.count < 1 {
            group.count = if group.kind() == Kind::Cpu { cpu_count } else { 1 };
        }
        if group.kind() == Kind::Gpu && group.gpus.is_empty() {
            group.gpus.clone_from(&support.gpus);
        }
    }
}
