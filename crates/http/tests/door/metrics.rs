//! The metrics endpoint.

use std::sync::Arc;

use galatea_door::DoorOptions;
use galatea_http::start_metrics;

use crate::harness::{Client, Workers, listener};

#[test]
// row: MET-01
fn metrics_are_text_and_other_paths_are_empty() {
    let workers = Workers::start(1);
    let render = Arc::new(|| String::from("a_metric 1\n"));
    let door = start_metrics(&workers.handles, listener(), render, DoorOptions::default()).unwrap();
    let call = |method: &str, path: &str| {
        let mut client = Client::connect(door.address());
        client.request(method, path, "", b"");
        client.response()
    };
    for (path, expected) in
        [("/metrics", "a_metric 1\n"), ("/metrics/", "a_metric 1\n"), ("/", ""), ("/metrics/x", "")]
    {
        let response = call("GET", path);
        assert_eq!((response.code, response.text()), (200, expected), "{path}");
        assert_eq!(response.header("Content-Type"), Some("text/plain; charset=utf-8"));
    }
    let response = call("POST", "/metrics");
    assert_eq!((response.code, response.text()), (405, r#"{"error":"Method Not Allowed"}"#));
}

#[test]
fn a_client_that_sends_a_refused_body_gets_its_response() {
    let workers = Workers::start(1);
    let render = Arc::new(|| String::from("a_metric 1\n"));
    let door = start_metrics(&workers.handles, listener(), render, DoorOptions::default()).unwrap();
    let body = vec![b'x'; 10_000_000];
    // hyper serves the requests of the second connection.
    for headers in ["", "TE: trailers\r\n"] {
        let mut client = Client::connect(door.address());
        for (method, path, code) in [("POST", "/metrics", 405), ("GET", "/metrics", 200)] {
            for _ in 0..4 {
                client.request(method, path, headers, &body);
                assert_eq!(client.response().code, code, "{method} {headers}");
            }
        }
    }
}

#[test]
fn a_door_needs_a_worker() {
    let render = Arc::new(String::new);
    assert!(start_metrics(&[], listener(), render, DoorOptions::default()).is_err());
}
