//! Checks the batch size, the schedulers and the response cache.

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::model_queue_policy::TimeoutAction;
use galatea_protocol::inference::model_sequence_batching::StrategyChoice;
use galatea_protocol::inference::{
    ModelConfig, ModelDynamicBatching, ModelQueuePolicy, ModelSequenceBatching,
};

use super::{controls, ensemble, sequence_batching, states};
use crate::BATCH_STRATEGY;
use crate::identity::is_ensemble;
use galatea_config_message::{BoundedText, Diagnostic, Diagnostics, bounded};

pub(super) fn check(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    let name = &config.name;
    if config.max_batch_size < 0 {
        let text = bounded!("'max_batch_size' must be non-negative value for {name}");
        diagnostics.push(|| Diagnostic::at_poll("max_batch_size", text));
    }
    match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            let subject = PreferredSizes {
                what: "dynamic batching preferred size",
                path: "dynamic_batching.preferred_batch_size",
            };
            check_preferred(config, &subject, &batching.preferred_batch_size, diagnostics);
            check_priorities(name, batching, diagnostics);
            check_ordering(name, batching, diagnostics);
        }
        Some(SchedulingChoice::EnsembleScheduling(ensembling)) => {
            ensemble::check(config, ensembling, diagnostics);
        }
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            check_sequences(config, batching, diagnostics);
        }
        None => {}
    }
    check_cache(config, diagnostics);
    let is_ensembling =
        matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_)));
    if is_ensemble(&config.platform) && !is_ensembling {
        let text = bounded!(
            "ensemble scheduling must be set for ensemble {name} whose platform is {}",
            config.platform
        );
        diagnostics.push(|| Diagnostic::at_poll("ensemble_scheduling", text));
    }
}

/// The names of a preferred-size list in diagnostics.
struct PreferredSizes {
    what: &'static str,
    path: &'static str,
}

fn check_preferred(
    config: &ModelConfig,
    subject: &PreferredSizes,
    sizes: &[i32],
    diagnostics: &mut Diagnostics,
) {
    for (index, size) in sizes.iter().enumerate() {
        let problem = if *size <= 0 {
            "must be positive"
        } else if *size > config.max_batch_size {
            "must be <= max batch size"
        } else {
            continue;
        };
        let text = bounded!("{} {problem} for {}", subject.what, config.name);
        let path = bounded!("{}[{index}]", subject.path);
        // The backend may still set a missing batch size.
        diagnostics.push(|| match config.max_batch_size {
            0 if *size > 0 => Diagnostic::about(path, text),
            _ => Diagnostic::at_poll(path, text),
        });
    }
}

fn check_sequences(
    config: &ModelConfig,
    batching: &ModelSequenceBatching,
    diagnostics: &mut Diagnostics,
) {
    controls::check(&config.name, batching, diagnostics);
    states::check(config, batching, diagnostics);
    match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => {
            let subject = PreferredSizes {
                what: "sequence batching preferred batch size",
                path: "sequence_batching.oldest.preferred_batch_size",
            };
            check_preferred(config, &subject, &oldest.preferred_batch_size, diagnostics);
        }
        Some(StrategyChoice::Direct(direct)) => {
            check_utilization(&config.name, direct.minimum_slot_utilization, diagnostics);
        }
        None => {}
    }
    if config.parameters.contains_key(BATCH_STRATEGY) {
        let text = bounded!(
            "{BATCH_STRATEGY} cannot be specified with sequence batcher, using default batching \
             strategy"
        );
        diagnostics.push(|| Diagnostic::about(bounded!("parameters[\"{BATCH_STRATEGY}\"]"), text));
    }
}

fn check_utilization(name: &str, utilization: f32, diagnostics: &mut Diagnostics) {
    const PATH: &str = "sequence_batching.direct.minimum_slot_utilization";
    if (0.0..=1.0).contains(&utilization) {
        return;
    }
    let text = bounded!(
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}"
    );
    if utilization.is_nan() {
        return diagnostics.push(|| Diagnostic::new_tolerated(PATH, text));
    }
    // The most frequent mistake is a percentage.
    let percentage =
        (2.0..=100.0).contains(&utilization).then(|| (utilization / 100.0).to_string());
    diagnostics.push(|| Diagnostic {
        suggestion: percentage.as_deref().map(BoundedText::truncated),
        ..Diagnostic::at_poll(PATH, text)
    });
}

/// Checks the response cache, which stores one response per request, independent of earlier
/// requests.
fn check_cache(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    if !config.response_cache.as_ref().is_some_and(|cache| cache.enable) {
        return;
    }
    let decoupled = config.model_transaction_policy.as_ref().is_some_and(|p| p.decoupled);
    let reason = if sequence_batching(config).is_some() {
        "with sequence batching scheduler"
    } else if decoupled {
        "with 'decoupled' transaction policy"
    } else {
        return;
    };
    let text = bounded!(
        "Response Cache does not currently support model {} {reason}. Please disable the response \
         cache.",
        config.name
    );
    diagnostics.push(|| Diagnostic::at_poll("response_cache.enable", text));
}

fn check_priorities(name: &str, batching: &ModelDynamicBatching, diagnostics: &mut Diagnostics) {
    let levels = batching.priority_levels;
    if levels == 0 {
        return;
    }
    if !(1..=levels).contains(&batching.default_priority_level) {
        let text = bounded!("default priority level must be in range [1, {levels}] for {name}");
        diagnostics.push(|| Diagnostic::at_poll("dynamic_batching.default_priority_level", text));
    }
    for level in batching.priority_queue_policy.keys() {
        if !(1..=levels).contains(level) {
            let text = bounded!(
                "priority queue policy must have priority level in range [1, {levels}] for {name}"
            );
            let path = bounded!("dynamic_batching.priority_queue_policy[{level}]");
            diagnostics.push(|| Diagnostic::at_poll(path, text));
        }
    }
}

fn check_ordering(name: &str, batching: &ModelDynamicBatching, diagnostics: &mut Diagnostics) {
    if !batching.preserve_ordering {
        return;
    }
    if batching.priority_levels > 1 {
        let text = bounded!(
            "Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        );
        diagnostics.push(|| Diagnostic::at_poll("dynamic_batching.priority_levels", text));
    }
    let delays = |policy: &ModelQueuePolicy| {
        policy.default_timeout_microseconds != 0 && policy.timeout_action() == TimeoutAction::Delay
    };
    let mut report = |path: BoundedText| {
        let text = bounded!(
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true \
             for {name}"
        );
        diagnostics.push(|| Diagnostic::at_poll(path, text));
    };
    if batching.default_queue_policy.as_ref().is_some_and(delays) {
        report("dynamic_batching.default_queue_policy.timeout_action".into());
    }
    for (level, policy) in &batching.priority_queue_policy {
        if delays(policy) {
            report(bounded!("dynamic_batching.priority_queue_policy[{level}].timeout_action"));
        }
    }
}
