//! The memory that requests and responses use, and the refusals beyond the limit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use galatea_gate::ledger::{MemoryAccount, MemoryLedger};
use galatea_http::HttpOptions;
use galatea_stdx::testing::wait_until;

use crate::harness::{Server, infer_body};

const INFER: &str = "/v2/models/echo/infer";
const HELD: &str = "/v2/models/held/infer";
const LIMIT: usize = 4 << 20;
/// The bytes that an idle connection holds, plus the most that it keeps as credit.
const IDLE: usize = MemoryAccount::BASE_BYTES + 2 * MemoryAccount::STEP_BYTES;

fn limited() -> (Server, Arc<MemoryLedger>) {
    let ledger = Arc::new(MemoryLedger::new(Some(LIMIT)));
    (Server::with(HttpOptions { ledger: ledger.clone(), ..HttpOptions::default() }), ledger)
}

/// Waits until no more than this many bytes are held.
fn wait_until_held(ledger: &MemoryLedger, bytes: usize) {
    wait_until("memory is released", || ledger.held() <= bytes);
}

/// Returns the headers and the body of a request with a binary tensor of this size.
fn binary(size: usize) -> (String, Vec<u8>) {
    let json = format!(
        r#"{{"inputs":[{{"name":"x","datatype":"UINT8","shape":[{size}],"parameters":{{"binary_data_size":{size}}}}}],"outputs":[{{"name":"x","parameters":{{"binary_data":true}}}}]}}"#
    );
    let headers = format!("Inference-Header-Content-Length: {}\r\n", json.len());
    (headers, [json.as_bytes(), &vec![7; size]].concat())
}

#[test]
fn a_body_without_memory_is_refused_and_the_connection_goes_on() {
    let (server, ledger) = limited();
    let mut client = server.connect();
    // Served as a plain request and by hyper.
    for more in ["", "TE: trailers\r\n"] {
        let (headers, body) = binary(LIMIT);
        client.request("POST", INFER, &format!("{headers}{more}"), &body);
        let response = client.response();
        assert_eq!((response.code, response.header("Retry-After")), (503, Some("1")));
        assert!(response.text().contains("--memory-limit"), "{}", response.text());
        assert_eq!(response.header("Connection"), None);
        let (headers, body) = binary(LIMIT / 4);
        client.request("POST", INFER, &format!("{headers}{more}"), &body);
        assert_eq!(client.response().code, 200);
    }
    assert_eq!((server.fake.requests.load(Ordering::SeqCst), ledger.refusals()), (2, 2));
    wait_until_held(&ledger, IDLE);
    drop(client);
    wait_until_held(&ledger, 0);
}

#[test]
fn a_client_that_waits_to_send_is_told_before_it_sends() {
    let (server, _ledger) = limited();
    let mut client = server.connect();
    client.send(format!(
        "POST {INFER} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        2 * LIMIT
    ));
    let response = client.response();
    assert_eq!((response.code, response.header("Connection")), (503, Some("close")));
}

#[test]
fn a_chunked_body_is_refused_when_it_exceeds_the_limit() {
    let (server, ledger) = limited();
    let mut client = server.connect();
    let (headers, body) = binary(LIMIT);
    for _ in 0..2 {
        client.send(format!(
            "POST {INFER} HTTP/1.1\r\nHost: x\r\n{headers}Transfer-Encoding: chunked\r\n\r\n"
        ));
        for chunk in body.chunks(100_000) {
            client.send(format!("{:x}\r\n", chunk.len()));
            client.send(chunk);
            client.send("\r\n");
        }
        client.send("0\r\n\r\n");
        let response = client.response();
        assert_eq!((response.code, response.header("Connection")), (503, None));
        wait_until_held(&ledger, IDLE);
    }
}

/// A request keeps its memory until it is over, even if its client has disconnected.
#[test]
fn a_request_in_progress_holds_its_body() {
    let (server, ledger) = limited();
    let mut clients = [server.connect(), server.connect()];
    let (headers, body) = binary(LIMIT / 2);
    clients[0].request("POST", HELD, &headers, &body);
    let held = server.next_held();
    assert!(ledger.held() > LIMIT / 2);
    clients[1].request("POST", INFER, &headers, &body);
    assert_eq!(clients[1].response().code, 503);
    drop(clients);
    drop(held);
    wait_until_held(&ledger, 0);
}

#[test]
fn a_tensor_in_json_is_charged_beside_its_text() {
    let (server, ledger) = limited();
    let mut client = server.connect();
    // Each eight-byte element takes two characters.
    let count = LIMIT / 8;
    let data = vec!["1"; count].join(",");
    let body = format!(
        r#"{{"inputs":[{{"name":"x","datatype":"INT64","shape":[{count}],"data":[{data}]}}]}}"#
    );
    client.request("POST", INFER, "", body.as_bytes());
    let response = client.response();
    assert_eq!(response.code, 503, "{}", response.text());
    assert_eq!(response.header("Connection"), None);
    client.request("POST", INFER, "", infer_body(5).as_bytes());
    assert_eq!(client.response().code, 200);
    assert_eq!(ledger.refusals(), 1);
    wait_until_held(&ledger, IDLE);
}

/// The JSON of a response takes more memory than its tensor.
#[test]
fn the_text_of_a_response_is_charged_before_it_is_written() {
    let (server, ledger) = limited();
    let mut client = server.connect();
    let size = LIMIT / 2;
    let (headers, body) = binary(size);
    let as_text = String::from_utf8(body[..body.len() - size].to_vec()).unwrap();
    let as_text = as_text.replace(r#""binary_data":true"#, r#""binary_data":fals"#);
    assert_eq!(as_text.len() + size, body.len());
    let as_text = as_text.replace(r#":fals}"#, r#":false}"#);
    let headers = headers.replace(&(body.len() - size).to_string(), &as_text.len().to_string());
    let body = [as_text.as_bytes(), &body[body.len() - size..]].concat();
    client.request("POST", INFER, &headers, &body);
    let response = client.response();
    assert_eq!(response.code, 503, "{}", response.text());
    assert_eq!(server.fake.requests.load(Ordering::SeqCst), 1);
    wait_until_held(&ledger, IDLE);
}

/// A client that does not read its response keeps its memory charged.
#[test]
fn an_unread_response_stays_charged() {
    let ledger = Arc::new(MemoryLedger::new(None));
    let options = HttpOptions { ledger: ledger.clone(), ..HttpOptions::default() };
    let server = Server::with(options);
    let mut client = server.connect();
    // This is more than sockets buffer.
    let size = 32 << 20;
    let (headers, body) = binary(size);
    client.request("POST", INFER, &headers, &body);
    let head = client.response_head();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(ledger.held() > size);
    drop(client);
    wait_until_held(&ledger, 0);
}

#[test]
fn small_requests_are_served_when_nothing_is_left() {
    let (server, ledger) = limited();
    let account = MemoryAccount::without_base(ledger.clone());
    account.charge_unguarded(LIMIT).unwrap();
    let mut client = server.connect();
    client.request("POST", INFER, "", infer_body(5).as_bytes());
    assert_eq!(client.response().code, 200);
    assert_eq!(server.get("/v2/health/live").code, 200);
}
