//! Inference calls, both successful and failed.

mod common;

use std::sync::atomic::Ordering;

use bytes::Bytes;
use common::{Fixture, finish, framed, infer_head, infer_request};
use galatea_grpc::GrpcOptions;
use galatea_infer::Code;
use galatea_protocol::inference::ModelInferResponse;

#[tokio::test]
async fn a_tensor_is_echoed() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    for model in ["inline", "thread", "split"] {
        for length in [0, 1, 1000, 3000, 100_000] {
            client.check_echo(model, Bytes::from(vec![7; length])).await;
        }
    }
}

#[tokio::test]
async fn a_model_is_looked_up_once_for_each_request() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    client.check_echo("inline", Bytes::from_static(b"1")).await;
    assert_eq!(fixture.fake.lookups.swap(0, Ordering::SeqCst), 1);
    let mut stream = client.stream().await;
    stream.infer("inline", "a");
    stream.next().await.unwrap();
    assert_eq!(fixture.fake.lookups.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_message_may_arrive_in_any_pieces() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let body = framed(&infer_request("inline", Bytes::from_static(b"0123456789")));
    for size in [1, 4, 5, 6, 20] {
        let mut pieces: Vec<Bytes> = body.chunks(size).map(Bytes::copy_from_slice).collect();
        pieces.push(Bytes::new());
        let result = finish(client.begin(infer_head(), pieces).await).await.unwrap();
        let response: ModelInferResponse = result.message();
        assert_eq!(response.raw_output_contents, [Bytes::from_static(b"0123456789")]);
    }
}

#[tokio::test]
async fn many_calls_share_a_connection() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let mut calls = Vec::new();
    for number in 0..500_u32 {
        let model = if number % 2 == 0 { "thread" } else { "inline" };
        let body = framed(&infer_request(model, Bytes::from(number.to_le_bytes().to_vec())));
        calls.push((number, client.begin(infer_head(), vec![body]).await));
    }
    for (number, call) in calls {
        let response: ModelInferResponse = finish(call).await.unwrap().message();
        let expected = Bytes::from(number.to_le_bytes().to_vec());
        assert_eq!(response.raw_output_contents, [expected]);
    }
}

/// Twenty mebibytes flow each way, far more than fits in any window or buffer.
#[tokio::test]
async fn large_messages_flow() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let data: Vec<u8> = (0..20_u32 << 20).map(|i| (i % 251) as u8).collect();
    let data = Bytes::from(data);
    for model in ["inline", "thread"] {
        let (one, two) =
            tokio::join!(client.infer(model, data.clone()), client.infer(model, data.clone()));
        for result in [one, two] {
            let response: ModelInferResponse = result.message();
            assert!(response.raw_output_contents == [data.clone()]);
        }
    }
}

#[tokio::test]
async fn failures_have_codes_and_messages() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let fails = async |model: &str, code, message: &str| {
        client.infer(model, Bytes::new()).await.assert_failed(code, message);
    };
    fails("unknown", Code::NotFound, "Request for unknown model: 'unknown' is not found").await;
    fails(
        "decoupled",
        Code::Unsupported,
        "ModelInfer RPC doesn't support models with decoupled transaction policy",
    )
    .await;
    let encoded = "nicht jetzt %E2%80%93 sp%C3%A4ter";
    fails("refusing", Code::Unavailable, encoded).await;
    let dropped = "the request was dropped without a final response";
    fails("dropping", Code::Internal, dropped).await;
    fails("silent", Code::Internal, "expected a single response, got 0").await;
    fails("twice", Code::Internal, "expected a single response, got 2").await;
    fails("panicking", Code::Internal, "the server failed on this request").await;
    fails("buggy", Code::Internal, "the server failed on this request").await;
    // The connection still works.
    client.check_echo("thread", Bytes::from_static(b"x")).await;
}

/// The model is looked up before the request is checked, as in Triton.
#[tokio::test]
async fn an_unknown_model_is_reported_first() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let mut request = infer_request("unknown", Bytes::new());
    request.raw_input_contents.clear();
    let result = client.call(infer_head(), framed(&request)).await;
    result.assert_failed(Code::NotFound, "Request for unknown model: 'unknown' is not found");
    request.model_name = "inline".into();
    let missing = "unable to find data for input tensor 'T' for model 'inline' in request.";
    let result = client.call(infer_head(), framed(&request)).await;
    result.assert_failed(Code::InvalidArgument, missing);
    request.model_version = "one".into();
    let result = client.call(infer_head(), framed(&request)).await;
    assert_eq!(result.status().0, 3);
}

#[tokio::test]
async fn bodies_that_are_not_a_message_are_refused() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let refused = async |body: &'static [u8], code, message: &str| {
        let result = client.call(infer_head(), Bytes::from_static(body)).await;
        result.assert_failed(code, message);
    };
    refused(b"\0\0\0\0\x01\xff", Code::Internal, "Unable to parse request").await;
    refused(b"\0\0\0\0\x02\xff", Code::Internal, "the body ends inside a message").await;
    let none = "the method takes one message, and none was sent";
    refused(b"", Code::Unsupported, none).await;
    let more = "the method takes one message, and more were sent";
    refused(b"\0\0\0\0\0\0\0\0\0\0", Code::Unsupported, more).await;
}

#[tokio::test]
async fn long_messages_are_refused_by_their_length() {
    let mut options = GrpcOptions::default();
    options.message_bytes_max = 1000;
    let fixture = Fixture::with(options);
    let client = fixture.client().await;
    let result = client.infer("inline", Bytes::from(vec![0; 2000])).await;
    let (code, message) = result.status();
    assert_eq!(code, 8);
    assert!(message.starts_with("Received message larger than max (20"), "{message}");
    client.check_echo("inline", Bytes::from(vec![0; 900])).await;
}
