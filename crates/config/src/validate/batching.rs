//! The batch size and the dynamic batcher.

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::model_queue_policy::TimeoutAction;
use galatea_protocol::inference::{ModelConfig, ModelDynamicBatching, ModelQueuePolicy};

use crate::diagnostic::Diagnostic;
use crate::identity::is_ensemble;

pub(super) fn check(config: &ModelConfig, found: &mut Vec<Diagnostic>) {
    let name = &config.name;
    if config.max_batch_size < 0 {
        let text = format!("'max_batch_size' must be non-negative value for {name}");
        found.push(Diagnostic::about("max_batch_size", text));
    }
    match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            check_preferred(config, batching, found);
            check_priorities(name, batching, found);
            check_ordering(name, batching, found);
        }
        Some(SchedulingChoice::EnsembleScheduling(_)) => return,
        Some(SchedulingChoice::SequenceBatching(_)) | None => {}
    }
    if is_ensemble(&config.platform) {
        let text = format!(
            "ensemble scheduling must be set for ensemble {name} whose platform is {}",
            config.platform
        );
        found.push(Diagnostic::about("ensemble_scheduling", text));
    }
}

fn check_preferred(
    config: &ModelConfig,
    batching: &ModelDynamicBatching,
    found: &mut Vec<Diagnostic>,
) {
    for (index, size) in batching.preferred_batch_size.iter().enumerate() {
        let problem = if *size <= 0 {
            "must be positive"
        } else if *size > config.max_batch_size {
            "must be <= max batch size"
        } else {
            continue;
        };
        let text = format!("dynamic batching preferred size {problem} for {}", config.name);
        let path = format!("dynamic_batching.preferred_batch_size[{index}]");
        found.push(Diagnostic::about(path, text));
    }
}

fn check_priorities(name: &str, batching: &ModelDynamicBatching, found: &mut Vec<Diagnostic>) {
    let levels = batching.priority_levels;
    if levels == 0 {
        return;
    }
    if !(1..=levels).contains(&batching.default_priority_level) {
        let text = format!("default priority level must be in range [1, {levels}] for {name}");
        found.push(Diagnostic::about("dynamic_batching.default_priority_level", text));
    }
    for level in batching.priority_queue_policy.keys() {
        if !(1..=levels).contains(level) {
            let text = format!(
                "priority queue policy must have priority level in range [1, {levels}] for {name}"
            );
            let path = format!("dynamic_batching.priority_queue_policy[{level}]");
            found.push(Diagnostic::about(path, text));
        }
    }
}

fn check_ordering(name: &str, batching: &ModelDynamicBatching, found: &mut Vec<Diagnostic>) {
    if !batching.preserve_ordering {
        return;
    }
    if batching.priority_levels > 1 {
        let text = format!(
            "Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        );
        found.push(Diagnostic::about("dynamic_batching.priority_levels", text));
    }
    let delays = |policy: &ModelQueuePolicy| {
        policy.default_timeout_microseconds != 0 && policy.timeout_action() == TimeoutAction::Delay
    };
    let mut report = |path: String| {
        let text = format!(
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true \
             for {name}"
        );
        found.push(Diagnostic::about(path, text));
    };
    if batching.default_queue_policy.as_ref().is_some_and(delays) {
        report("dynamic_batching.default_queue_policy.timeout_action".to_owned());
    }
    for (level, policy) in &batching.priority_queue_policy {
        if delays(policy) {
            report(format!("dynamic_batching.priority_queue_policy[{level}].timeout_action"));
        }
    }
}
