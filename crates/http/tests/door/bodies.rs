//! Request bodies that come in pieces, are too long, are cut short or follow an interim response.

use std::sync::atomic::Ordering;

use galatea_http::HttpOptions;

use crate::harness::{PATIENCE, Server, infer_body, infer_response, request};

const INFER: &str = "/v2/models/echo/infer";
const CHUNKED: &str =
    "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

fn small() -> Server {
    Server::with(HttpOptions { input_bytes_max: 1000, chunks_max: 100, ..HttpOptions::default() })
}

fn chunks(body: &[u8], size: usize) -> Vec<u8> {
    let mut text = Vec::new();
    for chunk in body.chunks(size) {
        text.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        text.extend_from_slice(chunk);
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"0\r\n\r\n");
    text
}

#[test]
fn chunked_bodies_are_read() {
    let server = Server::start();
    let mut client = server.connect();
    for size in [1, 3, 1000] {
        client.send(CHUNKED);
        client.send(chunks(infer_body(5).as_bytes(), size));
        assert_eq!(client.response().text(), infer_response("echo", 5), "chunks of {size}");
    }
}

#[test]
fn a_body_in_many_segments_is_read() {
    let server = Server::start();
    let mut client = server.connect();
    for byte in request("POST", INFER, "", infer_body(5).as_bytes()) {
        client.send([byte]);
    }
    assert_eq!(client.response().text(), infer_response("echo", 5));
}

#[test]
fn a_large_body_arrives_complete() {
    let server = Server::start();
    let size = 3_000_000;
    let json = format!(
        r#"{{"inputs":[{{"name":"x","datatype":"UINT8","shape":[{size}],"parameters":{{"binary_data_size":{size}}}}}],"outputs":[{{"name":"x","parameters":{{"binary_data":true}}}}]}}"#
    );
    let tensor: Vec<u8> = (0..size).map(|index: u32| index.to_le_bytes()[0] ^ 0x5a).collect();
    let headers = format!("Inference-Header-Content-Length: {}\r\n", json.len());
    let mut client = server.connect();
    client.request("POST", INFER, &headers, &[json.as_bytes(), &tensor].concat());
    let response = client.response();
    assert_eq!(response.code, 200);
    assert!(response.body.ends_with(&tensor), "the tensor changed on its way");
}

#[test]
fn a_body_beyond_the_limit_is_refused() {
    let server = small();
    let check = |headers: &str, expected: &str| {
        let mut client = server.connect();
        client.request("POST", INFER, headers, &[b' '; 1001]);
        let response = client.response();
        assert_eq!((response.code, response.text()), (400, expected));
        assert_eq!(response.header("Connection"), Some("close"));
        assert!(client.is_closed());
    };
    check(
        "",
        r#"{"error":"request JSON size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes. Use --http-max-input-size to increase the limit."}"#,
    );
    check(
        "Inference-Header-Content-Length: 0\r\n",
        r#"{"error":"Raw input has a byte_size (1001 bytes) that exceeds the maximum allowed value of 1000 bytes. Use --http-max-input-size to increase the limit."}"#,
    );
    let mut client = server.connect();
    client.send(CHUNKED);
    client.send(chunks(&[b' '; 2000], 600));
    let response = client.response();
    assert_eq!(response.code, 400);
    assert!(response.text().contains("Use --http-max-input-size to increase the limit."));
    // As in Triton, the JSON limit doesn't apply to binary tensors.
    let json = br#"{"inputs":[{"name":"x","datatype":"UINT8","shape":[2000],"parameters":{"binary_data_size":2000}}]}"#;
    let headers = format!("Inference-Header-Content-Length: {}\r\n", json.len());
    let mut client = server.connect();
    client.request("POST", INFER, &headers, &[&json[..], &[7; 2000]].concat());
    assert_eq!(client.response().code, 200);
    let headers = "Inference-Header-Content-Length: 1001\r\n";
    client.request("POST", INFER, headers, &[b' '; 2000]);
    let response = client.response();
    assert_eq!(response.code, 400);
    assert!(response.text().contains("request JSON size of 1001 bytes"), "{}", response.text());
    let exact = [infer_body(1).as_bytes(), &vec![b' '; 1000 - infer_body(1).len()]].concat();
    let mut client = server.connect();
    client.request("POST", INFER, "", &exact);
    assert_eq!(client.response().code, 200);
    let mut client = server.connect();
    client.request("POST", "/v2/repository/index", "", &[b' '; 1001]);
    assert_eq!(client.response().code, 400);
    assert_eq!(server.fake.requests.load(Ordering::SeqCst), 2);
}

/// The limit applies whatever the header says, unless the header says that JSON precedes tensors.
#[test]
fn a_header_that_means_no_tensors_lifts_no_limit() {
    let server = small();
    let parse = "Unable to parse Inference-Header-Content-Length, ";
    let raw = "Raw input has a byte_size (";
    for (headers, expected) in [
        ("Inference-Header-Content-Length: 00\r\n", raw),
        ("Inference-Header-Content-Length: +0x\r\n", raw),
        ("Inference-Header-Content-Length: x\r\n", parse),
        ("Inference-Header-Content-Length:\r\n", parse),
        ("Inference-Header-Content-Length: -1\r\n", "inference header size should be in range"),
        ("Inference-Header-Content-Length: 9999999999\r\n", parse),
        ("Inference-Header-Content-Length: 1001\r\n", "request JSON size of 1001 bytes"),
        ("Inference-Header-Content-Length: 7\r\nInference-Header-Content-Length: 8\r\n", parse),
    ] {
        // Served as a plain request and by hyper.
        for more in ["", "TE: trailers\r\n"] {
            let head = format!("POST {INFER} HTTP/1.1\r\nHost: x\r\n{headers}{more}");
            let check = |rest: &str| {
                let mut client = server.connect();
                client.send(format!("{head}{rest}"));
                let response = client.response();
                let text = response.text().trim_start_matches(r#"{"error":""#);
                assert!(response.code == 400 && text.starts_with(expected), "{headers}: {text}");
            };
            // An announced length is refused before any of the body is sent.
            check(&format!("Expect: 100-continue\r\nContent-Length: {}\r\n\r\n", i64::MAX));
            // A body without an announced length is refused as soon as it exceeds the limit,
            // because its end never comes. There are only two such cases, because the server waits
            // for more before it closes the connection.
            if headers.ends_with(" 00\r\n") || headers.ends_with(" x\r\n") {
                let chunk = " ".repeat(1100);
                check(&format!("Transfer-Encoding: chunked\r\n\r\n44c\r\n{chunk}\r\n"));
            }
        }
    }
    assert_eq!(server.fake.requests.load(Ordering::SeqCst), 0);
}

#[test]
fn a_refused_client_that_falls_silent_gets_its_response() {
    let server = small();
    let mut client = server.connect();
    client.send(format!("POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n12345"));
    let response = client.response();
    assert_eq!((response.code, response.header("Connection")), (400, Some("close")));
    assert!(client.is_closed());
}

#[test]
fn a_client_that_sends_a_refused_body_gets_its_response() {
    // The test's thread may be delayed in the middle of a body.
    let options = HttpOptions { drain_silence_max: PATIENCE, ..HttpOptions::default() };
    let server = Server::with(options);
    let body = vec![b'x'; 3_000_000];
    // hyper serves the requests of the second connection.
    let mut clients = [(server.connect(), ""), (server.connect(), "TE: trailers\r\n")];
    for _ in 0..8 {
        for (client, headers) in &mut clients {
            let mut check = |path, headers: &str, code| {
                client.request("POST", path, headers, &body);
                assert_eq!(client.response().code, code, "{path}");
            };
            check("/v2/absent", headers, 404);
            check("/v2/models/echo/config", headers, 405);
            check(INFER, &format!("{headers}Content-Encoding: br\r\n"), 501);
        }
    }
    assert_eq!(server.fake.requests.load(Ordering::SeqCst), 0);
}

#[test]
fn a_client_that_expects_an_interim_response_gets_it() {
    let server = small();
    let expect = |length: usize| {
        format!(
            "POST {INFER} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    let body = infer_body(3);
    let mut client = server.connect();
    client.send(expect(body.len()));
    assert_eq!(client.response().code, 100);
    client.send(&body);
    assert_eq!(client.response().text(), infer_response("echo", 3));
    // The server doesn't wait for an empty body.
    client.send(expect(0));
    assert_ne!(client.response().code, 100);
    client.send(expect(1001));
    let response = client.response();
    assert_eq!(response.code, 400, "{}", response.head);
    assert!(client.is_closed());
}

#[test]
fn a_body_that_is_cut_short_starts_no_request() {
    let server = Server::start();
    let body = infer_body(1);
    let whole = request("POST", INFER, "", body.as_bytes());
    for cut in [whole.len() - 1, whole.len() - body.len(), 10] {
        let mut client = server.connect();
        client.send(&whole[..cut]);
        drop(client);
    }
    let mut client = server.connect();
    client.send(CHUNKED);
    client.send("5\r\nab");
    drop(client);
    assert_eq!(server.call("POST", INFER, &body).code, 200);
    assert_eq!(server.fake.requests.load(Ordering::SeqCst), 1);
}
