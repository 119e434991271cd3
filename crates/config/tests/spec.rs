//! Tests of the specification: accepted configurations, defaults and conversion.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which the lint does not know as such")]

use galatea_config::{
    Accelerator, ConfigDraft, InputFormat, InstanceKind, ModelPriority, ModelSpec, QueuePolicy,
    SchedulingChoice, SupportedFeatures, TimeoutAction, VersionPolicy,
};
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::DataType;

fn spec(text: &str) -> ModelSpec {
    spec_on(text, &SupportedFeatures::default())
}

fn spec_on(text: &str, support: &SupportedFeatures) -> ModelSpec {
    let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
    draft.resolve_name_and_backend("example", &[]).unwrap();
    draft.into_validated_spec(support).unwrap_or_else(|errors| panic!("{text}\n{errors:#}"))
}

/// Creates an identity model with this tensor.
fn tensor(max_batch_size: i32, rest: &str) -> ModelSpec {
    spec(&format!(
        "backend: 'identity' max_batch_size: {max_batch_size} \
         input {{ name: 'IN' data_type: TYPE_FP32 {rest} }}"
    ))
}

fn groups(backend: &str, text: &str, support: &SupportedFeatures) -> Vec<String> {
    let spec = spec_on(&format!("backend: '{backend}' {text}"), support);
    let shown = spec.instance_groups.iter();
    shown.map(|g| format!("{} {:?} {} {:?}", g.name, g.kind, g.count, g.gpus)).collect()
}

#[test]
fn a_complete_configuration_is_converted() {
    let spec = spec(
        "name: 'example' platform: 'onnxruntime_onnx' max_batch_size: 16 \
         input { name: 'A' data_type: TYPE_STRING dims: [ 2, -1 ] optional: true } \
         input { name: 'B' data_type: TYPE_BF16 dims: [ 3, 4, 5 ] format: FORMAT_NCHW \
           reshape { shape: [ 60 ] } } \
         output { name: 'C' data_type: TYPE_UINT8 dims: 1 reshape { } } \
         parameters { key: 'p' value { string_value: 'v' } } metric_tags { key: 't' value: 'u' } \
         default_model_filename: 'other.onnx' version_policy { specific { versions: [ 3, 1 ] } }",
    );
    assert_eq!((spec.backend.as_str(), spec.max_batch_size), ("onnxruntime", 16));
    let a = spec.input("A").unwrap();
    assert_eq!((a.datatype, a.dims.as_slice(), a.optional), (DataType::Bytes, &[2, -1][..], true));
    assert_eq!((a.format, &a.reshape), (InputFormat::None, &None));
    let b = spec.input("B").unwrap();
    assert_eq!((b.datatype, b.format), (DataType::Bf16, InputFormat::Nchw));
    assert_eq!((b.optional, b.reshape.as_deref()), (false, Some(&[60][..])));
    let c = spec.output("C").unwrap();
    assert_eq!((c.datatype, c.reshape.as_deref()), (DataType::Uint8, Some(&[][..])));
    assert!(spec.input("C").is_none() && spec.output("A").is_none());
    assert_eq!(spec.parameters["p"], "v");
    assert_eq!(spec.metric_tags["t"], "u");
    assert_eq!(spec.default_model_filename, "other.onnx");
    assert_eq!(spec.version_policy, VersionPolicy::Specific(vec![3, 1]));
    assert!(!spec.decoupled);
}

#[test]
fn version_policies_are_converted() {
    let policy = |text: &str| spec(&format!("backend: 'identity' {text}")).version_policy;
    assert_eq!(policy(""), VersionPolicy::Latest(1));
    assert_eq!(policy("version_policy { latest { num_versions: 3 } }"), VersionPolicy::Latest(3));
    assert_eq!(policy("version_policy { all { } }"), VersionPolicy::All);
    assert_eq!(policy("version_policy { }"), VersionPolicy::All);
    assert_eq!(ConfigDraft::empty().version_policy(), VersionPolicy::Latest(1));
}

#[test]
// row: CFG-08
fn reshapes_that_keep_the_elements_are_accepted() {
    for (batch, shape) in [
        (0, "dims: [ 2, 3 ] reshape { shape: [ 6 ] }"),
        (0, "dims: [ 1 ] reshape { shape: [ 1, 1 ] }"),
        (0, "dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] }"),
        (0, "dims: [ -1 ] reshape { shape: [ 1, -1 ] }"),
        (1, "dims: [ 1 ] reshape { shape: [ ] }"),
        (1, "dims: [ 1, 1 ] reshape { }"),
    ] {
        assert!(tensor(batch, shape).inputs[0].reshape.is_some());
    }
}

#[test]
// row: INST-01
fn the_default_instance_group_depends_on_the_backend() {
    let cpu = SupportedFeatures::default();
    assert_eq!(groups("onnxruntime", "", &cpu), ["example Cpu 2 []"]);
    assert_eq!(groups("identity", "", &cpu), ["example Cpu 1 []"]);
}

#[test]
// row: CFG-14
fn groups_are_completed() {
    let cpu = SupportedFeatures::default();
    let text = "instance_group [ { count: 3 }, { kind: KIND_CPU }, { name: 'm' kind: KIND_MODEL }, \
                { kind: KIND_AUTO gpus: [ 0 ] count: 1 } ]";
    let mut draft = parse_config_draft("f", &format!("backend: 'onnxruntime' {text}")).unwrap();
    draft.resolve_name_and_backend("example", &[]).unwrap();
    let errors = draft.into_validated_spec(&cpu).unwrap_err();
    assert!(errors.to_string().contains("example_3 of model example has kind KIND_CPU but"));
    let text = text.replace("gpus: [ 0 ]", "");
    assert_eq!(
        groups("onnxruntime", &text, &cpu),
        ["example_0 Cpu 3 []", "example_1 Cpu 2 []", "m Model 1 []", "example_3 Cpu 1 []"]
    );
}

#[test]
// row: INST-02
fn instance_kinds_are_converted() {
    let spec = spec("backend: 'identity' instance_group { kind: KIND_MODEL }");
    assert_eq!(spec.instance_groups[0].kind, InstanceKind::Model);
    assert!(!spec.instance_groups[0].passive);
}

#[test]
// row: CFG-28
fn schedulers_are_converted() {
    assert_eq!(spec("backend: 'identity'").scheduling, SchedulingChoice::Default);
    let dynamic = |text: &str| {
        let spec = spec(&format!("backend: 'identity' {text}"));
        let SchedulingChoice::Dynamic(dynamic) = spec.scheduling else { panic!("{text}") };
        dynamic
    };
    let plain = dynamic("max_batch_size: 8 dynamic_batching { }");
    assert_eq!(plain.preferred_batch_sizes, [8]);
    assert_eq!(plain.max_queue_delay_microseconds, 0);
    assert_eq!(dynamic("dynamic_batching { }").preferred_batch_sizes, [0_u32; 0]);
    let full = dynamic(
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4, 2 ] \
         max_queue_delay_microseconds: 100 priority_levels: 3 default_priority_level: 2 \
         default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 7 } \
         priority_queue_policy { key: 1 value { allow_timeout_override: true max_queue_size: 9 } } }",
    );
    assert_eq!(full.preferred_batch_sizes, [4, 2]);
    assert_eq!((full.priority_levels, full.default_priority_level), (3, 2));
    let delay = QueuePolicy {
        timeout_action: TimeoutAction::Delay,
        default_timeout_microseconds: 7,
        ..QueuePolicy::default()
    };
    assert_eq!(full.default_queue_policy, delay);
    let first =
        QueuePolicy { allow_timeout_override: true, max_queue_size: 9, ..QueuePolicy::default() };
    assert_eq!(full.priority_queue_policies.into_iter().collect::<Vec<_>>(), [(1, first)]);
    let without_levels = dynamic(
        "max_batch_size: 8 dynamic_batching { priority_queue_policy { key: 1 value { } } }",
    );
    assert!(without_levels.priority_queue_policies.is_empty());
}

#[test]
// row: CFG-15 ONNX-04
fn optimization_is_converted() {
    let default = spec("backend: 'identity'").optimization;
    assert!(default.input_pinned_memory && default.output_pinned_memory);
    assert_eq!((default.graph_level, default.priority), (0, ModelPriority::Default));
    let set = spec(
        "backend: 'identity' optimization { graph { level: -1 } priority: PRIORITY_MIN \
         input_pinned_memory { enable: false } \
         cuda { graphs: true } \
         execution_accelerators { cpu_execution_accelerator [ { name: 'openvino' \
           parameters { key: 'k' value: 'v' } } ] \
           gpu_execution_accelerator { name: 'tensorrt' } } }",
    )
    .optimization;
    assert_eq!((set.graph_level, set.priority), (-1, ModelPriority::Min));
    assert!(!set.input_pinned_memory && set.output_pinned_memory);
    let openvino = Accelerator {
        name: "openvino".into(),
        parameters: [("k".to_owned(), "v".to_owned())].into(),
    };
    assert_eq!(set.cpu_execution_accelerators, [openvino]);
    assert_eq!(set.gpu_execution_accelerators[0].name, "tensorrt");
}

/// Makes the calls that a backend makes for a model without a configuration.
#[test]
fn a_backend_completes_a_draft() {
    let mut draft = ConfigDraft::empty();
    draft.resolve_name_and_backend("auto", &["model.onnx".to_owned()]).unwrap();
    assert_eq!((draft.name(), draft.backend()), ("auto", "onnxruntime"));
    assert!(draft.inputs().is_empty() && !draft.scheduling_is_set());
    draft.set_max_batch_size(4);
    draft.enable_dynamic_batching();
    draft.add_input("values", DataType::Fp32, &[-1, 4]);
    draft.add_output("total", DataType::Int64, &[]);
    assert_eq!(draft.inputs()[0].dims, [-1, 4]);
    assert_eq!(draft.outputs()[0].reshape.as_deref(), Some(&[][..]));
    let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
    assert_eq!(
        spec.to_json(),
        "{\"name\":\"auto\",\"platform\":\"onnxruntime_onnx\",\"backend\":\"onnxruntime\",\
         \"runtime\":\"\",\"version_policy\":{\"latest\":{\"num_versions\":1}},\
         \"max_batch_size\":4,\"input\":[{\"name\":\"values\",\"data_type\":\"TYPE_FP32\",\
         \"format\":\"FORMAT_NONE\",\"dims\":[-1,4],\"is_shape_tensor\":false,\
         \"allow_ragged_batch\":false,\"optional\":false,\"is_non_linear_format_io\":false}],\
         \"output\":[{\"name\":\"total\",\"data_type\":\"TYPE_INT64\",\"dims\":[1],\
         \"reshape\":{\"shape\":[]},\"label_filename\":\"\",\"is_shape_tensor\":false,\
         \"is_non_linear_format_io\":false}],\"batch_input\":[],\"batch_output\":[],\
         \"optimization\":{\"priority\":\"PRIORITY_DEFAULT\",\"input_pinned_memory\":\
         {\"enable\":true},\"output_pinned_memory\":{\"enable\":true},\
         \"gather_kernel_buffer_threshold\":0,\"eager_batching\":false},\"dynamic_batching\":\
         {\"preferred_batch_size\":[4],\"max_queue_delay_microseconds\":0,\
         \"preserve_ordering\":false,\"priority_levels\":0,\"default_priority_level\":0,\
         \"priority_queue_policy\":{}},\"instance_group\":[{\"name\":\"auto\",\
         \"kind\":\"KIND_CPU\",\"count\":2,\"gpus\":[],\"secondary_devices\":[],\"profile\":[],\
         \"passive\":false,\"host_policy\":\"\"}],\"default_model_filename\":\"model.onnx\",\
         \"cc_model_filenames\":{},\"metric_tags\":{},\"parameters\":{},\"model_warmup\":[]}"
    );
}

#[test]
fn completing_keeps_configured_values() {
    let text = "max_batch_size: 0 dynamic_batching { max_queue_delay_microseconds: 5 } \
                input { name: 'A' dims: 3 } parameters { key: 'k' value { string_value: 'v' } }";
    let mut draft = parse_config_draft("f", text).unwrap();
    assert!(draft.scheduling_is_set());
    assert_eq!((draft.parameter("k"), draft.parameter("x")), (Some("v"), None));
    assert_eq!((draft.inputs()[0].datatype, draft.max_batch_size()), (None, 0));
    let before = draft.message().clone();
    draft.enable_dynamic_batching();
    assert_eq!(draft.message(), &before);
    draft.add_output("B", DataType::Int8, &[]);
    // Without batching, a scalar is not reshaped.
    assert_eq!(
        (draft.outputs()[0].dims.as_slice(), &draft.outputs()[0].reshape),
        (&[1][..], &None)
    );
}

#[test]
fn the_encoded_form_is_the_normalized_message() {
    use prost::Message as _;
    let spec = tensor(2, "dims: 1");
    let decoded =
        galatea_protocol::inference::ModelConfig::decode(spec.to_protobuf().as_slice()).unwrap();
    assert_eq!(&decoded, spec.message());
    assert_eq!(decoded.instance_group[0].name, "example");
}

#[test]
fn warmup_samples_are_converted() {
    let spec = spec(
        "backend: 'identity' max_batch_size: 4
         input { name: 'A' data_type: TYPE_FP32 dims: [ -1, 2 ] }
         model_warmup { name: 'first' batch_size: 3 count: 2
           inputs { key: 'A' value { data_type: TYPE_FP32 dims: [ 5, 2 ] zero_data: false } } }
         model_warmup { name: 'second' batch_size: 1
           inputs { key: 'A' value { data_type: TYPE_FP32 dims: [ 1, 2 ] random_data: false } } }
         model_warmup { name: 'third' batch_size: 1
           inputs { key: 'A' value { data_type: TYPE_FP32 dims: [ 1, 2 ] input_data_file: 'f' } } }
         model_warmup { name: 'skipped' inputs { key: 'B' value { dims: -1 } } }",
    );
    let shown = spec.warmup.iter().map(|sample| {
        let inputs = sample.inputs.iter().map(|input| {
            format!("{} {} {:?} {:?}", input.name, input.datatype, input.dims, input.content)
        });
        let inputs: Vec<String> = inputs.collect();
        format!("{} {} {}: {}", sample.name, sample.batch_size, sample.count, inputs.join(", "))
    });
    assert_eq!(
        shown.collect::<Vec<String>>(),
        [
            "first 3 2: A FP32 [5, 2] Zero",
            "second 1 1: A FP32 [1, 2] Random",
            "third 1 1: A FP32 [1, 2] File(\"f\")",
            "skipped 0 1: ",
        ]
    );
}
