//! Settings of the format that this server does not support, or ignores with a message.
//!
//! An unsupported setting is refused by name, so that no setting is ignored silently. A
//! setting that becomes supported is removed from the table.

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::model_optimization_policy::Cuda;
use galatea_protocol::inference::{ModelConfig, ModelInput, ModelInstanceGroup};

use crate::Support;
use crate::diagnostic::{Diagnostic, Diagnostics};

/// A setting that is refused.
struct UnsupportedSetting {
    /// Its name in the diagnostic.
    name: &'static str,
    /// The paths where a configuration uses it.
    uses: fn(&ModelConfig) -> Vec<String>,
}

const UNSUPPORTED: [UnsupportedSetting; 3] = [
    UnsupportedSetting {
        name: "is_shape_tensor",
        uses: |c| {
            tensors(
                c,
                "is_shape_tensor",
                |input| input.is_shape_tensor,
                |output| output.is_shape_tensor,
            )
        },
    },
    UnsupportedSetting {
        name: "is_non_linear_format_io",
        uses: |c| {
            tensors(
                c,
                "is_non_linear_format_io",
                |input| input.is_non_linear_format_io,
                |output| output.is_non_linear_format_io,
            )
        },
    },
    UnsupportedSetting {
        name: "profile",
        uses: |c| groups(c, "profile", |group| !group.profile.is_empty()),
    },
];

/// Settings that Triton accepts for every model but that only some models use. Here
/// they have no effect, and the server logs a message if they are set.
const IGNORED: [IgnoredSetting; 9] = [
    IgnoredSetting {
        name: "optimization.eager_batching",
        reason: "only Triton's TensorRT backend reads it",
        is_used: |c, _| c.optimization.as_ref().is_some_and(|o| o.eager_batching),
    },
    IgnoredSetting {
        name: "optimization.gather_kernel_buffer_threshold",
        reason: "only Triton's TensorRT backend reads it",
        is_used: |c, _| {
            c.optimization.as_ref().is_some_and(|o| o.gather_kernel_buffer_threshold != 0)
        },
    },
    IgnoredSetting {
        name: "optimization.priority",
        reason: "no GPU is used",
        is_used: |c, _| c.optimization.as_ref().is_some_and(|o| o.priority != 0),
    },
    IgnoredSetting {
        name: "optimization.cuda",
        reason: "no GPU is used",
        is_used: |c, _| {
            let cuda = c.optimization.as_ref().and_then(|o| o.cuda.as_ref());
            cuda.is_some_and(|cuda| *cuda != Cuda::default())
        },
    },
    IgnoredSetting {
        name: "instance_group.secondary_devices",
        reason: "only compiled backends are told of them",
        is_used: |c, support| {
            !support.secondary_devices
                && c.instance_group.iter().any(|group| !group.secondary_devices.is_empty())
        },
    },
    IgnoredSetting {
        name: "sequence_batching.state.use_growable_memory",
        reason: "no GPU is used",
        is_used: |c, _| match &c.scheduling_choice {
            Some(SchedulingChoice::SequenceBatching(batching)) => {
                batching.state.iter().any(|state| state.use_growable_memory)
            }
            Some(
                SchedulingChoice::DynamicBatching(_) | SchedulingChoice::EnsembleScheduling(_),
            )
            | None => false,
        },
    },
    IgnoredSetting {
        name: "instance_group",
        reason: "every group is passive, so that all requests are refused",
        is_used: |c, _| {
            !c.instance_group.is_empty() && c.instance_group.iter().all(|group| group.passive)
        },
    },
    IgnoredSetting {
        name: "cc_model_filenames",
        reason: "no GPU is used",
        is_used: |c, _| !c.cc_model_filenames.is_empty(),
    },
    IgnoredSetting {
        name: "model_operations.op_library_filename",
        reason: "only ONNX models have operators in libraries",
        is_used: |c, _| {
            let operations = c.model_operations.as_ref();
            c.backend != "onnxruntime"
                && operations.is_some_and(|o| !o.op_library_filename.is_empty())
        },
    },
];

/// A setting that is accepted and has no effect.
struct IgnoredSetting {
    name: &'static str,
    reason: &'static str,
    is_used: fn(&ModelConfig, &Support) -> bool,
}

/// A message for every setting that is used and has no effect.
pub(crate) fn remarks(config: &ModelConfig, support: &Support) -> Vec<String> {
    let used = IGNORED.iter().filter(|setting| (setting.is_used)(config, support));
    used.map(|setting| {
        format!("model '{}': '{}' changes nothing: {}", config.name, setting.name, setting.reason)
    })
    .collect()
}

/// Appends a diagnostic for every use of an unsupported setting.
///
/// A field with an earlier diagnostic is not reported again.
pub(crate) fn check(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    for setting in &UNSUPPORTED {
        for path in (setting.uses)(config) {
            if diagnostics.iter().all(|diagnostic| diagnostic.path != path) {
                let text = format!(
                    "model '{}' uses '{}', which is not supported",
                    config.name, setting.name
                );
                diagnostics.push(Diagnostic::about(path, text));
            }
        }
    }
}

fn inputs(config: &ModelConfig, field: &str, uses: fn(&ModelInput) -> bool) -> Vec<String> {
    let numbered = config.input.iter().enumerate();
    numbered
        .filter(|(_, input)| uses(input))
        .map(|(index, _)| format!("input[{index}].{field}"))
        .collect()
}

fn tensors(
    config: &ModelConfig,
    field: &str,
    input_uses: fn(&ModelInput) -> bool,
    output_uses: fn(&galatea_protocol::inference::ModelOutput) -> bool,
) -> Vec<String> {
    let mut paths = inputs(config, field, input_uses);
    let numbered = config.output.iter().enumerate();
    let outputs = numbered.filter(|(_, output)| output_uses(output));
    paths.extend(outputs.map(|(index, _)| format!("output[{index}].{field}")));
    paths
}

fn groups(config: &ModelConfig, field: &str, uses: fn(&ModelInstanceGroup) -> bool) -> Vec<String> {
    let numbered = config.instance_group.iter().enumerate();
    numbered
        .filter(|(_, group)| uses(group))
        .map(|(index, _)| format!("instance_group[{index}].{field}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::UNSUPPORTED;
    use crate::{ConfigDraft, Support};

    /// One use of each setting, in the order of the table: the text of a configuration and
    /// the field that the diagnostic must name.
    const USES: [(&str, &str); UNSUPPORTED.len()] = [
        (
            "platform: 'tensorrt_plan' input { name: 'R' data_type: TYPE_FP32 dims: 1 \
             is_shape_tensor: true }",
            "input[0].is_shape_tensor",
        ),
        (
            "platform: 'tensorrt_plan' output { name: 'R' data_type: TYPE_FP32 dims: 1 \
             is_non_linear_format_io: true }",
            "output[0].is_non_linear_format_io",
        ),
        ("platform: 'tensorrt_plan' instance_group { profile: '0' }", "instance_group[0].profile"),
    ];

    #[test]
    // row: CFG-10
    fn each_unsupported_setting_is_refused_by_name_and_position() {
        for (setting, (text, path)) in UNSUPPORTED.iter().zip(USES) {
            let mut draft = ConfigDraft::from_pbtxt("f", text).unwrap();
            let backend = if text.contains("tensorrt_plan") { "tensorrt" } else { "identity" };
            backend.clone_into(&mut draft.message_mut().backend);
            draft.resolve_identity("m", &[]).unwrap();
            // With a GPU, so that settings that need one reach the table.
            let errors =
                draft.finish(&Support { gpus: vec![0], ..Support::default() }).unwrap_err();
            // The position of a map entry is its opening brace.
            let field = path.rsplit('.').next().unwrap();
            let field = if field.ends_with("\"]") { "{ key" } else { field };
            let column = text.rfind(field).unwrap() + 1;
            let expected = format!(
                "f:1:{column}: {path}: model 'm' uses '{}', which is not supported",
                setting.name
            );
            assert_eq!(errors.to_string(), expected, "{text}");
        }
    }

    #[test]
    // row: CFG-15 DYN-17
    fn ignored_settings_are_accepted_with_a_remark() {
        let remarks = |text: &str| {
            let text = format!("backend: 'identity' {text}");
            let mut draft = ConfigDraft::from_pbtxt("f", &text).unwrap();
            draft.resolve_identity("m", &[]).unwrap();
            draft.finish(&Support::default()).unwrap().remarks()
        };
        let nothing = "optimization { eager_batching: false gather_kernel_buffer_threshold: 0 \
                       priority: PRIORITY_DEFAULT cuda { graphs: false } graph { level: 1 } }";
        assert!(remarks(nothing).is_empty());
        let diagnostics = remarks(
            "optimization { eager_batching: true gather_kernel_buffer_threshold: 3 \
             priority: PRIORITY_MAX cuda { graphs: true } } \
             instance_group { secondary_devices { kind: KIND_NVDLA } } \
             cc_model_filenames { key: '8.0' value: 'm' } \
             model_operations { op_library_filename: 'l.so' }",
        );
        let expected = [
            "model 'm': 'optimization.eager_batching' changes nothing: only Triton's TensorRT \
             backend reads it",
            "model 'm': 'optimization.gather_kernel_buffer_threshold' changes nothing: only \
             Triton's TensorRT backend reads it",
            "model 'm': 'optimization.priority' changes nothing: no GPU is used",
            "model 'm': 'optimization.cuda' changes nothing: no GPU is used",
            "model 'm': 'instance_group.secondary_devices' changes nothing: only compiled \
             backends are told of them",
            "model 'm': 'cc_model_filenames' changes nothing: no GPU is used",
            "model 'm': 'model_operations.op_library_filename' changes nothing: only ONNX models \
             have operators in libraries",
        ];
        assert_eq!(diagnostics, expected);
        let of_onnx = "backend: 'onnxruntime' model_operations { op_library_filename: 'l.so' }
                       input { name: 'I' data_type: TYPE_FP32 dims: 1 }
                       output { name: 'O' data_type: TYPE_FP32 dims: 1 }";
        let mut draft = ConfigDraft::from_pbtxt("f", of_onnx).unwrap();
        draft.resolve_identity("m", &[]).unwrap();
        assert_eq!(draft.op_library_filenames(), ["l.so"]);
        let spec = draft.finish(&Support::default()).unwrap();
        assert_eq!(
            (spec.op_library_filenames.as_slice(), spec.remarks().len()),
            (&[String::from("l.so")][..], 0)
        );
    }

    #[test]
    fn secondary_devices_are_accepted_and_printed() {
        let text = "backend: 'b' instance_group { secondary_devices { device_id: 5 } }";
        let mut draft = ConfigDraft::from_pbtxt("f", text).unwrap();
        draft.resolve_identity("m", &[]).unwrap();
        let supported = Support { secondary_devices: true, ..Support::default() };
        for (support, remarks) in [(Support::default(), 1), (supported, 0)] {
            let spec = draft.clone().finish(&support).unwrap();
            assert_eq!(spec.remarks().len(), remarks);
            let shown = "\"secondary_devices\":[{\"kind\":\"KIND_NVDLA\",\"device_id\":\"5\"}]";
            assert!(spec.to_json().contains(shown), "{}", spec.to_json());
        }
    }

    #[test]
    fn default_values_do_not_count_as_uses() {
        let text = "backend: 'identity' response_cache { } model_transaction_policy { } \
                    model_operations { } model_metrics { } model_repository_agents { } \
                    dynamic_batching { preserve_ordering: false } max_batch_size: 2 \
                    instance_group { passive: false host_policy: '' }";
        let mut draft = ConfigDraft::from_pbtxt("f", text).unwrap();
        draft.resolve_identity("m", &[]).unwrap();
        draft.finish(&Support::default()).unwrap();
    }
}
