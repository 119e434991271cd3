//! The two steps of stopping a door.

use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};

use galatea_http::HttpOptions;

use crate::harness::{PATIENCE, Server, infer_body, infer_response};
use galatea_fakes::echo;
use galatea_stdx::testing::wait_until;

const HOLD: &str = "/v2/models/held/infer";
const READY: &str = "/v2/health/ready";

#[test]
fn open_connections_are_served_while_the_door_drains() {
    let server = Server::start();
    let mut idle = server.connect();
    idle.request("GET", READY, "", b"");
    assert_eq!(idle.response().code, 200);
    let mut busy = server.connect();
    busy.request("POST", HOLD, "", infer_body(1).as_bytes());
    let (request, sender) = server.next_held();
    let mut silent = server.connect();
    wait_for_connections(&server, 3);

    server.door.begin_drain();
    for client in [&mut idle, &mut silent] {
        client.request("GET", READY, "", b"");
        let response = client.response();
        assert_eq!((response.code, response.header("Connection")), (200, None));
        client.request("POST", "/v2/models/echo/infer", "", infer_body(2).as_bytes());
        assert_eq!(client.response().text(), infer_response("echo", 2));
    }
    sender.send_final(Ok(echo(request)));
    assert_eq!(busy.response().text(), infer_response("held", 1));
    busy.request("GET", READY, "", b"");
    assert_eq!(busy.response().code, 200);

    let mut drained = Box::pin(server.door.drained());
    assert_eq!(drained.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending);
    assert_eq!(server.door.draining_connection_count(), 3);
    drop((idle, busy, silent));
    check_drains(&server);
    assert_eq!(server.door.draining_connection_count(), 0);
}

#[test]
fn requests_that_are_half_sent_when_the_door_drains_are_served() {
    let server = Server::start();
    let body = infer_body(1);
    let (first, second) = body.split_at(body.len() / 2);
    let infer = |head: &str| {
        let mut client = server.connect();
        client.send(format!("POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n{head}"));
        client
    };
    let mut clients = [
        infer(&format!("Content-Length: {}\r\n\r\n{first}", body.len())),
        infer(&format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{first}", body.len())),
        infer(&format!("Content-Length: {}\r\n", body.len())),
    ];
    wait_for_connections(&server, 3);
    server.door.begin_drain();
    let rests = [String::from(second), format!("{second}\r\n0\r\n\r\n"), format!("\r\n{body}")];
    for (client, rest) in clients.iter_mut().zip(rests) {
        client.send(rest);
        assert_eq!(client.response().text(), infer_response("echo", 1));
    }
}

#[test]
fn new_connections_are_closed_while_the_door_drains() {
    let server = Server::start();
    server.door.begin_drain();
    let mut client = server.connect();
    client.try_send("GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(client.try_response().is_none());
    check_drains(&server);
}

/// Waits until the door has accepted this many connections.
fn wait_for_connections(server: &Server, count: usize) {
    let is_accepted = || server.door.draining_connection_count() >= count;
    wait_until("the connections are accepted", is_accepted);
}

/// Checks that all connections end soon after the door begins to stop.
#[track_caller]
pub(crate) fn check_drains(server: &Server) {
    let drained = async { tokio::time::timeout(PATIENCE, server.door.drained()).await };
    assert!(server.workers.handles[0].block_on(drained).is_ok(), "the door does not drain");
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
    // The accept loop ends on its worker, after which the port is free.
    drop(workers);
    assert!(TcpStream::connect(address).is_err());
}
