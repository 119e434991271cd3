//! Outputs as classes.

mod common;

use std::collections::BTreeMap;

use bytes::Bytes;
use common::{Fixture, finish, framed, infer_head, infer_request};
use galatea_fakes::echo;
use galatea_infer::Code;
use galatea_protocol::inference::infer_parameter::ParameterChoice;
use galatea_protocol::inference::model_infer_request::InferRequestedOutputTensor;
use galatea_protocol::inference::{InferParameter, ModelInferRequest, ModelInferResponse};

const CLASSES: &[u8] = b"\x03\0\0\x009:2\x03\0\0\x007:1";

/// Returns a request for the classes of two of three bytes.
fn classified(model: &str) -> ModelInferRequest {
    let count = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(2)) };
    let output = InferRequestedOutputTensor {
        name: "T".into(),
        parameters: BTreeMap::from([("classification".into(), count)]),
    };
    ModelInferRequest {
        outputs: vec![output],
        ..infer_request(model, Bytes::from_static(&[5, 7, 9]))
    }
}

fn check(response: &ModelInferResponse) {
    let output = &response.outputs[0];
    assert_eq!((output.datatype.as_str(), output.shape.as_slice()), ("BYTES", &[2][..]));
    assert_eq!(response.raw_output_contents, [CLASSES]);
}

#[tokio::test]
async fn a_call_gets_classes() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    for model in ["inline", "thread", "split"] {
        let body = framed(&classified(model));
        let result = finish(client.begin(infer_head(), vec![body]).await).await.unwrap();
        check(&result.message());
    }
}

#[tokio::test]
async fn a_type_without_classes_fails_the_call() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let mut request = classified("inline");
    request.inputs[0].datatype = "BOOL".into();
    let body = framed(&request);
    let result = finish(client.begin(infer_head(), vec![body]).await).await.unwrap();
    let message = "class result not available for output due to unsupported type 'BOOL'";
    result.assert_failed(Code::InvalidArgument, message);
}

#[tokio::test]
async fn each_response_on_a_stream_has_classes() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let mut stream = client.stream().await;
    stream.request(&classified("inline"));
    check(&stream.next().await.unwrap().infer_response.unwrap());
    stream.request(&classified("decoupled"));
    let (request, mut sender) = fixture.held.recv().await.unwrap();
    for _ in 0..2 {
        sender.send(Ok(echo(request.clone())));
        check(&stream.next().await.unwrap().infer_response.unwrap());
    }
    sender.finish_without_response();
    // A refused response without classes doesn't end the stream.
    let mut refused = classified("thread");
    refused.inputs[0].datatype = "BOOL".into();
    stream.request(&refused);
    let error = stream.next().await.unwrap().error_message;
    assert_eq!(error, "class result not available for output due to unsupported type 'BOOL'");
    stream.infer("inline", "8");
    assert_eq!(stream.next().await.unwrap().infer_response.unwrap().id, "8");
}
