//! Checks instance groups: kinds, devices and numbers.

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::model_instance_group::Kind;
use galatea_protocol::inference::{ModelConfig, ModelInstanceGroup};

use super::tensors::TENSORRT_PLATFORM;
use crate::Support;
use crate::diagnostic::{Diagnostic, Diagnostics};

/// The maximum number of instances: each has a thread and the backend's memory, so that
/// more are an error.
const INSTANCES_MAX: i64 = 4096;

pub(super) fn check(config: &ModelConfig, support: &Support, diagnostics: &mut Diagnostics) {
    if matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_))) {
        // Instance groups of an ensemble are refused elsewhere.
        return;
    }
    let mut instances: i64 = 0;
    for (index, group) in config.instance_group.iter().enumerate() {
        check_devices(config, group, index, support, diagnostics);
        if config.platform != TENSORRT_PLATFORM && !group.profile.is_empty() {
            let text = format!(
                "{} and platform {}specifies profile field which is only supported for TensorRT \
                 models",
                subject(config, group),
                config.platform
            );
            diagnostics.push(Diagnostic::about(format!("instance_group[{index}].profile"), text));
        }
        let devices = i64::try_from(group.gpus.len()).unwrap_or(INSTANCES_MAX).max(1);
        instances = instances.saturating_add(devices.saturating_mul(i64::from(group.count)));
    }
    if instances > INSTANCES_MAX {
        let text = format!(
            "{instances} instances are too many for {}, at most {INSTANCES_MAX} are allowed",
            config.name
        );
        diagnostics.push(Diagnostic::about("instance_group", text));
    }
}

fn subject(config: &ModelConfig, group: &ModelInstanceGroup) -> String {
    format!("instance group {} of model {}", group.name.escape_debug(), config.name)
}

fn check_devices(
    config: &ModelConfig,
    group: &ModelInstanceGroup,
    index: usize,
    support: &Support,
    diagnostics: &mut Diagnostics,
) {
    let subject = subject(config, group);
    let mut report = |field: &str, text: &str| {
        let path = format!("instance_group[{index}].{field}");
        diagnostics.push(Diagnostic::about(path, format!("{subject} {text}")));
    };
    match group.kind() {
        Kind::Model if !group.gpus.is_empty() => {
            report("gpus", "has kind KIND_MODEL but specifies one or more GPUs");
        }
        Kind::Cpu if !group.gpus.is_empty() => {
            report("gpus", "has kind KIND_CPU but specifies one or more GPUs");
        }
        Kind::Gpu if !support.gpus_available() => {
            report("kind", "has kind KIND_GPU but no GPUs are available");
        }
        Kind::Gpu => {
            let listed: Vec<String> = support.gpus.iter().map(ToString::to_string).collect();
            for gpu in group.gpus.iter().filter(|gpu| !support.gpus.contains(gpu)) {
                let text = format!(
                    "specifies invalid or unsupported gpu id {gpu}. Usable are: {}",
                    listed.join(", ")
                );
                report("gpus", &text);
            }
        }
        Kind::Cpu | Kind::Model => {}
        Kind::Auto => report("kind", "has unexpected kind KIND_AUTO"),
    }
}
