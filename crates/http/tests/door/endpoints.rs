//! Routes, methods and the management endpoints.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use galatea_http::{HttpOptions, RequestLog};

use crate::harness::Server;

#[test]
fn unknown_paths_are_404() {
    let server = Server::start();
    for path in [
        "/",
        "/v2/",
        "/v2/models/echo/",
        "/v2/models/echo/waits",
        "/v2/models/echo/versions",
        "/v2/models/echo/versions/x",
        "/metrics",
    ] {
        server.check("GET", path, "", 404, r#"{"error":"Not Found"}"#);
        server.check("POST", path, "{}", 404, r#"{"error":"Not Found"}"#);
    }
    let response = server.get("/nothing");
    assert_eq!(response.header("Content-Type"), Some("text/plain"));
}

#[test]
fn requests_are_logged_while_the_log_is_on() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let (written, enabled) = (lines.clone(), Arc::new(AtomicBool::new(true)));
    let is_on = enabled.clone();
    let request_log = RequestLog::new(
        move || is_on.load(Ordering::SeqCst),
        move |line| written.lock().unwrap().push(line.to_string()),
    );
    let options = HttpOptions { request_log: Some(request_log), ..HttpOptions::default() };
    let server = Server::with(options);
    assert_eq!(server.get("/v2").code, 200);
    assert_eq!(server.get("/v2/a%0Ab?c").code, 404);
    assert_eq!(server.call("POST", "/v2/models/echo/infer", "{").code, 500);
    enabled.store(false, Ordering::SeqCst);
    assert_eq!(server.get("/v2").code, 200);
    let lines = lines.lock().unwrap();
    assert_eq!(lines[0], "HTTP GET /v2: 200 OK");
    assert_eq!(lines[1], "HTTP GET /v2/a%0Ab: 404 Not Found {\"error\":\"Not Found\"}");
    let refused =
        "HTTP POST /v2/models/echo/infer: 500 Internal Server Error {\"error\":\"failed to";
    assert!(lines[2].starts_with(refused), "{lines:?}");
    assert_eq!(lines.len(), 3, "{lines:?}");
}

#[test]
fn wrong_methods_are_405() {
    let server = Server::start();
    for path in [
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/stats",
        "/v2/models/echo",
        "/v2/models/echo/versions/1",
        "/v2/models/echo/ready",
        "/v2/models/echo/config",
        "/v2/models/echo/stats",
        "/v2/models/echo/scheduler",
        "/v2/models/echo/versions/1/scheduler",
        "/v2/systemsharedmemory/status",
    ] {
        for method in ["POST", "PUT", "HEAD", "DELETE"] {
            assert_eq!(server.status_of(method, path), 405, "{method} {path}");
        }
    }
    for path in [
        "/v2/models/echo/infer",
        "/v2/models/echo/generate",
        "/v2/models/echo/generate_stream",
        "/v2/repository/index",
        "/v2/repository/models/echo/load",
        "/v2/repository/models/echo/unload",
        "/v2/cudasharedmemory/register",
        "/v2/cudasharedmemory/region/r/unregister",
    ] {
        server.check("GET", path, "", 405, r#"{"error":"Method Not Allowed"}"#);
    }
    assert_eq!(server.status_of("PUT", "/v2/logging"), 405);
    assert_eq!(server.status_of("DELETE", "/v2/trace/setting"), 405);
}

impl Server {
    /// Returns the status of the response to a request without a body.
    fn status_of(&self, method: &str, path: &str) -> u16 {
        let mut client = self.connect();
        client.send(format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        let head = client.response_head();
        head.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

#[test]
fn health() {
    let server = Server::start();
    server.check("GET", "/v2/health/live", "", 200, "");
    server.check("GET", "/v2/health/ready", "", 200, "");
    server.check("GET", "/v2/models/echo/ready", "", 200, "");
    server.check("GET", "/v2/models/echo/versions/1/ready", "", 200, "");
    server.fake.is_unready.store(true, Ordering::SeqCst);
    server.check("GET", "/v2/health/live", "", 200, "");
    server.check("GET", "/v2/health/ready", "", 400, "");
    let not_ready = r#"{"error":"Model version not ready"}"#;
    server.check("GET", "/v2/models/echo/ready", "", 400, not_ready);
    server.check("GET", "/v2/models/unknown/ready", "", 400, not_ready);
    let response = server.get("/v2/models/unknown/ready");
    assert_eq!(response.header("Content-Type"), Some("text/plain"));
}

#[test]
fn metadata_config_and_statistics() {
    let server = Server::start();
    let check = |path: &str, expected: &str| {
        let response = server.get(path);
        assert_eq!((response.code, response.text()), (200, expected), "{path}");
        assert_eq!(response.header("Content-Type"), Some("application/json"));
    };
    check("/v2", r#"{"name":"fake","version":"1","extensions":["a","b"]}"#);
    let model = r#"{"name":"echo","versions":["1","7"],"platform":"identity","inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[-1]}],"outputs":[{"name":"OUTPUT0","datatype":"UINT8","shape":[-1]}]}"#;
    check("/v2/models/echo", model);
    check("/v2/models/echo?query=ignored", model);
    check("/v2/models/echo/versions/1", model);
    check("/v2/models/echo/config", r#"{"name":"echo","max_batch_size":0}"#);
    check("/v2/models/echo/scheduler", r#"{"queues":[]}"#);
    check("/v2/models/echo/versions/1/scheduler", r#"{"queues":[]}"#);
    for path in ["/v2/models/stats", "/v2/models/echo/stats", "/v2/models/echo/versions/1/stats"] {
        let response = server.get(path);
        assert!(response.text().starts_with(r#"{"model_stats":[{"name":"echo","version":"1","#));
    }
}

#[test]
// row: HTTP-03
fn statuses_become_http_codes() {
    let server = Server::start();
    let unknown = r#"{"error":"Request for unknown model: 'unknown' is not found"}"#;
    server.check("GET", "/v2/models/unknown", "", 404, unknown);
    server.check("GET", "/v2/models/unknown/config", "", 404, unknown);
    server.check("GET", "/v2/models/unknown/scheduler", "", 404, unknown);
    let unready = r#"{"error":"'echo' version 9 is not at ready state"}"#;
    server.check("GET", "/v2/models/echo/versions/9", "", 503, unready);
    server.check("GET", "/v2/models/echo/versions/9/scheduler", "", 503, unready);
    let unavailable = r#"{"error":"requested model is not available"}"#;
    server.check("GET", "/v2/models/unknown/stats", "", 400, unavailable);
    let response = server.get("/v2/models/echo/versions/99999999999999999999");
    assert_eq!(response.code, 400);
    assert!(response.text().contains("version should be an integral value > 0"));
}

#[test]
// row: PREP-02
fn repository() {
    let server = Server::start();
    let all = r#"[{"name":"echo","version":"1","state":"READY"},{"name":"b","version":"2","state":"UNAVAILABLE","reason":"unloaded"},{"name":"c"}]"#;
    server.check("POST", "/v2/repository/index", "", 200, all);
    server.check("POST", "/v2/repository/index", r#"{"ready":false}"#, 200, all);
    let ready = r#"[{"name":"echo","version":"1","state":"READY"}]"#;
    server.check("POST", "/v2/repository/index", r#"{"ready":true}"#, 200, ready);
    server.check(
        "POST",
        "/v2/repository/index",
        r#"{"ready":"x"}"#,
        400,
        r#"{"error":"Invalid value for 'ready': expected a boolean"}"#,
    );
    server.check("POST", "/v2/repository/models/m/load", "", 200, "");
    server.check(
        "POST",
        "/v2/repository/models/broken/load",
        "{}",
        500,
        r#"{"error":"failed to load 'broken'"}"#,
    );
    let parameters = r#"{"parameters":{"config":"{}","file:1/x":"AP8="}}"#;
    server.check("POST", "/v2/repository/models/n/load", parameters, 200, "");
    server.check("POST", "/v2/repository/models/m/unload", "", 200, "");
    let dependents = r#"{"parameters":{"unload_dependents":true}}"#;
    server.check("POST", "/v2/repository/models/m/unload", dependents, 200, "");
    let changes = server.fake.orders.lock().unwrap().join(", ");
    assert_eq!(
        changes,
        "load m, load broken, load n config {} 1/x [0, 255], unload m false, unload m true"
    );
    let named = r#"{"error":"'repository_name' specification is not supported"}"#;
    server.check("POST", "/v2/repository/r/index", "", 200, all);
    for path in ["models/m/load", "models/m/unload"] {
        server.check("POST", &format!("/v2/repository/r/{path}"), "", 501, named);
    }
}

#[test]
fn extensions_that_are_not_offered_are_refused() {
    let server = Server::start();
    let check = |method: &str, path: &str, expected: &str| {
        let response = server.call(method, path, "{}");
        assert_eq!(response.code, 501, "{path}");
        assert!(response.text().contains(expected), "{path}: {}", response.text());
    };
    for kind in ["system", "cuda"] {
        for path in ["register", "unregister", "region/r/register", "region/r/unregister"] {
            let path = format!("/v2/{kind}sharedmemory/{path}");
            check("POST", &path, "Client shared memory is disabled. Start the server with");
        }
        server.check("GET", &format!("/v2/{kind}sharedmemory/status"), "", 200, "[]");
        server.check(
            "GET",
            &format!("/v2/{kind}sharedmemory/region/r/status"),
            "",
            404,
            &format!(r#"{{"error":"Unable to find {kind} shared memory region: 'r'"}}"#),
        );
    }
}
