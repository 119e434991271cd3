//! The two steps in which a door stops.

use std::net::TcpStream;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};

use crate::fake::echo;
use crate::harness::{PATIENCE, Server, infer_answer, infer_body};

const HOLD: &str = "/v2/models/hold/infer";

#[test]
fn requests_on_the_way_are_answered_and_idle_connections_closed() {
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
    assert_eq!(response.text(), infer_answer("hold", 1));
    assert!(busy.is_closed());
    server.workers.handles[0].block_on(drained);
    assert_eq!(server.door.connections(), 0);
}

#[test]
fn while_draining_probes_are_told_and_inferences_refused() {
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
    // Connections made since then keep nobody from being done.
    let open = server.connect();
    server.workers.handles[0].block_on(server.door.drained());
    drop(open);
}

#[test]
fn pipelined_requests_behind_one_that_waits_are_refused() {
    let server = Server::start();
    let mut client = server.connect();
    client.request("POST", HOLD, "", infer_body(1).as_bytes());
    let (request, sender) = server.next_held();
    server.door.stop_accepting();
    sender.send_final(Ok(echo(request)));
    assert_eq!(client.response().code, 200);
    assert!(client.is_closed());
}

#[test]
fn closing_cancels_what_is_left() {
    let server = Server::start();
    let mut client = server.connect();
    client.request("POST", HOLD, "", infer_body(1).as_bytes());
    let (request, sender) = server.next_held();
    let (told, cancelled) = mpsc::channel();
    request.cancel.on_cancel(move || told.send(()).unwrap());
    server.door.close();
    cancelled.recv_timeout(PATIENCE).expect("the request was not cancelled");
    assert!(client.is_closed());
    drop(sender);
    server.workers.handles[0].block_on(server.door.drained());
}

#[test]
fn a_dropped_door_gives_its_port_back() {
    let server = Server::start();
    let address = server.door.address();
    let Server { door, workers, .. } = server;
    drop(door);
    // The acceptor ends on its worker; when all is done the port is free.
    drop(workers);
    assert!(TcpStream::connect(address).is_err());
}
