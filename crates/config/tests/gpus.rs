//! Tests of configurations on a server with GPUs: instance placement and GPU-only settings.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which the lint does not know as such")]

use galatea_config::{
    ComputeCapability, ConfigDraft, ConfigErrors, InstanceKind, ModelSpec, PreferredInstances,
    SupportedFeatures,
};
use galatea_pbtxt::parse_config_draft;

/// A server with two GPUs: GPU 0 with compute capability 8.6 and GPU 1 with 9.0.
fn support() -> SupportedFeatures {
    let mut support = SupportedFeatures::default();
    support.gpus = vec![0, 1];
    support.compute_capabilities = [
        (0, ComputeCapability { major: 8, minor: 6 }),
        (1, ComputeCapability { major: 9, minor: 0 }),
    ]
    .into();
    support
}

fn draft(text: &str) -> ConfigDraft {
    let mut draft = parse_config_draft("f", text).unwrap();
    draft.resolve_name_and_backend("example", &[]).unwrap();
    draft
}

fn finish(text: &str, support: &SupportedFeatures) -> Result<ModelSpec, ConfigErrors> {
    draft(text).into_validated_spec(support)
}

fn shown(spec: &ModelSpec) -> Vec<String> {
    let groups = spec.instance_groups.iter();
    groups.map(|g| format!("{} {:?} {} {:?}", g.name, g.kind, g.count, g.gpus)).collect()
}

/// The instance groups of a model with this backend.
fn groups(backend: &str, text: &str) -> Vec<String> {
    shown(&finish(&format!("backend: '{backend}' {text}"), &support()).unwrap())
}

#[test]
// row: INST-01
fn by_default_each_gpu_has_an_instance() {
    assert_eq!(groups("onnxruntime", ""), ["example Gpu 1 [0, 1]"]);
    assert_eq!(groups("identity", ""), ["example Gpu 1 [0, 1]"]);
    assert_eq!(groups("identity", "instance_group { count: 3 }"), ["example_0 Gpu 3 [0, 1]"]);
    let mut refused = support();
    refused.withhold_gpus("its library is one for CPUs");
    let spec = finish("backend: 'onnxruntime'", &refused).unwrap();
    assert_eq!(shown(&spec), ["example Cpu 2 []"]);
    let group = "backend: 'onnxruntime' instance_group { kind: KIND_GPU }";
    let expected = "f:1:41: instance_group[0].kind: instance group example_0 of model example has \
                    kind KIND_GPU but no GPUs are available to it: its library is one for CPUs";
    assert_eq!(finish(group, &refused).unwrap_err().to_string(), expected);
}

#[test]
// row: INST-03 INST-13
fn groups_on_gpus() {
    let text = "instance_group [ { }, { kind: KIND_GPU gpus: 1 count: 2 }, { gpus: 0 }, \
                { kind: KIND_CPU }, { kind: KIND_MODEL count: 2 } ]";
    assert_eq!(
        groups("onnxruntime", text),
        [
            "example_0 Gpu 1 [0, 1]",
            "example_1 Gpu 2 [1]",
            "example_2 Gpu 1 [0]",
            "example_3 Cpu 2 []",
            "example_4 Model 2 []"
        ]
    );
    for (group, expected) in [
        (
            "kind: KIND_GPU gpus: 7",
            "instance group example_0 of model example specifies invalid or unsupported gpu id 7. \
             GPUs with at least the minimum required CUDA compute compatibility of 6.000000 are: \
             0, 1",
        ),
        // Without the listed GPU, the group falls back to the CPU, which allows no GPUs.
        ("gpus: [ 0, 7 ]", "has kind KIND_CPU but specifies one or more GPUs"),
        ("kind: KIND_MODEL gpus: 0", "has kind KIND_MODEL but specifies one or more GPUs"),
        ("count: 3000", "6000 instances are too many"),
    ] {
        let text = format!("backend: 'identity' instance_group {{ {group} }}");
        let errors = finish(&text, &support()).unwrap_err().to_string();
        assert!(errors.contains(expected), "{errors}");
    }
}

#[test]
// row: INST-02
fn what_a_backend_prefers_is_limited_to_the_gpus_that_there_are() {
    let prefer = |kind, count, gpus: &[i32]| PreferredInstances { kind, count, gpus: gpus.into() };
    let check = |text: &str, preferred: &[PreferredInstances], expected: &[&str]| {
        let mut draft = draft(&format!("backend: 'b' {text}"));
        draft.apply_preferred_instances(preferred, &support());
        assert_eq!(shown(&draft.into_validated_spec(&support()).unwrap()), expected, "{text}");
    };
    let on_gpus = |count, gpus| prefer(Some(InstanceKind::Gpu), count, gpus);
    check("", &[on_gpus(0, &[])], &["example Gpu 1 [0, 1]"]);
    check("", &[on_gpus(2, &[1, 5])], &["example Gpu 2 [1]"]);
    check("", &[on_gpus(2, &[5])], &["example Gpu 2 [0, 1]"]);
    check("", &[prefer(None, 2, &[1])], &["example Gpu 2 [1]"]);
    check("", &[prefer(Some(InstanceKind::Cpu), 3, &[])], &["example Cpu 3 []"]);
    // Existing groups get the fields that they lack.
    check("instance_group { }", &[on_gpus(2, &[1])], &["example_0 Gpu 2 [1]"]);
    let both = [on_gpus(2, &[5]), on_gpus(3, &[0])];
    check("instance_group { kind: KIND_GPU }", &both, &["example_0 Gpu 3 [0]"]);
    check("instance_group { gpus: 1 }", &both, &["example_0 Gpu 2 [1]"]);
    check("instance_group { kind: KIND_CPU }", &both, &["example_0 Cpu 1 []"]);
}

#[test]
// row: CFG-14 CFG-29
fn profiles_are_numbers_of_tensorrt() {
    let profile = |names: &str| {
        let text = format!("platform: 'tensorrt_plan' instance_group {{ profile: [ {names} ] }}");
        finish(&text, &support()).map_err(|errors| errors.to_string())
    };
    let spec = profile("'0', ' 12', '-0'").unwrap();
    assert_eq!(spec.message().instance_group[0].profile, ["0", " 12", "-0"]);
    let check = |name: &str, expected: &str| {
        let errors = profile(name).unwrap_err();
        assert!(errors.ends_with(expected), "{errors}");
    };
    check("'0', ''", "instance_group[0].profile[1]: profile name must not be empty");
    check("'first'", "unable to parse 'first': stoi");
    check("'99999999999'", "unable to parse '99999999999': stoi");
    check(
        "'-1'",
        "instance group example_0 of model example and platform tensorrt_plan specifies invalid \
         profile -1. The field should contain the string representation of a non-negative integer.",
    );
    let other = "backend: 'identity' platform: 'p' instance_group { profile: '0' }";
    let expected = "and platform pspecifies profile field which is only supported for TensorRT \
                    models";
    assert!(finish(other, &support()).unwrap_err().to_string().ends_with(expected));
}

#[test]
// row: CFG-10
fn shape_tensors_and_non_linear_formats_are_tensorrts() {
    let tensor = |platform: &str, rest: &str| {
        let text = format!(
            "{platform} max_batch_size: 4 input {{ name: 'I' data_type: TYPE_INT32 {rest} }} \
             output {{ name: 'O' data_type: TYPE_INT32 {rest} }}"
        );
        finish(&text, &SupportedFeatures::default()).map_err(|errors| errors.to_string())
    };
    let spec = tensor("platform: 'tensorrt_plan'", "dims: 2 is_shape_tensor: true").unwrap();
    assert!(spec.inputs[0].is_shape_tensor && spec.outputs[0].is_shape_tensor);
    let linear = "dims: [ 8, 4, 4 ] is_non_linear_format_io: true";
    let spec = tensor("platform: 'tensorrt_plan'", linear).unwrap();
    assert!(spec.inputs[0].is_non_linear_format_io && !spec.inputs[0].is_shape_tensor);
    for (platform, rest, expected) in [
        (
            "backend: 'identity'",
            "dims: 2 is_shape_tensor: true",
            "shape tensors are only supported for TensorRT platform for example",
        ),
        (
            "backend: 'identity'",
            linear,
            "Non-linear IO format is only supported for the TensorRT platform for example",
        ),
        (
            "platform: 'tensorrt_plan'",
            "dims: 2 is_non_linear_format_io: true",
            "Non-linear IO format output requires 3 dims for example",
        ),
    ] {
        let errors = tensor(platform, rest).unwrap_err();
        assert!(errors.ends_with(expected) && errors.contains("input[0]."), "{errors}");
    }
}

#[test]
// row: MR-04 CFG-29
fn a_compute_capability_has_a_file() {
    let text = "backend: 'onnxruntime' default_model_filename: 'any.onnx' \
                cc_model_filenames { key: '9.0' value: 'hopper.onnx' } \
                cc_model_filenames { key: '7.5' value: 'turing.onnx' }";
    let spec = finish(text, &support()).unwrap();
    let files = [None, Some(0), Some(1), Some(2)].map(|gpu| spec.model_filename(gpu));
    assert_eq!(files, ["any.onnx", "any.onnx", "hopper.onnx", "any.onnx"]);
    assert!(spec.ignored_setting_warnings().is_empty());
    let without = finish(text, &SupportedFeatures::default()).unwrap();
    assert_eq!(without.model_filename(Some(1)), "any.onnx");
    let expected = "model 'example': 'cc_model_filenames' changes nothing: no GPU is used";
    assert_eq!(without.ignored_setting_warnings(), [expected]);
}

#[test]
// row: CFG-15 DYN-17 IMP-09
fn backends_that_get_the_whole_configuration_may_use_any_setting() {
    let text = "backend: 'b' optimization { eager_batching: true priority: PRIORITY_MAX \
                gather_kernel_buffer_threshold: 3 cuda { graphs: true } } \
                instance_group { secondary_devices { kind: KIND_NVDLA } } sequence_batching { \
                state { input_name: 'S' output_name: 'T' data_type: TYPE_FP32 dims: -1 \
                use_same_buffer_for_input_output: true use_growable_memory: true } }";
    let mut whole = support();
    whole.whole_configuration = true;
    let spec = finish(text, &whole).unwrap();
    assert!(spec.ignored_setting_warnings().is_empty() && spec.sequence_states()[0].is_growable);
    assert_eq!(finish(text, &support()).unwrap().ignored_setting_warnings().len(), 6);
    let other = text.replace("use_same_buffer_for_input_output: true", "");
    let spec = finish(&other, &whole).unwrap();
    assert!(!spec.sequence_states()[0].is_growable);
    let expected = "model 'example': 'sequence_batching.state.use_growable_memory' changes \
                    nothing: each new state gets memory of its own size";
    assert_eq!(spec.ignored_setting_warnings(), [expected]);
}

#[test]
// row: IMP-09
fn states_of_onnx_models_grow_on_gpus() {
    let remarks = |kind: &str, flags: &str| {
        let text = format!(
            "backend: 'onnxruntime' instance_group {{ kind: {kind} }} sequence_batching {{ state {{
             input_name: 'S' output_name: 'T' data_type: TYPE_FP32 dims: -1 {flags} }} }}"
        );
        finish(&text, &support()).unwrap().ignored_setting_warnings().len()
    };
    let both = "use_same_buffer_for_input_output: true use_growable_memory: true";
    assert_eq!((remarks("KIND_GPU", both), remarks("KIND_AUTO", both)), (0, 0));
    assert_eq!(remarks("KIND_CPU", both), 1);
    assert_eq!(remarks("KIND_GPU", "use_growable_memory: true"), 1);
}
