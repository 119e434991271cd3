//! A model's latency objective. It turns on the deadline batcher, and no other setting may
//! contradict it.

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::model_queue_policy::TimeoutAction;
use galatea_protocol::inference::{ModelConfig, ModelDynamicBatching, ModelQueuePolicy};

use super::{NonTritonSettings, text, whole_number};
use crate::BATCH_STRATEGY;
use galatea_config_message::{BoundedText, Diagnostic, Diagnostics, bounded};

/// The parameter's name.
pub(super) const PARAMETER: &str = "latency_objective_us";

/// The parameter's path in a diagnostic.
const PATH: &str = "parameters[\"latency_objective_us\"]";

/// Reads the objective, and appends a diagnostic for every error.
pub(super) fn read(
    config: &ModelConfig,
    settings: &mut NonTritonSettings,
    diagnostics: &mut Diagnostics,
) {
    let Some(text) = text(config, PARAMETER) else { return };
    let name = &config.name;
    let Some(objective) = whole_number(text) else {
        let message = bounded!(
            "parameter '{PARAMETER}' of model '{name}' is '{text}', which is not a number of \
             microseconds"
        );
        let diagnostic = Diagnostic::about(PATH, message);
        let expected = Some("a whole number, or 0 for the deadlines of requests alone".into());
        return diagnostics.push(|| Diagnostic { expected, ..diagnostic });
    };
    settings.latency_objective_microseconds = Some(objective);
    check_scheduler(config, objective, diagnostics);
}

/// Checks the model's scheduler, which must be able to follow the objective.
fn check_scheduler(config: &ModelConfig, objective: u64, diagnostics: &mut Diagnostics) {
    let name = &config.name;
    let without_batcher = |reason: &str| {
        let message = bounded!("parameter '{PARAMETER}' of model '{name}' {reason}");
        Diagnostic::about(PATH, message)
    };
    match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            check_batching(config, batching, diagnostics);
        }
        Some(SchedulingChoice::EnsembleScheduling(_)) if objective == 0 => {
            let reason = "is 0, which has no meaning for an ensemble: its steps get the deadlines \
                          of requests anyway";
            diagnostics.push(|| without_batcher(reason));
        }
        Some(SchedulingChoice::EnsembleScheduling(_)) => {}
        Some(SchedulingChoice::SequenceBatching(_)) => {
            let reason = "contradicts 'sequence_batching', which executes the requests of a \
                          sequence in their order";
            diagnostics.push(|| without_batcher(reason));
        }
        None => {
            let reason = "needs the scheduler of batches: add 'dynamic_batching { }'";
            diagnostics.push(|| without_batcher(reason));
        }
    }
}

/// Checks the batching settings. The deadline batcher replaces the dynamic batcher and decides by
/// itself how long batches wait and how large they become.
fn check_batching(
    config: &ModelConfig,
    batching: &ModelDynamicBatching,
    diagnostics: &mut Diagnostics,
) {
    let mut contradicts = |path: &str, reason: &str| {
        let message = bounded!(
            "'{path}' contradicts parameter '{PARAMETER}' of model '{}', {reason}",
            config.name
        );
        diagnostics.push(|| Diagnostic::about(BoundedText::truncated(path), message));
    };
    let decides = "whose batches wait as long as deadlines and load demand";
    if batching.max_queue_delay_microseconds != 0 {
        contradicts("dynamic_batching.max_queue_delay_microseconds", decides);
    }
    // By default, and in configurations that the server wrote, the preferred size is the maximum.
    let sizes = &batching.preferred_batch_size;
    if !sizes.is_empty() && sizes != &[config.max_batch_size] {
        contradicts(
            "dynamic_batching.preferred_batch_size",
            "whose batches are as large as deadlines and load demand",
        );
    }
    let refused = "which refuses what is too late instead of serving it behind others";
    if batching.default_queue_policy.as_ref().is_some_and(delays) {
        contradicts("dynamic_batching.default_queue_policy.timeout_action", refused);
    }
    // Without priority levels, the per-level policies are ignored.
    let levels = batching.priority_queue_policy.iter().filter(|_| batching.priority_levels > 0);
    for (level, policy) in levels {
        if delays(policy) {
            let path = bounded!("dynamic_batching.priority_queue_policy[{level}].timeout_action");
            contradicts(&path, refused);
        }
    }
    if config.parameters.contains_key(BATCH_STRATEGY) {
        let path = bounded!("parameters[\"{BATCH_STRATEGY}\"]");
        contradicts(&path, "whose batches end where deadlines and load demand");
    }
}

/// Returns true if this policy can serve requests after later ones.
fn delays(policy: &ModelQueuePolicy) -> bool {
    let has_timeouts = policy.default_timeout_microseconds != 0 || policy.allow_timeout_override;
    has_timeouts && policy.timeout_action() == TimeoutAction::Delay
}

#[cfg(test)]
mod tests {
    use crate::testing::read_config;
    use crate::{ModelSpec, SupportedFeatures};

    fn finish(text: &str) -> Result<ModelSpec, String> {
        let text = format!("backend: 'b' max_batch_size: 8 {text}");
        let mut draft = read_config("f", &text).unwrap();
        draft.resolve_name_and_backend("m", &[]).unwrap();
        draft
            .into_validated_spec(&SupportedFeatures::default())
            .map_err(|errors| errors.to_string())
    }

    fn with_objective(value: &str, scheduler: &str) -> Result<ModelSpec, String> {
        finish(&format!(
            "parameters {{ key: 'latency_objective_us' value {{ string_value: '{value}' }} }} \
             {scheduler}"
        ))
    }

    #[track_caller]
    fn refused(value: &str, scheduler: &str, expected: &[&str]) {
        let error = with_objective(value, scheduler).unwrap_err();
        for part in expected {
            assert!(error.contains(part), "{scheduler}: {error}");
        }
    }

    #[test]
    fn the_objective_is_a_number_of_microseconds() {
        let objective = |value: &str| {
            with_objective(value, "dynamic_batching { }")
                .unwrap()
                .own
                .latency_objective_microseconds
        };
        assert_eq!([objective("20000"), objective("0")], [Some(20_000), Some(0)]);
        assert_eq!(
            finish("dynamic_batching { }").unwrap().own.latency_objective_microseconds,
            None
        );
        for bad in ["", "-1", "+5", "1.5", " 20", "20ms", "18446744073709551616"] {
            let text = format!("is '{bad}', which is not a number of microseconds");
            refused(bad, "dynamic_batching { }", &["latency_objective_us", "model 'm'", &text]);
        }
    }

    #[test]
    fn an_objective_needs_the_scheduler_of_batches() {
        refused("5", "", &["'latency_objective_us'", "add 'dynamic_batching { }'"]);
        let reason = "contradicts 'sequence_batching'";
        refused("5", "sequence_batching { }", &["'latency_objective_us'", reason]);
    }

    #[test]
    fn an_ensemble_passes_its_objective_on() {
        let errors = |value: &str| {
            let steps = "input { name: 'IN' data_type: TYPE_FP32 dims: 1 } \
                         output { name: 'OUT' data_type: TYPE_FP32 dims: 1 } \
                         ensemble_scheduling { step { model_name: 'other' model_version: -1 \
                         input_map { key: 'X' value: 'IN' } output_map { key: 'Y' value: 'OUT' } } }";
            let parameter =
                format!("key: 'latency_objective_us' value {{ string_value: '{value}' }}");
            let text = format!("platform: 'ensemble' parameters {{ {parameter} }} {steps}");
            let mut draft = read_config("f", &text).unwrap();
            draft.resolve_name_and_backend("m", &[]).unwrap();
            draft
                .into_validated_spec(&SupportedFeatures::default())
                .map_err(|errors| errors.to_string())
        };
        assert_eq!(errors("7").unwrap().own.latency_objective_microseconds, Some(7));
        assert!(errors("0").unwrap_err().contains("has no meaning for an ensemble"));
    }

    #[test]
    fn settings_that_contradict_the_objective_are_refused_by_name() {
        let check = |field: &str, named: &str| {
            let scheduler = format!("dynamic_batching {{ {field} }}");
            refused("5", &scheduler, &[named, "contradicts parameter 'latency_objective_us'"]);
            finish(&scheduler).unwrap();
        };
        check("max_queue_delay_microseconds: 1", "max_queue_delay_microseconds");
        check("preferred_batch_size: 4", "preferred_batch_size");
        check("preferred_batch_size: [ 4, 8 ]", "preferred_batch_size");
        let delay = "timeout_action: DELAY";
        for timeout in ["default_timeout_microseconds: 5", "allow_timeout_override: true"] {
            let policy = format!("{{ {delay} {timeout} }}");
            check(&format!("default_queue_policy {policy}"), "default_queue_policy.timeout_action");
            let levels = "priority_levels: 2 default_priority_level: 1";
            let one = format!("{levels} priority_queue_policy {{ key: 2 value {policy} }}");
            check(&one, "priority_queue_policy[2].timeout_action");
        }
        let library = "dynamic_batching { } parameters { key: 'TRITON_BATCH_STRATEGY_PATH' \
                       value { string_value: 'lib.so' } }";
        refused("5", library, &["TRITON_BATCH_STRATEGY_PATH", "'latency_objective_us'"]);
    }

    #[test]
    fn priorities_limits_and_order_go_with_an_objective() {
        for field in [
            "preserve_ordering: true",
            "priority_levels: 3 default_priority_level: 2",
            "default_queue_policy { max_queue_size: 4 default_timeout_microseconds: 5 }",
            "default_queue_policy { timeout_action: DELAY }",
            "max_queue_delay_microseconds: 0 preferred_batch_size: 8",
        ] {
            with_objective("5", &format!("dynamic_batching {{ {field} }}")).unwrap();
        }
    }
}
