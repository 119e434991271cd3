//! Compressed requests and responses.

use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::compression::{
    CompressedStreamEnd, CompressionFormat, ContentCoding, DeflateLevel, InflateProgress, Inflater,
    compress,
};
use galatea_gate::ledger::MemoryAccount;
use galatea_http::HttpOptions;

use crate::harness::{Response, Server};

const INFER: &str = "/v2/models/echo/infer";

/// A header that makes hyper serve the request.
const NOT_PLAIN: &str = "TE: trailers\r\n";

/// Returns a request with that many zeros.
fn body_of(count: usize) -> String {
    let zeros = vec!["0"; count].join(",");
    format!(
        r#"{{"inputs":[{{"name":"x","datatype":"UINT8","shape":[{count}],"data":[{zeros}]}}]}}"#
    )
}

fn response_of(count: usize) -> String {
    let zeros = vec!["0"; count].join(",");
    format!(
        r#"{{"model_name":"echo","model_version":"1","outputs":[{{"name":"x","datatype":"UINT8","shape":[{count}],"data":[{zeros}]}}]}}"#
    )
}

fn compressed(text: &str, coding: ContentCoding) -> Vec<u8> {
    compress(&[Bytes::copy_from_slice(text.as_bytes())], coding, DeflateLevel::DEFAULT)
}

fn inflated(response: &Response) -> String {
    let account = Arc::new(MemoryAccount::unlimited());
    let mut inflater = Inflater::new(
        Bytes::copy_from_slice(&response.body),
        CompressionFormat::Either,
        u64::MAX,
        account,
    );
    assert_eq!(inflater.advance(usize::MAX), InflateProgress::Ended(CompressedStreamEnd::Complete));
    String::from_utf8(inflater.into_output().into()).unwrap()
}

/// Returns the response to a body with these headers, from the parser that serves it.
fn call(server: &Server, headers: &str, body: &[u8]) -> Response {
    let mut client = server.connect();
    let [plain, other] = ["", NOT_PLAIN].map(|also| {
        client.request("POST", INFER, &format!("{headers}{also}"), body);
        client.response()
    });
    assert_eq!((plain.code, &plain.body), (other.code, &other.body));
    for name in ["Content-Encoding", "Accept-Encoding", "Content-Type"] {
        assert_eq!(plain.header(name), other.header(name), "{name}");
    }
    plain
}

#[track_caller]
fn refused(server: &Server, headers: &str, body: &[u8], code: u16, text: &str) {
    let response = call(server, headers, body);
    let error = format!(r#"{{"error":"{text}"}}"#);
    assert_eq!((response.code, response.text()), (code, error.as_str()), "{headers}");
}

#[test]
fn bodies_of_either_format_are_inflated() {
    let server = Server::start();
    // The second size is inflated and deflated on another thread.
    for count in [3, 300_000] {
        let body = body_of(count);
        for coding in [ContentCoding::Gzip, ContentCoding::Deflate] {
            for name in ["gzip", "deflate"] {
                let headers = format!("Content-Encoding: {name}\r\n");
                let response = call(&server, &headers, &compressed(&body, coding));
                assert_eq!(response.text(), response_of(count));
                assert_eq!(response.header("Content-Encoding"), None);
            }
        }
    }
    assert_eq!(call(&server, "Content-Encoding: identity\r\n", body_of(1).as_bytes()).code, 200);
}

#[test]
fn responses_are_deflated_as_the_client_accepts() {
    let server = Server::start();
    for count in [3, 300_000] {
        for (accepted, coding) in [("gzip", "gzip"), ("gzip;q=0.1, deflate;q=0.2", "deflate")] {
            let headers = format!("Accept-Encoding: {accepted}\r\n");
            let response = call(&server, &headers, body_of(count).as_bytes());
            assert_eq!(response.header("Content-Encoding"), Some(coding));
            assert_eq!(inflated(&response), response_of(count));
        }
    }
    let response = call(&server, "Accept-Encoding: br\r\n", body_of(3).as_bytes());
    assert_eq!(
        (response.text(), response.header("Content-Encoding")),
        (response_of(3).as_str(), None)
    );
    // Errors and other endpoints stay uncompressed.
    let error = call(&server, "Accept-Encoding: gzip\r\n", b"nonsense");
    assert_eq!(error.header("Content-Encoding"), None);
    assert!(error.text().starts_with(r#"{"error":"#));
}

#[test]
fn unknown_codings_are_refused_behind_unknown_models() {
    let server = Server::start();
    for coding in ["br", "GZIP", "x-gzip", "gzip, deflate", ""] {
        let headers = format!("Content-Encoding: {coding}\r\n");
        let body = body_of(1);
        refused(&server, &headers, body.as_bytes(), 501, "Unsupported compression type");
        let response = call(&server, &headers, body.as_bytes());
        assert_eq!(response.header("Accept-Encoding"), Some("gzip, deflate"));
    }
    let mut client = server.connect();
    client.request("POST", "/v2/models/unknown/infer", "Content-Encoding: br\r\n", b"");
    assert_eq!(client.response().code, 404);
}

#[test]
fn the_limit_holds_for_what_is_inflated() {
    let options = HttpOptions { input_bytes_max: 1000, ..HttpOptions::default() };
    let server = Server::with(options);
    let too_long = "Decompressed data size exceeds the maximum allowed value of 1000 bytes. Use \
                    --http-max-input-size to increase the limit.";
    let headers = "Content-Encoding: gzip\r\n";
    let body = body_of(3);
    let padded = |length: usize| {
        compressed(&(body.clone() + &" ".repeat(length - body.len())), ContentCoding::Gzip)
    };
    assert_eq!(call(&server, headers, &padded(1000)).code, 200);
    refused(&server, headers, &padded(1001), 400, too_long);
    refused(&server, headers, &padded(64 << 20)[..900], 400, too_long);
    // A body that is too long before it is inflated closes the connection.
    let mut client = server.connect();
    client.request("POST", INFER, headers, &[0; 1001]);
    let response = client.response();
    assert!(response.text().contains(too_long), "{}", response.text());
}

#[test]
fn the_length_of_the_json_is_that_of_the_inflated_body() {
    let server = Server::start();
    let body = body_of(3);
    let zipped = compressed(&body, ContentCoding::Gzip);
    let headers = |length: usize| {
        format!("Content-Encoding: gzip\r\nInference-Header-Content-Length: {length}\r\n")
    };
    assert_eq!(call(&server, &headers(body.len()), &zipped).code, 200);
    let text = format!(
        "inference header size should be in range (0, {}), got: {}",
        body.len(),
        body.len() + 1
    );
    refused(&server, &headers(body.len() + 1), &zipped, 400, &text);
}

#[test]
fn damaged_bodies_are_refused() {
    let server = Server::start();
    let headers = "Content-Encoding: gzip\r\n";
    let zipped = compressed(&body_of(3), ContentCoding::Gzip);
    let damaged = "request body is damaged: its compressed data or their checksum are wrong";
    let mut wrong_checksum = zipped.clone();
    *wrong_checksum.iter_mut().rev().nth(5).unwrap() ^= 1;
    refused(&server, headers, &wrong_checksum, 400, damaged);
    refused(&server, headers, b"", 400, "nothing to be decompressed");
    // Without the checksum the JSON is complete, but without its end it isn't.
    assert_eq!(call(&server, headers, &zipped[..zipped.len() - 8]).code, 200);
    assert_ne!(call(&server, headers, &zipped[..zipped.len() - 20]).code, 200);
    // Data after the first gzip member is not read.
    assert_eq!(call(&server, headers, &[zipped.as_slice(), b"rest"].concat()).code, 200);
    // A raw tensor ends only where the compressed data ends.
    let raw = format!("{headers}Inference-Header-Content-Length: 0\r\n");
    let tensor = compressed("0123456789abcdef", ContentCoding::Gzip);
    assert_eq!(call(&server, &raw, &tensor).code, 200);
    let truncated = "request body is truncated: its compressed data has no end";
    refused(&server, &raw, &tensor[..tensor.len() - 1], 400, truncated);
}
