//! Clients that are slow, too numerous or done sending.

use std::sync::mpsc;

use galatea_door::{ClientTimeouts, ConnectionLimit, DoorOptions};
use galatea_http::HttpOptions;
use galatea_infer::Status;

use crate::harness::{Client, PATIENCE, Server, infer_body, infer_response};
use galatea_fakes::echo;
use galatea_stdx::testing::wait_until;

const HOLD: &str = "/v2/models/held/infer";
const INFER: &str = "/v2/models/echo/infer";

fn with_timeouts(timeouts: ClientTimeouts) -> Server {
    let door = DoorOptions { timeouts, ..DoorOptions::default() };
    Server::with(HttpOptions { door, ..HttpOptions::default() })
}

#[track_caller]
fn check_overdue(mut client: Client, part: &str) {
    let response = client.response();
    let expected = format!(r#"{{"error":"The {part} of the request did not arrive in time"}}"#);
    assert_eq!((response.code, response.text()), (408, expected.as_str()));
    assert_eq!(response.header("Connection"), Some("close"));
    assert!(client.is_closed());
}

#[test]
fn heads_that_stay_incomplete_get_408() {
    let server = with_timeouts(ClientTimeouts { head: Some(0), ..ClientTimeouts::default() });
    let mut idle = server.connect();
    let mut plain = server.connect();
    plain.send("GET /v2/health/live HTTP/1.1\r\nHo");
    let mut second = server.connect();
    second.request("GET", "/v2/health/live", "", b"");
    assert_eq!(second.response().code, 200);
    second.send("GET /v2/health/live HTTP/1.1\r\nHost: x\r\n");
    // hyper reads heads that are longer than the buffer for plain requests.
    let mut long = server.connect();
    long.send(format!("GET /v2/health/live HTTP/1.1\r\nA: {}", "x".repeat(18_000)));
    for client in [plain, second, long] {
        check_overdue(client, "head");
    }
    // An idle connection has no partial head to complete.
    idle.request("GET", "/v2/health/live", "", b"");
    assert_eq!(idle.response().code, 200);
}

#[test]
fn bodies_that_stall_get_408() {
    let server = with_timeouts(ClientTimeouts { stall: Some(0), ..ClientTimeouts::default() });
    for head in [
        "Content-Length: 5\r\n\r\n1",
        "Content-Length: 500000\r\n\r\n1",
        "Transfer-Encoding: chunked\r\n\r\n5\r\n1",
        // hyper reads heads that two parsers might understand differently.
        "TE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n1",
    ] {
        let mut client = server.connect();
        client.send(format!("POST {INFER} HTTP/1.1\r\nHost: x\r\n{head}"));
        check_overdue(client, "body");
    }
}

#[test]
fn a_request_that_executes_is_not_waited_for() {
    let timeouts = ClientTimeouts { idle: Some(0), head: Some(0), stall: Some(0) };
    let server = with_timeouts(timeouts);
    let mut busy = server.connect();
    busy.request("POST", HOLD, "", infer_body(1).as_bytes());
    let mut old = server.connect();
    let body = infer_body(1);
    old.send(format!("POST {HOLD} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    let held = [server.next_held(), server.next_held()];
    // The other connections have been closed in the meantime.
    let mut idle = server.connect();
    assert!(idle.is_closed());
    for (request, sender) in held {
        sender.send_final(Ok(echo(request)));
    }
    assert_eq!(busy.response().text(), infer_response("held", 1));
    assert_eq!(old.response().text(), infer_response("held", 1));
}

#[test]
fn idle_connections_are_closed_in_time() {
    let server = with_timeouts(ClientTimeouts { idle: Some(0), ..ClientTimeouts::default() });
    let mut plain = server.connect();
    plain.request("GET", "/v2/health/live", "", b"");
    assert_eq!(plain.response().code, 200);
    let mut other = server.connect();
    other.request("GET", "/v2/health/live?a=1", "", b"");
    assert_eq!(other.response().code, 200);
    assert!(plain.is_closed() && other.is_closed());
}

#[test]
fn a_client_that_does_not_read_its_response_is_left() {
    let server = with_timeouts(ClientTimeouts { stall: Some(0), ..ClientTimeouts::default() });
    let mut client = server.connect();
    // This is more than the system buffers.
    let body = format!(
        r#"{{"inputs":[{{"name":"x","datatype":"UINT8","shape":[9000000],"data":[{}0]}}]}}"#,
        "0,".repeat(8_999_999)
    );
    client.request("POST", INFER, "", body.as_bytes());
    wait_until("the connection is closed", || server.door.draining_connection_count() == 0);
}

fn with_limit(max: usize) -> Server {
    let door = DoorOptions { limits: vec![ConnectionLimit::new(max)], ..DoorOptions::default() };
    Server::with(HttpOptions { door, ..HttpOptions::default() })
}

#[test]
fn a_connection_too_many_gets_503_while_all_are_busy() {
    let server = with_limit(1);
    let mut busy = server.connect();
    busy.request("POST", HOLD, "", infer_body(1).as_bytes());
    let (request, sender) = server.next_held();
    for _ in 0..3 {
        let mut client = server.connect();
        client.try_send(crate::harness::request("GET", "/v2/health/live", "", b""));
        let response = client.response();
        assert_eq!((response.code, response.header("Retry-After")), (503, Some("1")));
        assert_eq!(response.text(), r#"{"error":"The server has too many connections"}"#);
        assert!(client.is_closed());
    }
    sender.send_final(Ok(echo(request)));
    assert_eq!(busy.response().code, 200);
}

#[test]
fn an_idle_connection_makes_room_for_a_new_one() {
    let server = with_limit(2);
    let call = |client: &mut Client| {
        client.try_send(crate::harness::request("GET", "/v2/health/live", "", b""));
        client.response().code
    };
    // A connection that has just received its response may not be idle yet.
    let connect = || loop {
        let mut client = server.connect();
        match call(&mut client) {
            200 => return client,
            code => assert_eq!(code, 503),
        }
    };
    let mut busy = server.connect();
    busy.request("POST", HOLD, "", infer_body(1).as_bytes());
    let (request, sender) = server.next_held();
    let mut clients: Vec<Client> = (0..20).map(|_| connect()).collect();
    let mut last = clients.pop().unwrap();
    assert!(clients.iter_mut().all(Client::is_closed));
    assert_eq!(call(&mut last), 200);
    sender.send_final(Ok(echo(request)));
    assert_eq!(busy.response().code, 200);
}

#[test]
fn a_client_that_sends_no_more_gets_its_response() {
    let server = Server::start();
    let body = infer_body(1);
    let chunked = format!(
        "POST {HOLD} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let old = format!("POST {HOLD} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let plain = crate::harness::request("POST", HOLD, "", body.as_bytes());
    for request in [plain, chunked.into_bytes(), old.into_bytes()] {
        let mut client = server.connect();
        client.send(request);
        client.finish_sending();
        let (request, sender) = server.next_held();
        // The early byte of the response has arrived, except from hyper.
        sender.send_final(Ok(echo(request)));
        let response = client.response();
        assert_eq!((response.code, response.text()), (200, infer_response("held", 1).as_str()));
        assert!(client.is_closed());
    }
}

#[test]
fn a_client_that_sends_no_more_and_leaves_cancels_its_request() {
    let server = Server::start();
    let mut client = server.connect();
    client.request("POST", HOLD, "", infer_body(1).as_bytes());
    client.finish_sending();
    let (request, sender) = server.next_held();
    // The first byte of the response arrives early.
    client.wait_for_bytes();
    let (cancel, cancelled) = mpsc::channel();
    request.cancel.on_cancel(move || cancel.send(()).unwrap());
    drop(client);
    cancelled.recv_timeout(PATIENCE).expect("the request was not cancelled");
    sender.fail(Status::cancelled("unread"));
}

#[test]
fn malformed_chunks_get_400() {
    let server = Server::start();
    for headers in ["", "TE: trailers\r\n"] {
        for chunks in ["zz\r\nabc\r\n0\r\n\r\n", "-3\r\nabc\r\n", "3\r\nabcde\r\n0\r\n\r\n"] {
            let mut client = server.connect();
            client.send(format!(
                "POST {INFER} HTTP/1.1\r\nHost: x\r\n{headers}Transfer-Encoding: chunked\r\n\r\n\
                 {chunks}"
            ));
            let response = client.response();
            let expected = r#"{"error":"the chunks of the request's body are malformed"}"#;
            assert_eq!((response.code, response.text()), (400, expected), "{headers}{chunks:?}");
            assert!(client.is_closed());
        }
    }
}

#[test]
fn other_transfer_encodings_get_400() {
    let server = Server::start();
    for encoding in ["gzip, chunked", "chunked, chunked", "gzip\r\nTransfer-Encoding: chunked"] {
        let mut client = server.connect();
        client.send(format!(
            "POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: {encoding}\r\n\r\n\
             2\r\n{{}}\r\n0\r\n\r\n"
        ));
        let response = client.response();
        assert_eq!((response.code, response.header("Connection")), (400, Some("close")));
        assert!(client.is_closed(), "{encoding}");
    }
}

#[test]
fn refused_bodies_that_arrive_in_pieces_break_no_pipe() {
    let server = Server::start();
    for (line, code) in [
        ("POST /v2/absent", 404),
        ("POST /v2/health/live", 405),
        ("POST /v2/models/unknown/infer", 404),
    ] {
        for framing in ["Content-Length: 16000\r\n", "Transfer-Encoding: chunked\r\n"] {
            let mut client = server.connect();
            client.send(format!("{line} HTTP/1.1\r\nHost: x\r\n{framing}\r\n"));
            for _ in 0..16 {
                if framing.starts_with('T') {
                    client.send("3e8\r\n");
                }
                client.send([b'x'; 1000]);
                if framing.starts_with('T') {
                    client.send("\r\n");
                }
                // sleep: lets the server read the body in parts
                std::thread::yield_now();
            }
            if framing.starts_with('T') {
                client.send("0\r\n\r\n");
            }
            let response = client.response();
            assert_eq!((response.code, response.header("Connection")), (code, None), "{line}");
            client.request("GET", "/v2/health/live", "", b"");
            assert_eq!(client.response().code, 200);
        }
    }
}

#[test]
fn every_chunk_with_content_counts() {
    let options = HttpOptions { chunks_max: 4, ..HttpOptions::default() };
    let server = Server::with(options);
    let call = |chunks: usize| {
        let mut client = server.connect();
        let chunk = format!("400\r\n{}\r\n", " ".repeat(1024));
        client.send(format!(
            "POST /v2/repository/index HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
             {}2\r\n{{}}\r\n0\r\n\r\n",
            chunk.repeat(chunks - 1)
        ));
        client.response()
    };
    assert_eq!(call(4).code, 200);
    let response = call(5);
    assert_eq!((response.code, response.header("Connection")), (400, Some("close")));
    assert!(response.text().contains("exceeds maximum of 4 non-empty chunks"));
}
