//! Inference requests, persistent connections, and clients that disconnect.

use std::sync::atomic::Ordering;
use std::sync::mpsc;

use galatea_infer::Status;

use crate::harness::{Client, PATIENCE, Server, infer_body, infer_response, request};
use galatea_fakes::echo;

const INFER: &str = "/v2/models/echo/infer";
const HOLD: &str = "/v2/models/held/infer";

#[test]
fn json_in_json_out() {
    let server = Server::start();
    let response = server.call("POST", INFER, &infer_body(7));
    assert_eq!((response.code, response.text()), (200, infer_response("echo", 7).as_str()));
    assert_eq!(response.header("Content-Type"), Some("application/json"));
    assert_eq!(response.header("Inference-Header-Content-Length"), None);
    let body = r#"{"id":"i","inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[1]}]}"#;
    server.check(
        "POST",
        "/v2/models/echo/versions/3/infer",
        body,
        200,
        r#"{"id":"i","model_name":"echo","model_version":"3","outputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[1]}]}"#,
    );
}

#[test]
fn binary_in_binary_out() {
    let server = Server::start();
    let json = r#"{"inputs":[{"name":"x","datatype":"FP16","shape":[3],"parameters":{"binary_data_size":6}}],"parameters":{"binary_data_output":true}}"#;
    let headers = format!("inference-header-content-length: {}\r\n", json.len());
    let mut client = server.connect();
    client.request("POST", INFER, &headers, &[json.as_bytes(), b"abcdef"].concat());
    let response = client.response();
    assert_eq!(response.code, 200, "{}", response.text());
    assert_eq!(response.header("Content-Type"), Some("application/octet-stream"));
    let length: usize =
        response.header("Inference-Header-Content-Length").unwrap().parse().unwrap();
    assert_eq!(
        std::str::from_utf8(&response.body[..length]).unwrap(),
        r#"{"model_name":"echo","model_version":"1","outputs":[{"name":"x","datatype":"FP16","shape":[3],"parameters":{"binary_data_size":6}}]}"#
    );
    assert_eq!(&response.body[length..], b"abcdef");
}

#[test]
fn a_raw_body_is_the_input() {
    let server = Server::start();
    let mut client = server.connect();
    client.request("POST", INFER, "Inference-Header-Content-Length: 0\r\n", b"raw");
    let response = client.response();
    assert_eq!(response.code, 200, "{}", response.text());
    assert!(response.body.ends_with(b"]}raw"), "{}", response.text());
    assert!(response.text().contains(r#""name":"OUTPUT0","datatype":"UINT8","shape":[3]"#));
    // An empty body is raw too, and its tensor is empty.
    let response = server.call("POST", INFER, "");
    assert!(response.text().contains(r#""shape":[0],"parameters":{"binary_data_size":0}"#));
    let unknown = r#"{"error":"Request for unknown model: 'unknown' is not found"}"#;
    server.check("POST", "/v2/models/unknown/infer", "", 404, unknown);
}

#[test]
fn errors_are_json() {
    let server = Server::start();
    let check = |model: &str, body: &str, code: u16, message: &str| {
        let response = server.call("POST", &format!("/v2/models/{model}/infer"), body);
        assert_eq!(
            (response.code, response.text()),
            (code, format!(r#"{{"error":"{message}"}}"#).as_str())
        );
        // Triton detects unknown models before it knows that the response is JSON.
        let expected = if model == "unknown" { "text/plain" } else { "application/json" };
        assert_eq!(response.header("Content-Type"), Some(expected));
    };
    check("echo", "A", 500, "failed to parse the request JSON buffer: Invalid value. at 0");
    check(
        "echo",
        r#"{"inputs":[{"name":"x","datatype":"UINT8","shape":[2],"data":[1]}]}"#,
        500,
        "Failed to parse 'data' field: shape does not match true shape",
    );
    check("unknown", &infer_body(1), 404, "Request for unknown model: 'unknown' is not found");
    check("refusing", &infer_body(1), 503, "nicht jetzt – später");
    check("dropping", &infer_body(1), 500, "the request was dropped without a final response");
    check("twice", &infer_body(1), 500, "expected a single response, got 2");
}

#[test]
fn a_panic_fails_one_request() {
    let server = Server::start();
    let mut client = server.connect();
    client.request("POST", "/v2/models/panicking/infer", "", infer_body(1).as_bytes());
    assert_eq!(client.response().code, 500);
    client.request("POST", INFER, "", infer_body(2).as_bytes());
    assert_eq!(client.response().text(), infer_response("echo", 2));
}

#[test]
fn a_connection_serves_many_requests() {
    let server = Server::start();
    let mut client = server.connect();
    for value in 0..50 {
        client.request("POST", INFER, "", infer_body(value).as_bytes());
        assert_eq!(client.response().text(), infer_response("echo", value));
    }
    client.request("GET", "/v2/health/live", "Connection: close\r\n", b"");
    assert_eq!(client.response().code, 200);
    assert!(client.is_closed());
}

#[test]
fn pipelined_requests_get_responses_in_order() {
    let server = Server::start();
    let mut client = server.connect();
    let mut burst = Vec::new();
    for value in 0..20 {
        burst.extend(request("POST", INFER, "", infer_body(value).as_bytes()));
    }
    client.send(burst);
    for value in 0..20 {
        assert_eq!(client.response().text(), infer_response("echo", value));
    }
}

#[test]
fn a_pipelined_response_does_not_wait_for_the_next() {
    let server = Server::start();
    let mut client = server.connect();
    let infer = |path, value| request("POST", path, "", infer_body(value).as_bytes());
    client.send([infer(INFER, 1), infer(HOLD, 2), infer(INFER, 3)].concat());
    assert_eq!(client.response().text(), infer_response("echo", 1));
    let (request, sender) = server.next_held();
    sender.send_final(Ok(echo(request)));
    assert_eq!(client.response().text(), infer_response("held", 2));
    assert_eq!(client.response().text(), infer_response("echo", 3));
}

#[test]
fn a_request_that_waits_delays_no_other() {
    let server = Server::start();
    let mut waiting: Vec<Client> = Vec::new();
    for value in 0..4 {
        let mut client = server.connect();
        client.request("POST", HOLD, "", infer_body(value).as_bytes());
        waiting.push(client);
    }
    let held: Vec<_> = waiting.iter().map(|_| server.next_held()).collect();
    assert_eq!(server.call("POST", INFER, &infer_body(9)).code, 200);
    for (request, sender) in held {
        sender.send_final(Ok(echo(request)));
    }
    for (client, value) in waiting.iter_mut().zip(0..) {
        assert_eq!(client.response().text(), infer_response("held", value));
    }
}

#[test]
fn a_late_error_arrives() {
    let server = Server::start();
    let mut client = server.connect();
    client.request("POST", HOLD, "", infer_body(0).as_bytes());
    server.next_held().1.fail(Status::unavailable("Request timeout expired"));
    let response = client.response();
    assert_eq!((response.code, response.text()), (503, r#"{"error":"Request timeout expired"}"#));
}

#[test]
fn a_client_that_disconnects_cancels_its_request() {
    let server = Server::start();
    let mut client = server.connect();
    client.request("POST", HOLD, "", infer_body(0).as_bytes());
    let (request, sender) = server.next_held();
    assert!(!request.cancel.is_cancelled());
    let (cancel, cancelled) = mpsc::channel();
    request.cancel.on_cancel(move || cancel.send(()).unwrap());
    drop(client);
    cancelled.recv_timeout(PATIENCE).expect("the request was not cancelled");
    sender.fail(Status::cancelled("unread"));
}

#[test]
fn a_finished_request_is_not_cancelled() {
    let server = Server::start();
    let mut client = server.connect();
    client.request("POST", HOLD, "", infer_body(0).as_bytes());
    let (request, sender) = server.next_held();
    let cancel = request.cancel.clone();
    sender.send_final(Ok(echo(request)));
    assert_eq!(client.response().code, 200);
    client.request("GET", "/v2/health/live", "Connection: close\r\n", b"");
    client.response();
    assert!(client.is_closed());
    assert!(!cancel.is_cancelled());
    assert_eq!(server.fake.requests.load(Ordering::SeqCst), 1);
}

#[test]
fn a_model_is_looked_up_once_for_each_request() {
    let server = Server::start();
    let lookups = || server.fake.lookups.swap(0, Ordering::SeqCst);
    let check = |path: &str, headers: &str, body: &str| {
        let mut client = server.connect();
        client.request("POST", path, headers, body.as_bytes());
        assert_eq!(client.response().code, 200, "{path}");
        assert_eq!(lookups(), 1, "{path} {headers}");
    };
    let (short, raw) = (infer_body(1), "Inference-Header-Content-Length: 0\r\n");
    check(INFER, "", &short);
    check(INFER, "", &format!("{short}{}", " ".repeat(200 << 10)));
    check(INFER, raw, "raw");
    check("/v2/models/echo/generate", "", r#"{"INPUT0":[1]}"#);
    server.call("POST", "/v2/models/unknown/infer", "{}");
    assert_eq!(lookups(), 1);
}

#[test]
fn an_unknown_model_is_reported_before_a_bad_body() {
    let server = Server::start();
    let missing = r#"{"error":"Request for unknown model: 'unknown' is not found"}"#;
    server.check("POST", "/v2/models/unknown/infer", "{}", 404, missing);
    let decoupled = concat!(
        r#"{"error":"HTTP end point doesn't support models with decoupled "#,
        r#"transaction policy"}"#
    );
    server.check("POST", "/v2/models/decoupled/infer", "{}", 501, decoupled);
}

#[test]
fn outputs_may_be_requested_as_classes() {
    let server = Server::start();
    let input = r#"{"name":"x","datatype":"INT8","shape":[3],"data":[1,3,2]}"#;
    let body = |classes: u32| {
        format!(
            r#"{{"inputs":[{input}],"outputs":[{{"name":"x","parameters":{{"classification":{classes}}}}}]}}"#
        )
    };
    let response = |fields: &str| {
        format!(
            r#"{{"model_name":"echo","model_version":"1","outputs":[{{"name":"x",{fields}}}]}}"#
        )
    };
    let classes = response(r#""datatype":"BYTES","shape":[2],"data":["3:1","2:2"]"#);
    server.check("POST", INFER, &body(2), 200, &classes);
    let elements = response(r#""datatype":"INT8","shape":[3],"data":[1,3,2]"#);
    server.check("POST", INFER, &body(0), 200, &elements);
    let refused =
        r#"{"error":"class result not available for output due to unsupported type 'BOOL'"}"#;
    let body = body(1).replace("INT8", "BOOL").replace("[1,3,2]", "[true,true,false]");
    server.check("POST", INFER, &body, 400, refused);
}
