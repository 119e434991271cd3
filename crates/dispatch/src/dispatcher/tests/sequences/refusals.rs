//! Tests of refused requests and models, and of the error messages.

use galatea_infer::{Code, CorrelationId, InferenceRequest};
use galatea_tensor::{Buffer, DataType, Shape};

use crate::testing::sequences::{
    BLOCKING, DIRECT, ONE_INSTANCE, ScriptedBackend, config, error, step, value, wait_until_empty,
};
use crate::testing::{FakeModelFiles, ServerSetup, send};

#[test]
fn requests_that_belong_to_no_sequence_are_refused() {
    let text = config(4, DIRECT, ONE_INSTANCE);
    let server = ServerSetup::new(text, ScriptedBackend::summing(BLOCKING)).serve();
    let disturbed = |number, flags| value(&send(&server, step(9, flags, number)));
    assert_eq!(disturbed(1, "+"), 1);
    let check = |request: InferenceRequest, message: &str| {
        let status = error(&send(&server, request));
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert_eq!(status.message(), message);
    };
    check(
        step(0, "+", 1),
        "inference request to model 'seq' must specify a non-zero or non-empty correlation ID",
    );
    check(
        step(5, "", 1),
        "inference request for sequence 5 to model 'seq' must specify the START flag on the first \
         request of the sequence",
    );
    check(
        step(5, ".", 1),
        "inference request for sequence 5 to model 'seq' must specify the START flag on the first \
         request of the sequence",
    );
    let two = InferenceRequest { id: String::from("x"), ..step(5, "+", 1) };
    let two = with_input(two, &[2, 1], 8);
    check(
        two,
        "inference request to model 'seq' must specify batch-size 1 due to requirements of \
         sequence batcher",
    );
    let text = InferenceRequest {
        correlation_id: CorrelationId::Text(String::from("a")),
        ..step(5, "+", 1)
    };
    check(
        text,
        "[request id: <id_unknown>] sequence batching control 'CORRID' data-type is 'BYTES', but \
         model 'seq' expects 'UINT64'",
    );
    assert_eq!(disturbed(2, "."), 3);
    // As in Triton, requests that the scheduler rejects are not counted.
    let statistics = &server.statistics(None, None).unwrap()[0];
    assert_eq!((statistics.failures, statistics.inference.fail.count), ([0; 4], 0));
    wait_until_empty(&server);
}

fn with_input(mut request: InferenceRequest, dims: &[i64], byte_size: usize) -> InferenceRequest {
    request.inputs[0].shape = Shape::new(dims).unwrap();
    request.inputs[0].data = Buffer::from_vec(vec![0; byte_size]);
    request
}

#[test]
fn the_correlation_id_must_have_the_type_of_the_control() {
    let text = config(4, DIRECT, ONE_INSTANCE).replace("TYPE_UINT64", "TYPE_STRING");
    let server = ServerSetup::new(text, ScriptedBackend::summing(BLOCKING)).serve();
    let status = error(&send(&server, step(5, "+", 1)));
    let expected = "control 'CORRID' data-type is 'UINT64', but model 'seq' expects 'BYTES'";
    assert!(status.message().ends_with(expected), "{status}");
}

#[test]
fn clients_must_not_send_controls_and_states() {
    let text =
        config(4, DIRECT, ONE_INSTANCE).replace("dims: [ 1 ] }", "dims: [ 1 ] optional: true }");
    // The replacement also makes the output optional, which is not allowed.
    let text = text.replacen(
        "TYPE_INT32 dims: [ 1 ] optional: true }\n         sequence",
        "TYPE_INT32 dims: [ 1 ] }\n         sequence",
        1,
    );
    let server = ServerSetup::new(text, ScriptedBackend::summing(BLOCKING)).serve();
    for name in ["START", "READY", "END", "CORRID", "SUM_IN"] {
        let mut request = step(5, "+", 1);
        request.inputs[0].name = String::from(name);
        let status = error(&send(&server, request));
        assert_eq!(status.code(), Code::InvalidArgument);
        let expected = format!("unexpected inference input '{name}' for model 'seq'");
        assert!(status.message().contains(&expected), "{status}");
    }
    for name in ["SUM_OUT", "SUM_IN", "START"] {
        let request = InferenceRequest { outputs: vec![String::from(name)], ..step(5, "+", 1) };
        let status = error(&send(&server, request));
        assert_eq!(status.code(), Code::InvalidArgument);
        let expected = format!("unexpected inference output '{name}' for model 'seq'");
        assert!(status.message().contains(&expected), "{status}");
    }
}

/// Loads a model whose initial state comes from a file.
fn load(datatype: DataType, dims: &str, content: Option<&[u8]>) -> Result<(), String> {
    let datatype = datatype.config_name();
    let text = config(4, DIRECT, ONE_INSTANCE).replace(
        "output_name: \"SUM_OUT\" data_type: TYPE_INT32\n             dims: [ 1 ] initial_state { \
         name: \"zero\" data_type: TYPE_INT32 dims: [ 1 ]\n             zero_data: true }",
        &format!(
            "output_name: \"SUM_OUT\" data_type: {datatype} dims: [ {dims} ] initial_state {{ \
             name: \"file\" data_type: {datatype} dims: [ {dims} ] data_file: \"begin\" }}"
        ),
    );
    assert!(text.contains("data_file"), "{text}");
    let initial_states = content.map(|content| ("begin", content.to_vec())).into_iter().collect();
    let files = FakeModelFiles { version: 1, initial_states, ..FakeModelFiles::default() };
    let (_, failures) =
        ServerSetup::new(text, ScriptedBackend::summing(BLOCKING)).files(vec![files]).load();
    failures
        .into_iter()
        .next()
        .map_or(Ok(()), |failure| Err(String::from(failure.status.message())))
}

#[test]
fn an_initial_state_must_fit_its_shape() {
    let refused = |datatype, dims, content, expected: &str| {
        let message = load(datatype, dims, content).unwrap_err();
        assert!(message.starts_with("state 'SUM_IN' of 'seq': "), "{message}");
        assert!(message.contains(expected), "{message}");
    };
    let int = DataType::Int32;
    assert_eq!(load(int, "2", Some(&[0; 8])), Ok(()));
    refused(int, "2", None, "no file 'begin'");
    let short = "initial_state setting expects 8 bytes, but the data provided from beginonly has 7 \
                 bytes.";
    assert_eq!(load(int, "2", Some(&[0; 7])), Err(String::from(short)));
    assert_eq!(load(int, "2", Some(&[0; 9])), Ok(()), "the beginning is used");
    let strings = DataType::Bytes;
    assert_eq!(load(strings, "2", Some(b"\x01\0\0\0a\0\0\0\0")), Ok(()));
    refused(strings, "2", Some(b"\x01\0\0\0a"), "'begin' has 1 strings, but 2 are expected");
    refused(strings, "1", Some(b"\x01\0\0\0a\0\0\0\0"), "has 2 strings, but 1 are expected");
    refused(strings, "1", Some(b"\x02\0\0\0a"), "incomplete string data");
    assert_eq!(load(DataType::Bool, "2", Some(&[0, 1])), Ok(()));
    refused(DataType::Bool, "2", Some(&[0, 2]), "has booleans other than 0 and 1");
}

#[test]
fn a_state_larger_than_memory_is_refused() {
    let huge = "data_type: TYPE_INT32\n             dims: [ 1000000000000000 ] }";
    let text = config(4, DIRECT, ONE_INSTANCE).replace(
        "data_type: TYPE_INT32\n             dims: [ 1 ] initial_state { name: \"zero\" data_type: \
         TYPE_INT32 dims: [ 1 ]\n             zero_data: true } }",
        huge,
    );
    assert!(text.contains(huge), "{text}");
    let (_, failures) = ServerSetup::new(text, ScriptedBackend::summing(BLOCKING)).load();
    let message = failures[0].status.message();
    assert!(message.contains("shape [1,1000000000000000] is larger than memory"), "{message}");
}
