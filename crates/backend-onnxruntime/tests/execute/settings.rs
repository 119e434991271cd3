//! Parameters and optimization settings.

use std::sync::Arc;

use galatea_backend::{Backend, BackendFingerprint, FileFingerprint, LoadedVersion, ModelHost};
use galatea_tensor::DataType;

use crate::support::onnx::{FLOAT, identity};
use crate::support::{
    Files, RecordingHost, TestModel, backend_with, failure, floats, library, library_path, output,
    request, spec, tensor, try_backend, try_load,
};

const BASE: &str = "
    max_batch_size: 4
    input [ { name: 'INPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]";

fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: '{key}' value: {{ string_value: '{value}' }} }}")
}

/// Checks that a model with these settings loads and executes.
fn accepts(settings: &str) -> TestModel {
    let files = Files::model(identity(FLOAT, &[-1, 2]));
    let mut loaded = try_load(&files, &format!("{BASE} {settings}")).unwrap();
    let data = floats(&[1., 2.]);
    let one = request(vec![tensor("INPUT0", DataType::Fp32, &[1, 2], data.clone())]);
    assert_eq!(output(&loaded.execute_one(one).unwrap(), "OUTPUT0").1, data, "{settings}");
    loaded
}

fn refuses(settings: &str, expected: &str) {
    let files = Files::model(identity(FLOAT, &[-1, 2]));
    let (_, message) = failure(try_load(&files, &format!("{BASE} {settings}")));
    assert!(message.contains(expected), "{message}\n  lacks\n{expected}");
}

#[test]
// row: ONNX-03 ONNX-04 ONNX-05
fn known_parameters_are_accepted() {
    for (key, value) in [
        ("intra_op_thread_count", "2"),
        ("intra_op_thread_count", "0"),
        ("inter_op_thread_count", "2"),
        ("execution_mode", "0"),
        ("execution_mode", "1"),
        ("enable_mem_arena", "0"),
        ("enable_mem_arena", "1"),
        ("enable_mem_pattern", "false"),
        ("enable_mem_pattern", "true"),
        ("memory.enable_memory_arena_shrinkage", "cpu:0"),
        ("session.use_device_allocator_for_initializers", "1"),
        ("session.intra_op.allow_spinning", "0"),
        ("session.inter_op.allow_spinning", "1"),
        ("of another program", "anything"),
    ] {
        accepts(&parameter(key, value));
    }
    for level in [-1, 0, 1, 2] {
        accepts(&format!("optimization {{ graph {{ level: {level} }} }}"));
    }
    accepts("instance_group [ { count: 3 kind: KIND_CPU } ]");
    let all = ["intra_op_thread_count", "inter_op_thread_count", "execution_mode"]
        .map(|key| parameter(key, "1"))
        .join(" ");
    accepts(&all);
}

#[test]
fn the_fingerprint_depends_on_the_library_and_the_settings() {
    let files = Files::model(identity(FLOAT, &[-1, 2]));
    let fingerprint = |config: &[(&str, &str)]| {
        let (backend, spec) = (backend_with(config), Arc::new(spec(BASE)));
        let host: Arc<dyn ModelHost> = Arc::new(RecordingHost::default());
        let model = backend.load(spec.clone(), &files, host.clone()).unwrap();
        let model = model.as_ref();
        backend.fingerprint(&LoadedVersion { spec: &spec, files: &files, model, host: &host })
    };
    let expected = |settings: &[(&str, &str)]| {
        let own = |(key, value): &(&str, &str)| (String::from(*key), String::from(*value));
        let files = vec![FileFingerprint::of(&library_path())?];
        let settings = settings.iter().map(own).collect();
        Some(BackendFingerprint { version: library().version().to_owned(), settings, files })
    };
    for settings in [&[][..], &[("default-max-batch-size", "7"), ("other", "x")]] {
        assert_eq!(fingerprint(settings), expected(settings));
    }
}

#[test]
fn invalid_values_are_refused() {
    let refused =
        |key: &str, value: &str, expected: &str| refuses(&parameter(key, value), expected);
    let key = "intra_op_thread_count";
    refused(
        key,
        "two",
        "failed to convert 'two' to integral number: parameter 'intra_op_thread_count'",
    );
    refused("inter_op_thread_count", "", "failed to convert '' to integral number");
    refused("execution_mode", "2", "Expected values for  execution_mode are 0 or 1 but got 2 .");
    refused("enable_mem_arena", "maybe", "failed to convert 'maybe' to boolean");
    refused("enable_mem_pattern", "2", "failed to convert '2' to boolean");
    let key = "memory.enable_memory_arena_shrinkage";
    refused(key, "cpu", "'memory.enable_memory_arena_shrinkage' is 'cpu', which is not a list");
    refused(key, "gpu:0", "which is not possible without an instance on a GPU");
    refuses(
        &format!("{} {}", parameter(key, "cpu:0"), parameter("enable_mem_arena", "0")),
        "which is not possible while 'enable_mem_arena' is off",
    );
    let key = "session.use_device_allocator_for_initializers";
    refused(key, "x", "failed to convert 'x' to boolean");
}

/// The library checks the option at each run, so the error shows that the option is passed on.
#[test]
// row: ONNX-05
fn shrinking_an_absent_arena_fails_the_run() {
    let files = Files::model(identity(FLOAT, &[-1, 2]));
    let shrink = parameter("memory.enable_memory_arena_shrinkage", "cpu:9");
    let mut loaded = try_load(&files, &format!("{BASE} {shrink}")).unwrap();
    let one = request(vec![tensor("INPUT0", DataType::Fp32, &[1, 2], floats(&[1., 2.]))]);
    let (_, message) = failure(loaded.execute_one(one));
    assert!(message.contains("arena"), "{message}");
}

#[test]
// row: ONNX-06
fn accelerators_must_be_known_and_available() {
    let accelerator = |kind: &str, name: &str| {
        format!(
            "optimization {{ execution_accelerators {{
               {kind}_execution_accelerator: [ {{ name: '{name}' }} ] }} }}"
        )
    };
    refuses(&accelerator("cpu", "warp"), "unknown Execution Accelerator 'warp' is requested");
    refuses(&accelerator("gpu", "warp"), "unknown Execution Accelerator 'warp' is requested");
    refuses(&accelerator("cpu", "cuda"), "unknown Execution Accelerator 'cuda' is requested");
    let library = library();
    // CPU-only libraries lack the provider.
    if !library.providers().iter().any(|name| name == "OpenVINOExecutionProvider") {
        let expected = format!(
            "execution accelerator 'openvino' needs OpenVINOExecutionProvider, which ONNX Runtime \
             {} at",
            library.version()
        );
        refuses(&accelerator("cpu", "openvino"), &expected);
    }
}

/// The accelerators are ignored even if the library lacks them.
#[test]
// row: ONNX-06
fn accelerators_of_gpus_are_ignored_on_the_cpu() {
    for name in ["tensorrt", "cuda"] {
        let settings = format!(
            "optimization {{ execution_accelerators {{
               gpu_execution_accelerator: [ {{ name: '{name}' parameters {{ key: 'x' value: 'y' }} }} ]
             }} }}"
        );
        let loaded = accepts(&settings);
        let expected = format!(
            "Warning model 'm' has instances on the CPU, which don't use the execution \
             accelerator '{name}'"
        );
        assert_eq!(loaded.host.log.lock().unwrap().as_slice(), [expected]);
    }
}

#[test]
fn command_line_settings_are_used_and_checked() {
    let refused = |key: &str, value: &str, expected: &str| {
        let (_, message) = failure(try_backend(&[(key, value)]));
        assert!(message.contains(expected), "{message}");
    };
    refused("default-max-batch-size", "many", "failed to convert 'many' to integral number");
    refused("default-max-batch-size", "-1", "'default-max-batch-size' is '-1'");
    refused("enable-global-threadpool", "7", "failed to convert '7' to boolean");
    assert!(try_backend(&[("of another backend", "anything")]).is_ok());
}
