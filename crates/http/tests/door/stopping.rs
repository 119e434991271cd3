//! The two steps in which a door stops.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use galatea_http::{HttpOptions, start};
use tokio::runtime::Builder;

use crate::fake::{FakeControl, FakeService, echo};
use crate::harness::{Client, PATIENCE, Server, infer_body, infer_response, listener};

const HOLD: &str = "/v2/models/hold/infer";

#[test]
fn requests_in_progress_get_responses_and_idle_connections_are_closed() {
    let server = Server::start();
    let mut idle = server.connect();
    idle.request("GET", "/v2/health/ready", "", b"");
    assert_eq!(idle.response().code, 200);
    let mut busy = server.connect();
    busy.request("POST", HOLD, "", infer_body(1).as_bytes());
    let (request, sender) = server.next_held();
    assert_eq!(server.door.connections(), 2);

    server.door.stop_accepting();
    assert!(idle.is_closed());
    let mut drained = Box::pin(server.door.drained());
    assert_eq!(drained.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending);

    sender.send_final(Ok(echo(request)));
    let response = busy.response();
    assert_eq!(response.text(), infer_response("hold", 1));
    assert!(busy.is_closed());
    server.workers.handles[0].block_on(drained);
    assert_eq!(server.door.connections(), 0);
}

#[test]
fn a_request_from_before_the_stop_gets_its_response() {
    // Only this test drives the runtime, as if the server were a little late.
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let workers = [runtime.handle().clone()];
    let (service, _held) = FakeService::new();
    let control = Arc::<FakeControl>::default();
    let door = start(&workers, listener(), service, control, HttpOptions::default()).unwrap();
    let probe = |mut client: Client| {
        client.request("GET", "/v2/health/ready", "", b"");
        client
    };
    let respond = |mut client: Client| {
        let response = runtime.spawn_blocking(move || (client.response(), client));
        runtime.block_on(response).unwrap()
    };
    let client = probe(Client::connect(door.address()));
    let (response, client) = respond(client);
    assert_eq!((response.code, response.header("Connection")), (200, None));

    let client = probe(client);
    door.stop_accepting();
    let (response, mut client) = respond(client);
    assert_eq!((response.code, response.header("Connection")), (503, Some("close")));
    assert!(client.is_closed());
}

#[test]
fn a_draining_door_refuses_probes_and_inferences() {
    let server = Server::start();
    server.door.stop_accepting();
    let exiting = r#"{"error":"Server exiting"}"#;
    server.check("GET", "/v2/health/ready", "", 503, exiting);
    server.check("GET", "/v2/health/live", "", 503, exiting);
    server.check("POST", "/v2/models/echo/infer", &infer_body(1), 503, exiting);
    assert_eq!(server.get("/v2").code, 200);
    let mut client = server.connect();
    client.request("GET", "/v2/health/ready", "", b"");
    assert_eq!(client.response().header("Connection"), Some("close"));
    assert!(client.is_closed());
    // Later connections don't delay the drain.
    let open = server.connect();
    server.workers.handles[0].block_on(server.door.drained());
    drop(open);
}

#[test]
fn pipelined_requests_behind_one_that_waits_are_refused_while_draining() {
    let server = Server::start();
    let mut client = server.connect();
    client.request("POST", HOLD, "", infer_body(1).as_bytes());
    let (request, sender) = server.next_held();
    server.door.stop_accepting();
    sender.send_final(Ok(echo(request)));
    assert_eq!(client.response().code, 200);
    assert!(client.is_closed());
}

/// Checks that all connections end soon after the door began to stop.
#[track_caller]
pub(crate) fn check_drains(server: &Server) {
    let drained = async { tokio::time::timeout(PATIENCE, server.door.drained()).await };
    assert!(server.workers.handles[0].block_on(drained).is_ok(), "the door does not drain");
}

#[test]
fn half_a_head_does_not_delay_the_drain() {
    let server = Server::start();
    let mut first = server.connect();
    first.send("GET /v2/health/ready HTTP/1.1\r\nHo");
    let mut second = server.connect();
    second.request("GET", "/v2/health/ready", "", b"");
    second.send("GET /v2/health/ready HTTP/1.1\r\nHo");
    assert_eq!(second.response().code, 200);
    while server.door.connections() < 2 {
        std::thread::yield_now();
    }
    server.door.stop_accepting();
    check_drains(&server);
    assert!(first.is_closed());
    assert!(second.is_closed());
}

#[test]
fn a_head_that_is_completed_while_stopping_is_served_or_closed() {
    let server = Server::start();
    let mut client = server.connect();
    client.send("GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n");
    while server.door.connections() < 1 {
        std::thread::yield_now();
    }
    server.door.stop_accepting();
    // Too late or in time, the connection ends; with a response if the head was read.
    client.try_send("\r\n");
    if let Some(response) = client.try_response() {
        assert_eq!(response.code, 503);
        assert!(client.is_closed());
    }
    check_drains(&server);
}

#[test]
fn half_a_body_is_refused_when_the_door_stops() {
    let server = Server::start();
    let body = infer_body(1);
    let half = &body[..body.len() / 2];
    let check = |path: &str, head: &str| {
        let mut client = server.connect();
        client.send(format!("POST {path} HTTP/1.1\r\nHost: x\r\n{head}"));
        client
    };
    let length = format!("Content-Length: {}\r\n\r\n{half}", body.len());
    let chunk = format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{half}", half.len() + 1);
    let mut clients = [
        check("/v2/models/echo/infer", &length),
        check("/v2/models/echo/infer", &chunk),
        check("/v2/repository/index", &length),
    ];
    // A client that waits for an interim response gets it when its body is read.
    let mut continued =
        check("/v2/models/echo/infer", "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(continued.response().code, 100);
    while server.door.connections() < 4 {
        std::thread::yield_now();
    }
    server.door.stop_accepting();
    for client in clients.iter_mut().chain([&mut continued]) {
        let response = client.response();
        assert_eq!((response.code, response.text()), (503, r#"{"error":"Server exiting"}"#));
        assert_eq!(response.header("Connection"), Some("close"));
        assert!(client.is_closed());
    }
    check_drains(&server);
    assert_eq!(server.service.requests.load(Ordering::SeqCst), 0);
}

#[test]
fn a_body_that_trickles_does_not_delay_the_drain() {
    let server = Server::start();
    let mut client = server.connect();
    client.send(
        "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\
         Content-Length: 1000000\r\n\r\n",
    );
    assert_eq!(client.response().code, 100);
    server.door.stop_accepting();
    let trickle = std::thread::spawn(move || {
        while client.try_send(" ") {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    check_drains(&server);
    trickle.join().unwrap();
}

#[test]
fn closing_cancels_requests_in_progress() {
    let server = Server::start();
    let mut client = server.connect();
    client.request("POST", HOLD, "", infer_body(1).as_bytes());
    let (request, sender) = server.next_held();
    let (cancel, cancelled) = mpsc::channel();
    request.cancel.on_cancel(move || cancel.send(()).unwrap());
    server.door.close();
    cancelled.recv_timeout(PATIENCE).expect("the request was not cancelled");
    assert!(client.is_closed());
    drop(sender);
    server.workers.handles[0].block_on(server.door.drained());
}

#[test]
fn a_dropped_door_frees_its_port() {
    // No other socket uses this address, so the port is not reused.
    let listener = TcpListener::bind("127.0.63.1:0").unwrap();
    let server = Server::at(listener, HttpOptions::default());
    let address = server.door.address();
    let Server { door, workers, .. } = server;
    drop(door);
    // The accept loop ends on its worker; then the port is free.
    drop(workers);
    assert!(TcpStream::connect(address).is_err());
}
