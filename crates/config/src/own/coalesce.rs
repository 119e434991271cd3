//! Coalescing, which executes equal requests that are in flight at the same time once. The model
//! must have one response per request, which depends on nothing but the request.

use galatea_config_message::{BoundedText, Diagnostic, Diagnostics, bounded};
use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::{ModelConfig, ModelDynamicBatching, ModelQueuePolicy};

use super::{NonTritonSettings, text};

/// The parameter's name.
pub(super) const PARAMETER: &str = "coalesce";

/// The parameter's path in a diagnostic.
const PATH: &str = "parameters[\"coalesce\"]";

/// Reads the setting, and appends a diagnostic for every error.
pub(super) fn read(
    config: &ModelConfig,
    settings: &mut NonTritonSettings,
    diagnostics: &mut Diagnostics,
) {
    let Some(text) = text(config, PARAMETER) else { return };
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" => {
            settings.coalesce = true;
            check_model(config, diagnostics);
        }
        "0" | "false" | "off" => {}
        _ => {
            let name = &config.name;
            let message = bounded!(
                "parameter '{PARAMETER}' of model '{name}' is '{text}', which is no boolean"
            );
            let diagnostic = Diagnostic::about(PATH, message);
            let expected = Some("true or false".into());
            diagnostics.push(|| Diagnostic { expected, ..diagnostic });
        }
    }
}

/// Reports the settings that coalescing excludes.
fn check_model(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    let mut contradicts = |path: &str, reason: &str| {
        let message = bounded!(
            "'{path}' contradicts parameter '{PARAMETER}' of model '{}', {reason}",
            config.name
        );
        diagnostics.push(|| Diagnostic::about(BoundedText::truncated(path), message));
    };
    if config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled) {
        let reason = "whose equal requests share one response";
        contradicts("model_transaction_policy.decoupled", reason);
    }
    match &config.scheduling_choice {
        Some(SchedulingChoice::SequenceBatching(_)) => {
            contradicts("sequence_batching", "whose responses depend on nothing but the request");
        }
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            check_batching(batching, &mut contradicts);
        }
        Some(SchedulingChoice::EnsembleScheduling(_)) | None => {}
    }
}

/// Reports the settings of the dynamic batcher that it could not keep for each request by itself.
fn check_batching(batching: &ModelDynamicBatching, contradicts: &mut impl FnMut(&str, &str)) {
    if batching.preserve_ordering {
        let reason = "which replies to equal requests at once";
        contradicts("dynamic_batching.preserve_ordering", reason);
    }
    let policy = batching.default_queue_policy.as_ref();
    check_policy(policy, "dynamic_batching.default_queue_policy", contradicts);
    // Without priority levels, the per-level policies are ignored.
    let levels = batching.priority_queue_policy.iter().filter(|_| batching.priority_levels > 0);
    for (level, policy) in levels {
        let path = bounded!("dynamic_batching.priority_queue_policy[{level}]");
        check_policy(Some(policy), &path, contradicts);
    }
}

fn check_policy(
    policy: Option<&ModelQueuePolicy>,
    path: &str,
    contradicts: &mut impl FnMut(&str, &str),
) {
    let Some(policy) = policy else { return };
    let reason = "whose equal requests wait as one; 'latency_objective_us' keeps the deadline of \
                  each";
    if policy.default_timeout_microseconds != 0 {
        contradicts(&bounded!("{path}.default_timeout_microseconds"), reason);
    }
    if policy.allow_timeout_override {
        contradicts(&bounded!("{path}.allow_timeout_override"), reason);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::read_config;
    use crate::{ModelSpec, SupportedFeatures};

    fn load(value: &str, more: &str) -> Result<ModelSpec, String> {
        let text = format!(
            "backend: 'b' max_batch_size: 8 parameters {{ key: 'coalesce' value {{ string_value: \
             '{value}' }} }} {more}"
        );
        let mut draft = read_config("f", &text).unwrap();
        draft.resolve_name_and_backend("m", &[]).unwrap();
        draft
            .into_validated_spec(&SupportedFeatures::default())
            .map_err(|errors| errors.to_string())
    }

    #[test]
    fn the_value_is_a_boolean() {
        for (value, expected) in
            [("true", true), ("1", true), ("ON", true), ("false", false), ("0", false)]
        {
            assert_eq!(load(value, "").unwrap().own.coalesce, expected, "{value}");
        }
        for bad in ["", "yes", "2", " true"] {
            let error = load(bad, "").unwrap_err();
            let expected = format!("parameter 'coalesce' of model 'm' is '{bad}'");
            assert!(error.contains(&expected), "{error}");
        }
    }

    #[test]
    fn settings_that_contradict_it_are_refused_by_name() {
        let policy = "dynamic_batching { default_queue_policy {";
        let level = "dynamic_batching { priority_levels: 2 default_priority_level: 1 \
                     priority_queue_policy { key: 2 value {";
        for (more, named) in [
            ("sequence_batching { }", "sequence_batching"),
            ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled"),
            ("dynamic_batching { preserve_ordering: true }", "dynamic_batching.preserve_ordering"),
            (
                &format!("{policy} default_timeout_microseconds: 5 }} }}"),
                "default_queue_policy.default_timeout_microseconds",
            ),
            (
                &format!("{policy} allow_timeout_override: true }} }}"),
                "default_queue_policy.allow_timeout_override",
            ),
            (
                &format!("{level} allow_timeout_override: true }} }} }}"),
                "priority_queue_policy[2].allow_timeout_override",
            ),
        ] {
            let error = load("true", more).unwrap_err();
            let text = "contradicts parameter 'coalesce' of model 'm'";
            assert!(error.contains(named) && error.contains(text), "{more}: {error}");
            load("false", more).unwrap();
        }
    }

    #[test]
    fn it_goes_with_batches_priorities_limits_and_deadlines() {
        let objective = "parameters { key: 'latency_objective_us' value { string_value: '5' } }";
        for more in [
            "",
            "dynamic_batching { priority_levels: 3 default_priority_level: 2 }",
            "dynamic_batching { default_queue_policy { max_queue_size: 4 } }",
            "response_cache { enable: true }",
            &format!("dynamic_batching {{ }} {objective}"),
        ] {
            assert!(load("true", more).unwrap().own.coalesce, "{more}");
        }
    }
}
