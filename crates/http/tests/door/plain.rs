//! Requests that the door serves itself and requests that it leaves to hyper. Clients must not see
//! a difference.

use std::sync::atomic::Ordering;
use std::sync::mpsc;

use galatea_codec::forward::HeaderForwardPattern;
use galatea_http::HttpOptions;
use galatea_infer::{ParameterValue, Status};

use crate::harness::{Client, PATIENCE, Response, Server, infer_body, infer_response, request};
use crate::stopping::check_drains;
use galatea_fakes::echo;

const INFER: &str = "/v2/models/echo/infer";
const HOLD: &str = "/v2/models/held/infer";
const LIVE: &str = "/v2/health/live";

/// A header that makes any request non-plain.
const NOT_PLAIN: &str = "TE: trailers\r\n";

/// Returns an inference request with a body of `length` bytes, and the tensor at the body's end.
fn infer_of(length: usize, headers: &str) -> (Vec<u8>, Vec<u8>) {
    let json = |size: usize| {
        format!(
            r#"{{"inputs":[{{"name":"x","datatype":"UINT8","shape":[{size}],"parameters":{{"binary_data_size":{size}}}}}],"outputs":[{{"name":"x","parameters":{{"binary_data":true}}}}]}}"#
        )
    };
    // The length of the text depends on the number of digits in it.
    let size = (0..length).rev().find(|size| json(*size).len() + size <= length).unwrap();
    let json = json(size) + &" ".repeat(length - json(size).len() - size);
    let tensor: Vec<u8> = (0..size).map(|index| index.to_le_bytes()[0] ^ 0x5a).collect();
    let headers = format!("{headers}Inference-Header-Content-Length: {}\r\n", json.len());
    (request("POST", INFER, &headers, &[json.as_bytes(), &tensor].concat()), tensor)
}

#[track_caller]
fn check_tensor(response: &Response, tensor: &[u8]) {
    assert_eq!(response.code, 200);
    assert!(response.body.ends_with(tensor), "the tensor changed on its way");
}

/// Returns the head of a response without its date.
fn timeless(response: &Response) -> String {
    let date = response.header("Date").unwrap_or_else(|| panic!("no date: {}", response.head));
    assert_eq!((date.len(), &date[26..]), (29, "GMT"), "{date}");
    response.head.replace(date, "now")
}

#[test]
fn responses_do_not_depend_on_what_serves_them() {
    let server = Server::start();
    let body = infer_body(1);
    let mut connections = [server.connect(), server.connect()];
    let mut check = |method, path, headers: &str, body: &[u8]| {
        let [plain, other] = connections.each_mut().map(|client| client);
        plain.request(method, path, headers, body);
        other.request(method, path, &format!("{headers}{NOT_PLAIN}"), body);
        let (plain, other) = (plain.response(), other.response());
        assert_eq!(timeless(&plain), timeless(&other));
        assert_eq!(plain.body, other.body);
    };
    check("GET", LIVE, "", b"");
    check("POST", INFER, "", body.as_bytes());
    check("POST", INFER, "", b"nonsense");
    check("POST", INFER, "Inference-Header-Content-Length: x\r\n", body.as_bytes());
    check("POST", INFER, "Inference-Header-Content-Length: 0\r\n", b"1");
    check("POST", INFER, "Content-Encoding: gzip\r\n", body.as_bytes());
    check("POST", LIVE, "", b"some body");
    check("GET", "/v2/models/absent", "", b"");
    check("GET", "/v3", "", b"");
    let (large, _) = infer_of(100_000, "");
    let (large_too, _) = infer_of(100_000, NOT_PLAIN);
    let [plain, other] = &mut connections;
    plain.send(large);
    other.send(large_too);
    assert_eq!(timeless(&plain.response()), timeless(&other.response()));
    plain.request("GET", LIVE, "Connection: close\r\n", b"");
    other.request("GET", LIVE, &format!("Connection: close\r\n{NOT_PLAIN}"), b"");
    assert_eq!(plain.response().header("Connection"), Some("close"));
    assert_eq!(other.response().header("Connection"), Some("close"));
    assert!(plain.is_closed() && other.is_closed());
}

#[test]
fn a_connection_may_be_handed_to_hyper() {
    let server = Server::start();
    let mut client = server.connect();
    let plain = || request("POST", INFER, "", infer_body(1).as_bytes());
    let other = || request("POST", INFER, NOT_PLAIN, infer_body(2).as_bytes());
    let check = |client: &mut Client, values: &[u8]| {
        for value in values {
            assert_eq!(client.response().text(), infer_response("echo", *value));
        }
    };
    client.send([plain(), plain(), other(), plain()].concat());
    check(&mut client, &[1, 1, 2, 1]);
    client.send([other(), plain()].concat());
    check(&mut client, &[2, 1]);
    // A head in pieces isn't plain, and neither is half a head after a request.
    let mut client = server.connect();
    let two = [plain(), plain()].concat();
    let (first, second) = two.split_at(plain().len() + 20);
    client.send(first);
    check(&mut client, &[1]);
    client.send(second);
    check(&mut client, &[1]);
    assert_eq!(server.fake.requests.load(Ordering::SeqCst), 8);
}

#[test]
fn bodies_around_the_size_of_a_buffer_arrive_complete() {
    let server = Server::start();
    let mut client = server.connect();
    let (head, _) = infer_of(16 << 10, "");
    let head = head.len() - (16 << 10);
    for around in [300, 8 << 10, (16 << 10) - head, 16 << 10, 1 << 20, 2 << 20] {
        for length in around - 2..=around + 2 {
            let (request, tensor) = infer_of(length, "");
            client.send(request);
            check_tensor(&client.response(), &tensor);
        }
    }
}

#[test]
fn a_client_may_pause_within_a_body() {
    let server = Server::start();
    let mut client = server.connect();
    for cut in [150, 500, 20_000, 500_000, 599_999] {
        let (request, tensor) = infer_of(600_000, "");
        client.send(&request[..cut]);
        // Other requests are served in the meantime.
        assert_eq!(server.get(LIVE).code, 200);
        assert_eq!(server.call("POST", INFER, &infer_body(1)).code, 200);
        client.send(&request[cut..]);
        check_tensor(&client.response(), &tensor);
    }
}

#[test]
fn requests_behind_a_large_body_get_responses_in_order() {
    let server = Server::start();
    let mut client = server.connect();
    let (large, tensor) = infer_of(600_000, "");
    let small = |value| request("POST", INFER, "", infer_body(value).as_bytes());
    for behind in [[small(1), small(2)].concat(), small(1)[..1].to_vec()] {
        client.send([&large[..], &behind].concat());
        check_tensor(&client.response(), &tensor);
        if behind.len() == 1 {
            client.send(&small(1)[1..]);
        } else {
            assert_eq!(client.response().text(), infer_response("echo", 1));
            client.send(small(1));
            assert_eq!(client.response().text(), infer_response("echo", 2));
        }
        assert_eq!(client.response().text(), infer_response("echo", 1));
    }
}

#[test]
fn a_client_may_disconnect_within_a_large_body() {
    let server = Server::start();
    let (request, _) = infer_of(600_000, "");
    for cut in [200, 20_000, 599_999] {
        let mut client = server.connect();
        client.send(&request[..cut]);
        drop(client);
    }
    server.door.begin_drain();
    check_drains(&server);
    assert_eq!(server.fake.requests.load(Ordering::SeqCst), 0);
}

#[test]
fn a_refused_body_is_read_if_it_has_arrived() {
    let server = Server::start();
    let mut client = server.connect();
    let refused = request("POST", "/v2/absent", "", &[b'x'; 1000]);
    client.send([&refused[..], &request("GET", LIVE, "", b"")].concat());
    let response = client.response();
    assert_eq!((response.code, response.header("Connection")), (404, None));
    assert_eq!(client.response().code, 200);
    // The beginning of the next request would be unknown.
    client.send("POST /v2/absent HTTP/1.1\r\nContent-Length: 10\r\n\r\n12345");
    let response = client.response();
    assert_eq!((response.code, response.header("Connection")), (404, Some("close")));
    assert!(client.is_closed());
}

#[test]
fn a_client_that_pipelines_gets_its_response() {
    let server = Server::start();
    let mut client = server.connect();
    client.request("POST", HOLD, "", infer_body(1).as_bytes());
    let (held, sender) = server.next_held();
    client.request("GET", LIVE, "", b"");
    assert_eq!(server.get(LIVE).code, 200);
    assert!(!held.cancel.is_cancelled());
    sender.send_final(Ok(echo(held)));
    assert_eq!(client.response().text(), infer_response("held", 1));
    assert_eq!(client.response().code, 200);
}

#[test]
fn headers_are_forwarded_by_door_and_hyper() {
    let header_forward = HeaderForwardPattern::new("^my-").ok();
    let server = Server::with(HttpOptions { header_forward, ..HttpOptions::default() });
    let mut client = server.connect();
    for more in ["", NOT_PLAIN] {
        let headers = format!("My-Header: \tA b \r\n{more}");
        client.request("POST", HOLD, &headers, infer_body(1).as_bytes());
        let (held, sender) = server.next_held();
        let [parameter] = &held.parameters[..] else { panic!("{:?}", held.parameters) };
        assert_eq!(parameter.name, "My-Header");
        assert_eq!(parameter.value, ParameterValue::String(String::from("\tA b ")));
        sender.send_final(Ok(echo(held)));
        assert_eq!(client.response().code, 200);
    }
}

/// Returns a connection that has served requests with immediate responses.
fn warm_client(server: &Server) -> Client {
    let mut client = server.connect();
    for value in [1, 2, 3] {
        client.request("POST", INFER, "", infer_body(value).as_bytes());
        assert_eq!(client.response().text(), infer_response("echo", value));
    }
    client
}

#[test]
fn any_bytes_may_follow_a_request() {
    let server = Server::start();
    let small = |value| request("POST", INFER, "", infer_body(value).as_bytes());
    let other = request("POST", INFER, NOT_PLAIN, infer_body(7).as_bytes());
    let check_responses = |client: &mut Client, values: &[u8]| {
        for value in values {
            assert_eq!(client.response().text(), infer_response("echo", *value));
        }
        // No other response follows.
        client.request("GET", LIVE, "", b"");
        let response = client.response();
        assert_eq!((response.code, response.text()), (200, ""));
    };
    let mut client = warm_client(&server);
    client.send([small(4), small(5)].concat());
    check_responses(&mut client, &[4, 5]);

    let mut client = warm_client(&server);
    let (whole, half) = (small(4), small(5));
    client.send([&whole[..], &half[..half.len() - 3]].concat());
    assert_eq!(client.response().text(), infer_response("echo", 4));
    client.send(&half[half.len() - 3..]);
    check_responses(&mut client, &[5]);

    // hyper serves a request after a blank line, and after half a head.
    for first in [other, [b"\r\n", &small(7)[..]].concat()] {
        let mut client = warm_client(&server);
        client.send([first, small(8)].concat());
        check_responses(&mut client, &[7, 8]);
    }
    let mut client = warm_client(&server);
    client.send(&small(7)[..10]);
    assert_eq!(server.get(LIVE).code, 200);
    client.send(&small(7)[10..]);
    check_responses(&mut client, &[7]);

    for length in [2000, 2047, 2048, 2049, 5000, 20_000, 600_000] {
        let mut client = warm_client(&server);
        let (large, tensor) = infer_of(length, "");
        client.send([&large[..], &small(9)].concat());
        check_tensor(&client.response(), &tensor);
        check_responses(&mut client, &[9]);
    }

    let mut client = warm_client(&server);
    client.request("POST", INFER, "", b"nonsense");
    assert_eq!(client.response().code, 500);
    client.send(small(4));
    check_responses(&mut client, &[4]);
}

#[test]
fn a_client_that_disconnects_behind_finished_requests_cancels_the_next() {
    let server = Server::start();
    // A quick client sends the next request before the server waits for it.
    for _ in 0..20 {
        let mut client = warm_client(&server);
        client.request("POST", HOLD, "", infer_body(1).as_bytes());
        let (held, sender) = server.next_held();
        let (cancel, cancelled) = mpsc::channel();
        held.cancel.on_cancel(move || cancel.send(()).unwrap());
        drop(client);
        cancelled.recv_timeout(PATIENCE).expect("the request was not cancelled");
        sender.fail(Status::cancelled("unread"));
    }
}
