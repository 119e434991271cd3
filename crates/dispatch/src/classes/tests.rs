//! Tests that labels are read when a model is loaded, and reach the door with the request.

use std::sync::Arc;

use galatea_backend::ExecutionPolicy;
use galatea_infer::{ClassificationInfoOnce, Code, InferenceRequest};

use crate::LocalCache;
use crate::testing::{ECHO, FakeBackend, FakeModelFiles, ServerSetup, echo_request, send};

const LABELLED: &str = r#"
    name: "echo" backend: "fake" max_batch_size: 8
    input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] label_filename: "labels.txt" }
"#;

fn setup(text: &str, labels: &str) -> ServerSetup {
    let in_model_directory = vec![("labels.txt", labels.as_bytes().to_vec())];
    let files = FakeModelFiles { version: 1, in_model_directory, ..FakeModelFiles::default() };
    ServerSetup::new(text, FakeBackend::new(ExecutionPolicy::Inline)).files(vec![files])
}

fn request_with_classes() -> (InferenceRequest, ClassificationInfoOnce) {
    let slot = ClassificationInfoOnce::default();
    (InferenceRequest { classes: Some(slot.clone()), ..echo_request(&[1, 2]) }, slot)
}

#[test]
fn a_request_gets_the_labels_of_the_version_that_executes_it() {
    let server = setup(LABELLED, "cat\n\ndog").serve();
    let (request, slot) = request_with_classes();
    send(&server, request).recv().unwrap().unwrap();
    let classes = slot.get().unwrap();
    assert!(classes.has_batch_dimension());
    let labels = classes.labels("OUT").unwrap();
    assert_eq!((labels.get(0).unwrap(), labels.get(2).unwrap()), (c"cat", c"dog"));
    assert_eq!((labels.get(1), labels.count()), (None, 3));
    assert!(classes.labels("IN").is_none());
}

#[test]
fn a_model_without_labels_reports_whether_it_has_batches() {
    for (max_batch_size, dims, batches) in [(8, [1, 2], true), (0, [1, 2], false)] {
        let text = ECHO.replace("max_batch_size: 8", &format!("max_batch_size: {max_batch_size}"));
        let text = if batches { text } else { text.replace("-1", "-1, -1") };
        let server = setup(&text, "").serve();
        let slot = ClassificationInfoOnce::default();
        let request = InferenceRequest { classes: Some(slot.clone()), ..echo_request(&dims) };
        send(&server, request).recv().unwrap().unwrap();
        assert_eq!(slot.get().unwrap().has_batch_dimension(), batches);
        assert!(slot.get().unwrap().labels("OUT").is_none());
    }
}

#[test]
fn a_missing_label_file_fails_the_load() {
    let text = LABELLED.replace("labels.txt", "other.txt");
    let (_, failures) = setup(&text, "cat").load();
    let status = &failures[0].status;
    let expected = (Code::NotFound, "labels of output 'OUT': no file 'other.txt'");
    assert_eq!((status.code(), status.message()), expected);
}

#[test]
fn a_cached_response_serves_requests_with_and_without_classes() {
    let backend = FakeBackend::new(ExecutionPolicy::Inline);
    let batches = backend.batches.clone();
    let cache = Arc::new(LocalCache::new(1 << 20));
    let server = ServerSetup::new(format!("{ECHO} response_cache {{ enable: true }}"), backend)
        .cache(cache)
        .serve();
    send(&server, echo_request(&[1, 2])).recv().unwrap().unwrap();
    let (request, slot) = request_with_classes();
    send(&server, request).recv().unwrap().unwrap();
    assert!(slot.get().unwrap().has_batch_dimension());
    assert_eq!(*batches.lock().unwrap(), [1], "the second was not executed");
}
