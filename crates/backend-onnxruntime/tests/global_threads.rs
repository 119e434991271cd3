//! Thread pools that all sessions share. The pools belong to the process, so this test runs in its
//! own process.

#![allow(clippy::unwrap_used, reason = "a test may panic, and its helpers too")]

mod support;

use std::sync::Arc;

use galatea_backend::Backend;
use galatea_backend_onnxruntime::OnnxRuntimeBackend;
use galatea_stdx::testing::eventually;
use galatea_tensor::DataType;

use support::onnx::{Data, FLOAT, Graph, INT64, identity};
use support::{
    Files, LOG, RecordingHost, backend_with, cpu, execute, floats, output, request, spec, tensor,
};

const CONFIG: &str = "
    max_batch_size: 4
    input [ { name: 'INPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 2 ] } ]
    parameters { key: 'intra_op_thread_count' value: { string_value: '3' } }";

#[test]
// row: ONNX-03
fn sessions_use_the_pools_of_the_environment() {
    let threads = thread_count();
    let backend = backend_with(&[
        ("enable-global-threadpool", "1"),
        ("intra_op_thread_count", "2"),
        ("inter_op_thread_count", "1"),
    ]);
    // Expects one thread in addition to the caller, and none for telemetry.
    check_thread_count(threads + 1);
    let files = Files::model(identity(FLOAT, &[-1, 2]));
    let host = Arc::new(RecordingHost::default());
    let model = backend.load(Arc::new(spec(CONFIG)), &files, host.clone()).unwrap();
    let mut instance = model.create_instance(&cpu()).unwrap();
    // The threads that the model requests are not started.
    check_thread_count(threads + 1);
    let data = floats(&[1., 2.]);
    let one = request(vec![tensor("INPUT0", DataType::Fp32, &[1, 2], data.clone())]);
    let results = execute(instance.as_mut(), &host, vec![one]);
    assert_eq!(output(results[0].as_ref().unwrap(), "OUTPUT0").1, data);

    check_the_librarys_log(&backend);
}

/// The number of threads in this process.
fn thread_count() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// A joined thread may remain listed for a moment.
#[track_caller]
fn check_thread_count(expected: usize) {
    eventually(|| thread_count() <= expected);
    assert_eq!(thread_count(), expected);
}

/// Checks that the library's messages reach the backend's log.
fn check_the_librarys_log(backend: &OnnxRuntimeBackend) {
    let graph = Graph::default()
        .input("INDEX", INT64, &[1])
        .output("OUTPUT0", FLOAT, &[1])
        .initializer("table", FLOAT, &[2], Data::Here(&floats(&[5., 6.])))
        .node("Gather", &["table", "INDEX"], &["OUTPUT0"]);
    let config = "
        input [ { name: 'INDEX' data_type: TYPE_INT64 dims: [ 1 ] } ]
        output [ { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ 1 ] } ]";
    let host = Arc::new(RecordingHost::default());
    let files = Files::model(graph);
    let model = backend.load(Arc::new(spec(config)), &files, host.clone()).unwrap();
    let mut instance = model.create_instance(&cpu()).unwrap();
    let index = 9_i64.to_le_bytes().to_vec();
    let one = request(vec![tensor("INDEX", DataType::Int64, &[1], index)]);
    let results = execute(instance.as_mut(), &host, vec![one]);
    assert!(results[0].is_err());
    let log = LOG.lock().unwrap();
    let logged = |line: &String| line.starts_with("Error onnxruntime: ") && line.contains("Gather");
    assert!(log.iter().any(logged), "{log:?}");
}
