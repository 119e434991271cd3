//! Fills in the defaults that depend only on the configuration, so that the configuration endpoint
//! reports the effective values.

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::model_instance_group::Kind;
use galatea_protocol::inference::model_optimization_policy::PinnedMemoryBuffer;
use galatea_protocol::inference::model_sequence_batching::StrategyChoice;
use galatea_protocol::inference::model_version_policy::{Latest, PolicyChoice};
use galatea_protocol::inference::{
    ModelConfig, ModelInstanceGroup, ModelSequenceBatching, ModelVersionPolicy,
};

use crate::SupportedFeatures;

/// Backends with two CPU instances by default, as in Triton.
const TWO_CPU_INSTANCES: [&str; 2] = ["onnxruntime", "tensorflow"];

/// The default idle timeout for a sequence with a slot.
const DEFAULT_SEQUENCE_IDLE_MICROSECONDS: u64 = 1_000_000;

pub(crate) fn normalize(message: &mut ModelConfig, support: &SupportedFeatures) {
    if message.version_policy.is_none() {
        let latest = PolicyChoice::Latest(Latest { num_versions: 1 });
        message.version_policy = Some(ModelVersionPolicy { policy_choice: Some(latest) });
    }
    match &mut message.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            preferred_sizes(&mut batching.preferred_batch_size, message.max_batch_size);
        }
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            sequence_batching(batching, message.max_batch_size);
        }
        Some(SchedulingChoice::EnsembleScheduling(ensembling)) => {
            // As in Triton, the server determines a model's namespace.
            ensembling.step.iter_mut().for_each(|step| step.model_namespace.clear());
            return;
        }
        None => {}
    }
    let optimization = message.optimization.get_or_insert_default();
    let enabled = PinnedMemoryBuffer { enable: true };
    optimization.input_pinned_memory.get_or_insert(enabled);
    optimization.output_pinned_memory.get_or_insert(enabled);
    instance_groups(message, support);
}

fn preferred_sizes(sizes: &mut Vec<i32>, max_batch_size: i32) {
    if sizes.is_empty() && max_batch_size > 0 {
        sizes.push(max_batch_size);
    }
}

fn sequence_batching(batching: &mut ModelSequenceBatching, max_batch_size: i32) {
    if batching.max_sequence_idle_microseconds == 0 {
        batching.max_sequence_idle_microseconds = DEFAULT_SEQUENCE_IDLE_MICROSECONDS;
    }
    // As in Triton, a missing strategy is not filled in.
    if let Some(StrategyChoice::Oldest(oldest)) = &mut batching.strategy_choice {
        preferred_sizes(&mut oldest.preferred_batch_size, max_batch_size);
    }
}

fn instance_groups(message: &mut ModelConfig, support: &SupportedFeatures) {
    if message.instance_group.is_empty() {
        let group = ModelInstanceGroup { name: message.name.clone(), ..Default::default() };
        message.instance_group.push(group);
    }
    let cpu_count = if TWO_CPU_INSTANCES.contains(&message.backend.as_str()) { 2 } else { 1 };
    for (index, group) in message.instance_group.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = format!("{}_{index}", message.name);
        }
        group.set_kind(support.resolved_kind(group));
        if group.count < 1 {
            group.count = if group.kind() == Kind::Cpu { cpu_count } else { 1 };
        }
        if group.kind() == Kind::Gpu && group.gpus.is_empty() {
            group.gpus.clone_from(&support.gpus);
        }
    }
}
