//! Checks instance groups: their kinds, devices and counts.

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::model_instance_group::Kind;
use galatea_protocol::inference::{ModelConfig, ModelInstanceGroup};

use super::tensors::TENSORRT_PLATFORM;
use crate::SupportedFeatures;
use galatea_config_message::{BoundedText, Diagnostic, Diagnostics, bounded};

/// The maximum number of instances: each has a thread and backend memory, so a larger number is a
/// mistake.
const INSTANCES_MAX: i64 = 4096;

pub(super) fn check(
    config: &ModelConfig,
    support: &SupportedFeatures,
    diagnostics: &mut Diagnostics,
) {
    if matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_))) {
        // An ensemble's instance groups are refused elsewhere.
        return;
    }
    let mut instances: i64 = 0;
    for (index, group) in config.instance_group.iter().enumerate() {
        check_devices(config, group, index, support, diagnostics);
        check_profiles(config, group, index, diagnostics);
        let devices = i64::try_from(group.gpus.len()).unwrap_or(INSTANCES_MAX).max(1);
        instances = instances.saturating_add(devices.saturating_mul(i64::from(group.count)));
    }
    if instances > INSTANCES_MAX {
        let text = bounded!(
            "{instances} instances are too many for {}, at most {INSTANCES_MAX} are allowed",
            config.name
        );
        diagnostics.push(|| Diagnostic::about("instance_group", text));
    }
}

fn subject(config: &ModelConfig, group: &ModelInstanceGroup) -> BoundedText {
    bounded!("instance group {} of model {}", group.name.escape_debug(), config.name)
}

/// Checks the profiles, which are numbers that TensorRT's backend uses for selection.
fn check_profiles(
    config: &ModelConfig,
    group: &ModelInstanceGroup,
    index: usize,
    diagnostics: &mut Diagnostics,
) {
    let subject = bounded!("{} and platform {}", subject(config, group), config.platform);
    if config.platform != TENSORRT_PLATFORM {
        if !group.profile.is_empty() {
            let text = bounded!(
                "{subject}specifies profile field which is only supported for TensorRT models"
            );
            diagnostics
                .push(|| Diagnostic::about(bounded!("instance_group[{index}].profile"), text));
        }
        return;
    }
    for (number, profile) in group.profile.iter().enumerate() {
        if let Err(wrong) = check_profile(profile) {
            let text = match wrong {
                WrongProfile::Negative => bounded!(
                    "{subject} specifies invalid profile {}. The field should contain the string \
                     representation of a non-negative integer.",
                    profile.escape_debug()
                ),
                WrongProfile::Empty => "profile name must not be empty".into(),
                WrongProfile::NoNumber => {
                    bounded!("unable to parse '{}': stoi", profile.escape_debug())
                }
            };
            let path = bounded!("instance_group[{index}].profile[{number}]");
            diagnostics.push(|| Diagnostic::about(path, text));
        }
    }
}

enum WrongProfile {
    Empty,
    NoNumber,
    Negative,
}

/// Checks a profile. Like C++'s `stoi`, this reads the digits at the start of the text.
fn check_profile(profile: &str) -> Result<(), WrongProfile> {
    if profile.is_empty() {
        return Err(WrongProfile::Empty);
    }
    let unsigned = profile.trim_ascii_start();
    let (is_negative, digits) = match unsigned.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, unsigned.strip_prefix('+').unwrap_or(unsigned)),
    };
    let end = digits.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    // Triton terminates if the number is too large.
    let number = digits.get(..end).and_then(|digits| digits.parse::<i32>().ok());
    match number {
        None => Err(WrongProfile::NoNumber),
        Some(number) if is_negative && number > 0 => Err(WrongProfile::Negative),
        Some(_) => Ok(()),
    }
}

fn check_devices(
    config: &ModelConfig,
    group: &ModelInstanceGroup,
    index: usize,
    support: &SupportedFeatures,
    diagnostics: &mut Diagnostics,
) {
    let subject = subject(config, group);
    let mut report = |field: &str, text: &str| {
        let path = bounded!("instance_group[{index}].{field}");
        diagnostics.push(|| Diagnostic::about(path, bounded!("{subject} {text}")));
    };
    match group.kind() {
        Kind::Model if !group.gpus.is_empty() => {
            report("gpus", "has kind KIND_MODEL but specifies one or more GPUs");
        }
        Kind::Cpu if !group.gpus.is_empty() => {
            report("gpus", "has kind KIND_CPU but specifies one or more GPUs");
        }
        Kind::Gpu if !support.gpus_available() => {
            let why = support.gpus_refused.as_deref();
            let why = why.map(|why| bounded!(" to it: {why}")).unwrap_or_default();
            report("kind", &bounded!("has kind KIND_GPU but no GPUs are available{why}"));
        }
        Kind::Gpu => {
            let listed: Vec<String> = support.gpus.iter().map(ToString::to_string).collect();
            for gpu in group.gpus.iter().filter(|gpu| !support.gpus.contains(gpu)) {
                let text = bounded!(
                    "specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum \
                     required CUDA compute compatibility of {:.6} are: {}",
                    support.min_compute_capability,
                    listed.join(", ")
                );
                report("gpus", &text);
            }
        }
        Kind::Cpu | Kind::Model => {}
        Kind::Auto => report("kind", "has unexpected kind KIND_AUTO"),
    }
}
