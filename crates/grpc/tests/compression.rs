//! Compressed requests and responses.

#![allow(clippy::unwrap_used, reason = "only tests use this")]

mod common;

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use common::{CallResult, Fixture, framed, infer_head, infer_request, inference, request};
use galatea_codec::compression::{
    CompressedStreamEnd, CompressionFormat, ContentCoding, DeflateLevel, InflateProgress, Inflater,
    compress,
};
use galatea_gate::ledger::MemoryAccount;
use galatea_grpc::{CompressionLevel, GrpcOptions};
use galatea_protocol::inference::model_repository_parameter::ParameterChoice;
use galatea_protocol::inference::{
    ModelInferResponse, ModelReadyRequest, ModelReadyResponse, ModelRepositoryParameter,
    ModelStreamInferResponse, RepositoryModelLoadRequest,
};
use prost::Message;

/// The codings that Triton accepts.
const ACCEPTED: &str = "identity, deflate, gzip";
const GZIP_DAMAGED: &str = "Unexpected error decompressing data for algorithm gzip";

fn fixture(level: CompressionLevel) -> Fixture {
    let mut options = GrpcOptions::default();
    options.response_compression = level;
    Fixture::with(options)
}

/// Returns a message with these flags.
fn flagged(flags: u8, bytes: &[u8]) -> Bytes {
    let mut body = BytesMut::new();
    body.put_u8(flags);
    body.put_u32(bytes.len().try_into().unwrap());
    body.put(bytes);
    body.freeze()
}

fn compressed(message: &impl Message, coding: ContentCoding) -> Bytes {
    let parts = [Bytes::from(message.encode_to_vec())];
    flagged(1, &compress(&parts, coding, DeflateLevel::DEFAULT))
}

/// Returns the message of a response, after checking its compression flag.
fn inflated<M: Message + Default>(data: &Bytes, coding: Option<ContentCoding>) -> M {
    assert_eq!(data[0], u8::from(coding.is_some()));
    let Some(coding) = coding else { return M::decode(&data[5..]).unwrap() };
    let format = match coding {
        ContentCoding::Gzip => CompressionFormat::Gzip,
        ContentCoding::Deflate => CompressionFormat::Zlib,
    };
    let mut inflater =
        Inflater::new(data.slice(5..), format, 1 << 30, Arc::new(MemoryAccount::unlimited()));
    assert_eq!(inflater.advance(usize::MAX), InflateProgress::Ended(CompressedStreamEnd::Complete));
    M::decode(inflater.into_output()).unwrap()
}

fn zeros() -> Bytes {
    Bytes::from(vec![0; 3 << 20])
}

#[tokio::test]
async fn compressed_requests_are_inflated() {
    let fixture = fixture(CompressionLevel::None);
    let client = fixture.client().await;
    for coding in [ContentCoding::Gzip, ContentCoding::Deflate] {
        let head = || infer_head().header("grpc-encoding", coding.name());
        for data in [zeros(), Bytes::from_static(b"x")] {
            let body = compressed(&infer_request("inline", data.clone()), coding);
            let result = client.call(head(), body).await;
            let response: ModelInferResponse = result.message();
            assert!(response.raw_output_contents == [data], "other data came back");
            assert_eq!(result.headers["grpc-accept-encoding"], ACCEPTED);
            assert!(!result.headers.contains_key("grpc-encoding"));
        }
        // Without the flag, a message is not compressed, whatever the headers say.
        let body = framed(&infer_request("inline", zeros()));
        let _: ModelInferResponse = client.call(head(), body).await.message();
    }
}

/// Inflating takes many rounds, during which other calls receive their responses.
#[tokio::test]
async fn many_messages_are_inflated_side_by_side() {
    let fixture = fixture(CompressionLevel::None);
    let client = fixture.client().await;
    let body = compressed(&infer_request("inline", zeros()), ContentCoding::Gzip);
    let head = || infer_head().header("grpc-encoding", "gzip");
    let mut calls = Vec::new();
    for _ in 0..10 {
        calls.push(client.begin(head(), vec![body.clone()]).await);
    }
    client.check_echo("inline", Bytes::from_static(b"between")).await;
    for call in calls {
        let response: ModelInferResponse = common::finish(call).await.unwrap().message();
        assert!(response.raw_output_contents == [zeros()], "other data came back");
    }
    assert_eq!(fixture.door.request_bytes(), 0);
}

#[tokio::test]
async fn streams_inflate_requests_in_their_order() {
    let fixture = fixture(CompressionLevel::Low);
    let client = fixture.client().await;
    let head = request(&inference("ModelStreamInfer")).header("grpc-encoding", "deflate");
    let mut stream = client.stream_with(head).await;
    for (id, data) in [("a", zeros()), ("b", Bytes::from_static(b"x")), ("c", zeros())] {
        let mut request = infer_request("thread", data);
        request.id = id.into();
        stream.send.send_data(compressed(&request, ContentCoding::Deflate), false).unwrap();
    }
    stream.end();
    for id in ["a", "b", "c"] {
        let response = stream.next().await.unwrap().infer_response.unwrap();
        assert_eq!(response.id, id);
        let expected = if id == "b" { Bytes::from_static(b"x") } else { zeros() };
        assert!(response.raw_output_contents == [expected], "other data came back");
    }
    assert_eq!(stream.next().await.unwrap_err(), (0, String::new()));
    let damaged = request(&inference("ModelStreamInfer")).header("grpc-encoding", "gzip");
    let mut stream = client.stream_with(damaged).await;
    stream.send.send_data(flagged(1, b"garbage"), true).unwrap();
    let (code, message) = stream.next().await.unwrap_err();
    assert_eq!((code, message.as_str()), (13, GZIP_DAMAGED));
}

#[tokio::test]
async fn wrong_compression_fails_and_the_connection_goes_on() {
    let mut options = GrpcOptions::default();
    options.message_bytes_max = 1 << 20;
    let fixture = Fixture::with(options);
    let client = fixture.client().await;
    let head = |coding: &str| infer_head().header("grpc-encoding", coding);
    let check = |result: CallResult, code: u32, message: &str| {
        assert_eq!(result.status(), (code, message.to_owned()));
    };
    let body = compressed(&infer_request("inline", zeros()), ContentCoding::Gzip);
    assert!(body.len() < 100_000);
    let bomb = client.call(head("gzip"), body.clone()).await;
    check(bomb, 8, "Received message larger than max (more than 1048576 vs. 1048576)");
    check(client.call(head("gzip"), flagged(1, b"garbage12345")).await, 13, GZIP_DAMAGED);
    check(client.call(head("gzip"), flagged(1, &body[5..1000])).await, 13, GZIP_DAMAGED);
    // Without a coding in the headers, the compression flag means nothing, and other flags never
    // mean anything.
    let ready = ModelReadyRequest { name: "m".into(), version: String::new() };
    let unparsed = client.call(infer_head(), body).await;
    assert_eq!(unparsed.status().0, 13);
    for flags in [1, 2, 254] {
        let head = request(&inference("ModelReady"));
        let result = client.call(head, flagged(flags, &ready.encode_to_vec())).await;
        let _: ModelReadyResponse = result.message();
    }
    let unknown = client.call(head("snappy"), framed(&ready)).await;
    assert_eq!(unknown.headers["grpc-accept-encoding"], ACCEPTED);
    check(unknown, 12, "Compression algorithm 'snappy' is not supported");
    client.check_echo("inline", Bytes::from_static(b"x")).await;
}

/// The limit for calls other than inference also applies to inflated data.
#[tokio::test]
async fn a_small_load_does_not_become_a_long_one() {
    let mut options = GrpcOptions::default();
    options.limits.input_bytes_max = 10_000;
    let fixture = Fixture::with(options);
    let client = fixture.client().await;
    let load = async |bytes: usize| {
        let content = ParameterChoice::BytesParam(Bytes::from(vec![0; bytes]));
        let file = ModelRepositoryParameter { parameter_choice: Some(content) };
        let load = RepositoryModelLoadRequest {
            model_name: "m".into(),
            parameters: [("file:1/x".into(), file)].into(),
            ..Default::default()
        };
        let head = request(&inference("RepositoryModelLoad")).header("grpc-encoding", "gzip");
        client.call(head, compressed(&load, ContentCoding::Gzip)).await.status()
    };
    assert_eq!(load(9_000).await, (0, String::new()));
    let text = "Received message larger than max (more than 10000 vs. 10000). Use \
                --http-max-input-size to increase the limit.";
    assert_eq!(load(11_000).await, (3, text.to_owned()));
    assert_eq!(fixture.fake.orders.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn responses_to_inferences_are_compressed_for_clients_that_accept_it() {
    use CompressionLevel::{High, Low, Medium, None as Off};
    let (gzip, deflate) = (Some(ContentCoding::Gzip), Some(ContentCoding::Deflate));
    for (level, accepted, expected) in [
        (Off, ACCEPTED, None),
        (Low, ACCEPTED, gzip),
        (Medium, ACCEPTED, deflate),
        (High, ACCEPTED, deflate),
        (High, "gzip", gzip),
        (Low, "identity", None),
    ] {
        let fixture = fixture(level);
        let client = fixture.client().await;
        let accepts =
            |method: &str| request(&inference(method)).header("grpc-accept-encoding", accepted);
        let named = |result: &CallResult| {
            let name = result.headers.get("grpc-encoding")?;
            Some(name.to_str().unwrap().to_owned())
        };
        let body = framed(&infer_request("inline", zeros()));
        let result = client.call(accepts("ModelInfer"), body).await;
        assert_eq!(named(&result), expected.map(|coding| coding.name().to_owned()));
        assert_eq!(result.headers["grpc-accept-encoding"], ACCEPTED);
        let response: ModelInferResponse = inflated(&result.data, expected);
        assert!(response.raw_output_contents == [zeros()], "other data came back");
        assert!(expected.is_none() || result.data.len() < 10_000);
        // A message that compression would lengthen is sent uncompressed.
        let body = framed(&infer_request("inline", Bytes::from_static(b"x")));
        let short = client.call(accepts("ModelInfer"), body).await;
        assert_eq!(named(&short), expected.map(|coding| coding.name().to_owned()));
        let _: ModelInferResponse = short.message();
        // Calls other than inference are not compressed.
        let ready = ModelReadyRequest { name: "m".into(), version: String::new() };
        let ready = client.call(accepts("ModelReady"), framed(&ready)).await;
        assert_eq!(named(&ready), None);
        let _: ModelReadyResponse = ready.message();
        check_stream(&client, accepts("ModelStreamInfer"), expected).await;
    }
}

/// Checks that streams compress each message.
async fn check_stream(
    client: &common::Client,
    head: http::request::Builder,
    expected: Option<ContentCoding>,
) {
    let body = framed(&infer_request("inline", Bytes::from(vec![0; 100_000])));
    let result = client.call(head, body).await;
    assert_eq!(result.status().0, 0);
    let response: ModelStreamInferResponse = inflated(&result.data, expected);
    assert_eq!(response.infer_response.unwrap().raw_output_contents[0].len(), 100_000);
}
