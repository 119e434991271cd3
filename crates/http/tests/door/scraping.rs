//! Tests that documents that take long to render delay nothing else.

use std::sync::{Arc, Barrier, mpsc};

use galatea_door::DoorOptions;
use galatea_http::{HttpOptions, start_metrics};

use crate::harness::{Client, Server, Workers, infer_body, infer_response, listener};

#[test]
fn requests_are_served_while_statistics_are_rendered() {
    let server = Server::on(Workers::start(1), listener(), HttpOptions::default());
    let barrier = Arc::new(Barrier::new(2));
    let held = barrier.clone();
    *server.fake.before_statistics.lock().unwrap() = Some(Box::new(move || {
        held.wait();
        held.wait();
    }));
    let mut scrapers: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    for scraper in &mut scrapers {
        scraper.request("GET", "/v2/models/stats", "", b"");
    }
    barrier.wait();
    let expected = infer_response("echo", 7);
    server.check("POST", "/v2/models/echo/infer", &infer_body(7), 200, &expected);
    barrier.wait();
    for scraper in &mut scrapers {
        assert_eq!(scraper.response().code, 200);
    }
}

#[test]
fn connections_are_served_while_metrics_are_rendered() {
    let workers = Workers::start(1);
    let ((begin, begun), (end, ended)) = (mpsc::channel(), mpsc::channel());
    let ended = std::sync::Mutex::new(ended);
    let render = Arc::new(move || {
        begin.send(()).unwrap();
        ended.lock().unwrap().recv().unwrap();
        String::from("a_metric 1\n")
    });
    let door = start_metrics(&workers.handles, listener(), render, DoorOptions::default()).unwrap();
    let mut scraper = Client::connect(door.address());
    scraper.request("GET", "/metrics", "", b"");
    begun.recv().unwrap();
    let mut other = Client::connect(door.address());
    other.request("GET", "/", "", b"");
    assert_eq!(other.response().code, 200);
    end.send(()).unwrap();
    assert_eq!(scraper.response().text(), "a_metric 1\n");
}

#[test]
fn a_rendering_that_panics_is_an_error() {
    let workers = Workers::start(1);
    let render = Arc::new(|| panic!("on purpose"));
    let door = start_metrics(&workers.handles, listener(), render, DoorOptions::default()).unwrap();
    let mut client = Client::connect(door.address());
    client.request("GET", "/metrics", "", b"");
    let response = client.response();
    let expected = r#"{"error":"the server failed while it handled the request"}"#;
    assert_eq!((response.code, response.text()), (500, expected));
}
