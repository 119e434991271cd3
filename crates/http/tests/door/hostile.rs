//! Requests like those that exploit published vulnerabilities of similar servers. The server must
//! still respond to other requests afterwards.

use galatea_http::HttpOptions;

use crate::harness::{Server, infer_body, infer_response};

const INFER: &str = "/v2/models/echo/infer";

#[track_caller]
fn check_serves(server: &Server) {
    assert_eq!(server.call("POST", INFER, &infer_body(9)).text(), infer_response("echo", 9));
}

fn chunk_flood(server: &Server, path: &str, count: usize) -> u16 {
    let mut client = server.connect();
    client.send(format!("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"));
    client.try_send("1\r\nA\r\n".repeat(count));
    client.try_send("0\r\n\r\n");
    let response = client.response();
    if count > 65_536 {
        let expected = r#"{"error":"Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."}"#;
        assert_eq!(response.text(), expected);
        assert_eq!(response.header("Connection"), Some("close"));
    }
    response.code
}

#[test]
fn cve_2025_23310_23311_33202_2026_47476_floods_of_chunks() {
    let server = Server::start();
    for path in [INFER, "/v2/repository/index", "/v2/repository/models/m/load"] {
        assert_eq!(chunk_flood(&server, path, 65_537), 400);
    }
    assert_eq!(chunk_flood(&server, INFER, 300_000), 400);
    // With the permitted number of chunks there is a body, but it is not JSON.
    assert_eq!(chunk_flood(&server, INFER, 65_536), 500);
    check_serves(&server);
}

#[test]
fn cve_2025_23317_header_length_beyond_the_body_in_segments() {
    let server = Server::start();
    for length in ["99999999999", "18446744073709551616", "2000", "-1", "x", ""] {
        let mut client = server.connect();
        client.send(format!("POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n"));
        client.send(format!("Inference-Header-Content-Length: {length}\r\n\r\n0123456789"));
        // The response may already have been sent.
        client.try_send("0123456789");
        assert_eq!(client.response().code, 400, "{length}");
    }
    check_serves(&server);
}

#[test]
fn cve_2025_33201_a_declared_length_allocates_nothing() {
    let server = Server::start();
    for length in ["67108865", "9223372036854775807", "18446744073709551613"] {
        let mut client = server.connect();
        client.send(format!(
            "POST {INFER} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        ));
        assert_eq!(client.response().code, 400, "{length}");
    }
    check_serves(&server);
}

#[test]
fn cve_2025_23325_2026_47477_nested_json_over_the_wire() {
    let server = Server::start();
    let deep = "[".repeat(250_000);
    let data = format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1],"data":{deep}"#);
    for (path, body) in [
        ("/v2/repository/index", &deep),
        ("/v2/repository/models/m/load", &deep),
        ("/v2/repository/models/m/unload", &deep),
        (INFER, &deep),
        (INFER, &data),
    ] {
        let response = server.call("POST", path, body);
        assert_eq!(response.code, 400, "{path}: {}", response.text());
    }
    check_serves(&server);
}

#[test]
fn cve_2024_0100_no_file_is_named_by_a_client() {
    let server = Server::start();
    let trace = server.call("POST", "/v2/trace/setting", r#"{"trace_file":"/var/log/x"}"#);
    // A door without a tracer has no traces at all. The tests in tests/clients use a door that has
    // them.
    assert_eq!(trace.code, 503);
}

#[test]
fn cve_2023_31036_2024_53880_files_of_a_load_are_only_handed_on() {
    let server = Server::start();
    let body = r#"{"parameters":{"config":"{}","file:../../x":"QQ=="}}"#;
    let response = server.call("POST", "/v2/repository/models/m/load", body);
    assert_eq!(response.code, 200);
    // The repository decides where the files may be written, and tests that.
    let changes = server.fake.orders.lock().unwrap().clone();
    assert_eq!(changes, ["load m config {} ../../x [65]"]);
}

#[test]
fn cve_2026_24175_numbers_in_headers_that_no_type_holds() {
    let server = Server::start();
    let mut client = server.connect();
    let header = "Accept-Encoding: gzip;q=1e9999, deflate;q=, ;q=1\r\n";
    client.request("POST", INFER, header, infer_body(4).as_bytes());
    assert_eq!(client.response().text(), infer_response("echo", 4));
}

#[test]
fn cve_2025_23316_2026_24208_24209_names_are_only_names() {
    let server = Server::start();
    for name in ["..", ".", "%2e%2e", "a;touch%20x", "$(x)", "a%00", "..%2f..%2fetc"] {
        let response = server.call("POST", &format!("/v2/models/{name}/infer"), &infer_body(1));
        let name = format!(r#"{{"model_name":"{name}","#);
        assert!(response.text().starts_with(&name), "{}", response.text());
    }
    for path in ["/v2/models/../infer/x", "/v2/models/a/b/infer", "/v2/../etc/passwd"] {
        assert_eq!(server.get(path).code, 404, "{path}");
    }
    check_serves(&server);
}

#[test]
fn cve_2025_23331_cve_2025_23323_shapes_over_the_wire() {
    let server = Server::start();
    for (shape, code) in [
        ("[4611686018427387904,4]", 400),
        ("[1,8589934592,8589934592]", 400),
        ("[-1]", 500),
        ("[1e3]", 500),
    ] {
        let body = format!(
            r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":{shape},"data":[1]}}]}}"#
        );
        assert_eq!(server.call("POST", INFER, &body).code, code, "{shape}");
    }
    check_serves(&server);
}

#[test]
fn nonsense_before_any_request() {
    let server = Server::with(HttpOptions::default());
    for nonsense in [
        &b"\x16\x03\x01\x02\x00\x01"[..],
        b"GET\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v2/models/echo/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /v2/models/echo/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    ] {
        let mut client = server.connect();
        client.try_send(nonsense);
        // The request is refused or the connection closed; either way, the connection ends.
        if let Some(response) = client.try_response() {
            assert_eq!(response.code, 400);
        }
    }
    let mut client = server.connect();
    client.try_send(format!("GET /v2 HTTP/1.1\r\n{}", "a: b\r\n".repeat(1_000_000)));
    if let Some(response) = client.try_response() {
        assert_eq!(response.code, 431);
    }
    check_serves(&server);
}
