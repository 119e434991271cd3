//! The generate extension: single responses, events, slow readers and clients that disconnect.

use std::sync::Arc;

use galatea_fakes::echo;
use galatea_gate::ledger::{MemoryAccount, MemoryLedger};
use galatea_http::HttpOptions;
use galatea_infer::{InferenceRequest, ResponseSender, Status};
use galatea_stdx::testing::wait_until;

use crate::harness::{Client, Server, request};

/// The number of bytes of waiting events at which a model pauses, as in `src/event_queue.rs`.
const EVENT_STREAM_BYTES_MAX: usize = 4 << 20;

const BODY: &[u8] = br#"{"INPUT0":[1,2]}"#;
const EVENTS: &str = "text/event-stream; charset=utf-8";
/// Headers that make `plain` serve a request, and headers that make hyper serve it.
const SERVED_BY: [&str; 2] = ["", "TE: trailers\r\n"];

fn flat(model: &str) -> String {
    format!(r#"{{"OUTPUT0":[1,2],"model_name":"{model}","model_version":"1"}}"#)
}

fn event(model: &str) -> String {
    format!("data: {}\n\n", flat(model))
}

/// Sends a request for events.
fn begin(client: &mut Client, model: &str, headers: &str) {
    let path = format!("/v2/models/{model}/generate_stream");
    client.request("POST", &path, headers, BODY);
}

fn wait_until_cancelled(request: &InferenceRequest) {
    wait_until("the request is cancelled", || request.cancel.is_cancelled());
}

fn failure() -> Status {
    Status::unavailable("no more")
}

#[test]
fn one_response_is_flat_json() {
    let server = Server::start();
    let mut client = server.connect();
    for headers in SERVED_BY {
        for model in ["echo", "split", "thread"] {
            client.request("POST", &format!("/v2/models/{model}/generate"), headers, BODY);
            let response = client.response();
            assert_eq!((response.code, response.text()), (200, flat(model).as_str()));
            assert_eq!(response.header("Content-Type"), Some("application/json"));
        }
    }
    server.check(
        "POST",
        "/v2/models/echo/versions/3/generate",
        r#"{"id":"7"}"#,
        200,
        r#"{"id":"7","model_name":"echo","model_version":"3"}"#,
    );
}

#[test]
fn other_numbers_of_responses_are_errors() {
    let server = Server::start();
    let check = |model: &str, code: u16, expected: &str| {
        let response =
            server.call("POST", &format!("/v2/models/{model}/generate"), r#"{"INPUT0":1}"#);
        let error = format!(r#"{{"error":"{expected}"}}"#);
        assert_eq!((response.code, response.text()), (code, error.as_str()), "{model}");
        assert_eq!(response.header("Content-Type"), Some("application/json"));
    };
    let one = "generate expects model to produce exactly 1 response, use generate stream for \
               model that generates various number of responses";
    check("twice", 200, one);
    check("silent", 200, one);
    check("refusing", 400, "nicht jetzt – später");
    check("dropping", 400, "the request was dropped without a final response");
    check("panicking", 500, "the server failed while it handled the request");
    check("buggy", 500, "the server failed while it handled the request");
    check("unknown", 404, "Request for unknown model: 'unknown' is not found");
}

#[test]
fn responses_are_events_and_the_connection_goes_on() {
    let server = Server::start();
    let mut client = server.connect();
    for headers in SERVED_BY {
        for (model, events) in [("echo", 1), ("twice", 2), ("silent", 0), ("split", 1)] {
            begin(&mut client, model, headers);
            let head = client.response_head();
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(head.contains(&format!("Content-Type: {EVENTS}\r\n")), "{head}");
            assert!(head.to_ascii_lowercase().contains("transfer-encoding: chunked\r\n"), "{head}");
            for _ in 0..events {
                assert_eq!(client.chunk(), Some(event(model)));
            }
            assert_eq!(client.chunk(), None);
        }
    }
    begin(&mut client, "echo", "Connection: close\r\n");
    assert!(client.response_head().contains("Connection: close\r\n"));
    assert_eq!((client.chunk(), client.chunk()), (Some(event("echo")), None));
    assert!(client.is_closed());
}

#[test]
fn pipelined_streams_come_in_order() {
    let server = Server::start();
    let mut client = server.connect();
    let one =
        |model: &str| request("POST", &format!("/v2/models/{model}/generate_stream"), "", BODY);
    client.send([one("held"), one("echo"), one("twice")].concat());
    let (held, sender) = server.next_held();
    sender.send_final(Ok(echo(held)));
    for (model, events) in [("held", 1), ("echo", 1), ("twice", 2)] {
        client.response_head();
        for _ in 0..events {
            assert_eq!(client.chunk(), Some(event(model)));
        }
        assert_eq!(client.chunk(), None);
    }
}

#[test]
fn a_client_of_http_1_0_gets_events_until_the_end_of_the_connection() {
    let server = Server::start();
    let mut client = server.connect();
    let length = BODY.len();
    client.send(format!(
        "POST /v2/models/twice/generate_stream HTTP/1.0\r\nContent-Length: {length}\r\n\r\n"
    ));
    client.send(BODY);
    let head = client.response_head().to_ascii_lowercase();
    assert!(!head.contains("transfer-encoding") && !head.contains("content-length"), "{head}");
    assert_eq!(client.rest(), event("twice").repeat(2));
}

#[test]
fn errors_before_the_first_event_have_a_status_and_later_ones_are_events() {
    let server = Server::start();
    for headers in SERVED_BY {
        let mut client = server.connect();
        begin(&mut client, "held", headers);
        let (_, sender) = server.next_held();
        sender.refuse(failure());
        let response = client.response();
        assert_eq!((response.code, response.text()), (503, r#"{"error":"no more"}"#));
        assert_eq!(response.header("Content-Type"), Some("application/json"));
        begin(&mut client, "refusing", headers);
        assert!(client.response_head().starts_with("HTTP/1.1 400 "));
        assert!(client.chunk().unwrap().starts_with("data: {\"error\":\"nicht jetzt"));
        assert_eq!(client.chunk(), None);
        begin(&mut client, "held", headers);
        let (held, mut sender) = server.next_held();
        sender.send(Ok(echo(held)));
        assert!(client.response_head().starts_with("HTTP/1.1 200 "));
        assert_eq!(client.chunk(), Some(event("held")));
        sender.send(Err(failure()));
        assert_eq!(client.chunk().unwrap(), "data: {\"error\":\"no more\"}\n\n");
        // A model that panics drops its sender.
        drop(sender);
        let lost = "the request was dropped without a final response";
        assert_eq!(client.chunk().unwrap(), format!("data: {{\"error\":\"{lost}\"}}\n\n"));
        assert_eq!(client.chunk(), None);
    }
}

#[test]
fn mistakes_in_requests_are_json_on_both_endpoints() {
    let server = Server::start();
    for endpoint in ["generate", "generate_stream"] {
        let path = format!("/v2/models/echo/{endpoint}");
        let check = |headers: &str, body: &[u8], code: u16, expected: &str| {
            let mut client = server.connect();
            client.request("POST", &path, headers, body);
            let response = client.response();
            assert_eq!((response.code, response.text()), (code, expected));
            assert_eq!(response.header("Content-Type"), Some("application/json"));
        };
        let coding = r#"{"error":"Unsupported content-encoding, only 'identity' is supported."}"#;
        check("Content-Encoding: gzip\r\n", BODY, 400, coding);
        check("", b"[]", 500, r#"{"error":"attempt to get members for non-object"}"#);
        let empty = "failed to parse the request JSON buffer: The document is empty. at 0";
        check("", b"", 500, &format!(r#"{{"error":"{empty}"}}"#));
    }
}

/// Sends responses until the model should pause.
fn fill(held: &InferenceRequest, sender: &mut ResponseSender) -> usize {
    let mut sent = 0;
    while !held.backpressure.is_congested() {
        sender.send(Ok(echo(held.clone())));
        sent += 1;
    }
    sent
}

#[test]
fn a_model_pauses_for_a_client_that_does_not_read() {
    let ledger = Arc::new(MemoryLedger::new(Some(64 << 20)));
    let options = HttpOptions { ledger: ledger.clone(), ..HttpOptions::default() };
    let server = Server::with(options);
    for headers in SERVED_BY {
        let mut client = server.connect();
        begin(&mut client, "held", headers);
        let (held, mut sender) = server.next_held();
        // The system accepts some megabytes into the socket buffers.
        let mut sent = 0;
        let mut is_full = false;
        while !is_full {
            sent += fill(&held, &mut sender);
            let (resume, resumed) = std::sync::mpsc::channel();
            held.backpressure.clone().when_free(move || resume.send(()).unwrap_or_default());
            // The server writes what it can before it has responded to this many clients.
            for _ in 0..20 {
                server.check("GET", "/v2/health/live", "", 200, "");
            }
            is_full = resumed.try_recv().is_err();
        }
        assert!(held.backpressure.is_congested());
        let most = EVENT_STREAM_BYTES_MAX * 2 + MemoryAccount::BASE_BYTES * 4;
        assert!(ledger.held() > 0 && ledger.held() < most, "{}", ledger.held());
        let (resume, resumed) = std::sync::mpsc::channel();
        held.backpressure.clone().when_free(move || resume.send(()).unwrap_or_default());
        client.response_head();
        for _ in 0..sent {
            assert_eq!(client.chunk(), Some(event("held")));
        }
        resumed.recv().unwrap();
        assert!(!held.backpressure.is_congested());
        sender.finish_without_response();
        assert_eq!(client.chunk(), None);
    }
}

#[test]
fn a_client_that_leaves_cancels_its_request() {
    let server = Server::start();
    for endpoint in ["generate", "generate_stream"] {
        let mut client = server.connect();
        client.request("POST", &format!("/v2/models/held/{endpoint}"), "", BODY);
        let (held, _sender) = server.next_held();
        drop(client);
        wait_until_cancelled(&held);
    }
    // The client disconnects between two events, the second of which would never come.
    let mut client = server.connect();
    begin(&mut client, "held", "");
    let (held, mut sender) = server.next_held();
    sender.send(Ok(echo(held.clone())));
    client.response_head();
    assert_eq!(client.chunk(), Some(event("held")));
    drop(client);
    wait_until_cancelled(&held);
    // hyper notices when the next events are written.
    let mut client = server.connect();
    begin(&mut client, "held", SERVED_BY[1]);
    let (held, mut sender) = server.next_held();
    sender.send(Ok(echo(held.clone())));
    client.response_head();
    drop(client);
    wait_until("the request is cancelled", || {
        sender.send(Ok(echo(held.clone())));
        held.cancel.is_cancelled()
    });
}

#[test]
fn a_client_that_leaves_lets_a_paused_model_go_on() {
    let server = Server::start();
    let mut client = server.connect();
    begin(&mut client, "held", "");
    let (held, mut sender) = server.next_held();
    fill(&held, &mut sender);
    let (resume, resumed) = std::sync::mpsc::channel();
    held.backpressure.clone().when_free(move || resume.send(()).unwrap_or_default());
    drop(client);
    resumed.recv().unwrap();
    wait_until_cancelled(&held);
    assert!(!held.backpressure.is_congested());
}

#[test]
fn a_client_that_sends_no_more_gets_all_events() {
    let server = Server::start();
    let mut client = server.connect();
    begin(&mut client, "held", "");
    let (held, mut sender) = server.next_held();
    sender.send(Ok(echo(held.clone())));
    client.response_head();
    assert_eq!(client.chunk(), Some(event("held")));
    client.finish_sending();
    // The server notices that, and sends a zero to find out whether the client still reads.
    client.wait_for_bytes();
    sender.send(Ok(echo(held.clone())));
    assert_eq!(client.chunk(), Some(event("held")));
    sender.finish_without_response();
    assert_eq!(client.chunk(), None);
    assert!(!held.cancel.is_cancelled());
}

#[test]
fn a_door_that_stops_serves_what_was_begun_until_it_is_closed() {
    for headers in SERVED_BY {
        let server = Server::start();
        let mut client = server.connect();
        begin(&mut client, "held", headers);
        let (held, mut sender) = server.next_held();
        sender.send(Ok(echo(held.clone())));
        client.response_head();
        assert_eq!(client.chunk(), Some(event("held")));
        server.door.begin_drain();
        sender.send(Ok(echo(held.clone())));
        assert_eq!(client.chunk(), Some(event("held")));
        server.door.close();
        wait_until_cancelled(&held);
    }
}
