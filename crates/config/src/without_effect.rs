//! Reports settings that have no effect on a model, so that no setting is silently ignored.

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::model_instance_group::Kind;
use galatea_protocol::inference::model_optimization_policy::Cuda;
use galatea_protocol::inference::{ModelConfig, ModelInstanceGroup};

use crate::SupportedFeatures;

/// Settings that Triton accepts for every model but that only some models use. On other models they
/// have no effect, and the server logs a message if they are set.
///
/// Compiled backends get the whole configuration, so the settings that they ignore are unknown
/// here.
const IGNORED: [IgnoredSetting; 9] = [
    IgnoredSetting {
        name: "optimization.eager_batching",
        reason: "only Triton's TensorRT backend reads it",
        is_used: |c, support| {
            !support.whole_configuration
                && c.optimization.as_ref().is_some_and(|o| o.eager_batching)
        },
    },
    IgnoredSetting {
        name: "optimization.gather_kernel_buffer_threshold",
        reason: "only Triton's TensorRT backend reads it",
        is_used: |c, support| {
            !support.whole_configuration
                && c.optimization.as_ref().is_some_and(|o| o.gather_kernel_buffer_threshold != 0)
        },
    },
    IgnoredSetting {
        name: "optimization.priority",
        reason: "only Triton's TensorRT backend reads it",
        is_used: |c, support| {
            !support.whole_configuration && c.optimization.as_ref().is_some_and(|o| o.priority != 0)
        },
    },
    IgnoredSetting {
        name: "optimization.cuda",
        reason: "only Triton's TensorRT backend reads it",
        is_used: |c, support| {
            let cuda = c.optimization.as_ref().and_then(|o| o.cuda.as_ref());
            !support.whole_configuration && cuda.is_some_and(|cuda| *cuda != Cuda::default())
        },
    },
    IgnoredSetting {
        name: "instance_group.secondary_devices",
        reason: "only compiled backends are told of them",
        is_used: |c, support| {
            !support.whole_configuration
                && c.instance_group.iter().any(|group| !group.secondary_devices.is_empty())
        },
    },
    IgnoredSetting {
        name: "sequence_batching.state.use_growable_memory",
        reason: "each new state gets memory of its own size",
        is_used: |c, support| match &c.scheduling_choice {
            Some(SchedulingChoice::SequenceBatching(batching)) => {
                batching.state.iter().any(|state| {
                    let grows = support.whole_configuration || executes_onnx_on_gpus(c);
                    let is_shared = state.use_same_buffer_for_input_output && grows;
                    state.use_growable_memory && !is_shared
                })
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
        is_used: |c, support| !support.gpus_available() && !c.cc_model_filenames.is_empty(),
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

/// A setting that is accepted but has no effect.
struct IgnoredSetting {
    name: &'static str,
    reason: &'static str,
    is_used: fn(&ModelConfig, &SupportedFeatures) -> bool,
}

/// Returns true if states stay in GPU memory.
fn executes_onnx_on_gpus(config: &ModelConfig) -> bool {
    let is_on_gpu = |group: &ModelInstanceGroup| group.kind() == Kind::Gpu;
    config.backend == "onnxruntime" && config.instance_group.iter().any(is_on_gpu)
}

/// A message for every setting that is set but has no effect.
pub(crate) fn remarks(config: &ModelConfig, support: &SupportedFeatures) -> Vec<String> {
    let used = IGNORED.iter().filter(|setting| (setting.is_used)(config, support));
    used.map(|setting| {
        format!("model '{}': '{}' changes nothing: {}", config.name, setting.name, setting.reason)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use crate::SupportedFeatures;
    use crate::testing::read_config;

    #[test]
    // row: CFG-15 DYN-17
    fn ignored_settings_are_accepted_with_a_remark() {
        let remarks = |text: &str| {
            let text = format!("backend: 'identity' {text}");
            let mut draft = read_config("f", &text).unwrap();
            draft.resolve_name_and_backend("m", &[]).unwrap();
            draft
                .into_validated_spec(&SupportedFeatures::default())
                .unwrap()
                .ignored_setting_warnings()
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
            "model 'm': 'optimization.priority' changes nothing: only Triton's TensorRT backend \
             reads it",
            "model 'm': 'optimization.cuda' changes nothing: only Triton's TensorRT backend reads \
             it",
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
        let mut draft = read_config("f", of_onnx).unwrap();
        draft.resolve_name_and_backend("m", &[]).unwrap();
        assert_eq!(draft.op_library_filenames(), ["l.so"]);
        let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
        assert_eq!(
            (spec.op_library_filenames.as_slice(), spec.ignored_setting_warnings().len()),
            (&[String::from("l.so")][..], 0)
        );
    }

    #[test]
    fn secondary_devices_are_accepted_and_printed() {
        let text = "backend: 'b' instance_group { secondary_devices { device_id: 5 } }";
        let mut draft = read_config("f", text).unwrap();
        draft.resolve_name_and_backend("m", &[]).unwrap();
        let supported =
            SupportedFeatures { whole_configuration: true, ..SupportedFeatures::default() };
        for (support, remarks) in [(SupportedFeatures::default(), 1), (supported, 0)] {
            let spec = draft.clone().into_validated_spec(&support).unwrap();
            assert_eq!(spec.ignored_setting_warnings().len(), remarks);
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
        let mut draft = read_config("f", text).unwrap();
        draft.resolve_name_and_backend("m", &[]).unwrap();
        draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
    }
}
