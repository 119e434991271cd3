//! The SageMaker and Vertex AI doors: routes, archives and redirects.

use std::sync::atomic::Ordering;
use std::sync::mpsc;

use galatea_http::{HttpOptions, InferenceType, PingCheck};

use crate::cloud_harness::{Cloud, load_body};
use crate::harness::{PATIENCE, infer_body, infer_response};

#[test]
fn sagemaker_serves_one_model() {
    let cloud = Cloud::sagemaker();
    cloud.check("GET", "/ping", "", 200, "");
    cloud.check("POST", "/ping", "", 405, r#"{"error":"Method Not Allowed"}"#);
    cloud.check("POST", "/invocations", &infer_body(7), 200, &infer_response("echo", 7));
    for path in ["/", "/v2", "/v2/models/echo/infer", "/v2/repository/models/echo/load", "/metrics"]
    {
        cloud.check("POST", path, &infer_body(7), 400, "");
        cloud.check("GET", path, "", 400, "");
    }
    cloud.fake.is_unready.store(true, Ordering::SeqCst);
    cloud.check("GET", "/ping", "", 400, "");
    let live = Cloud::sagemaker_with(HttpOptions::default(), InferenceType::Infer, PingCheck::Live);
    live.fake.is_unready.store(true, Ordering::SeqCst);
    live.check("GET", "/ping", "", 200, "");
    assert_eq!(cloud.orders(), Vec::<String>::new());
}

#[test]
fn sagemaker_can_generate() {
    let of = |inference| Cloud::sagemaker_with(HttpOptions::default(), inference, PingCheck::Ready);
    let cloud = of(InferenceType::Generate);
    let single = cloud.call("POST", "/invocations", "", r#"{"INPUT0":3}"#);
    assert_eq!(single.code, 200, "{}", single.text());
    let cloud = of(InferenceType::GenerateStream);
    let mut client = cloud.connect();
    client.request("POST", "/invocations", "", br#"{"INPUT0":3}"#);
    let head = client.response_head();
    assert!(head.contains("text/event-stream"), "{head}");
    let event = client.chunk().unwrap();
    assert_eq!(event, format!("data: {}\n\n", single.text()));
    let unknown = of(InferenceType::named("guess"));
    let text = "Server has invalid inference type 'guess'. Must be one of: infer, generate, \
                generate_stream.";
    unknown.check("POST", "/invocations", "{}", 400, &format!(r#"{{"error":"{text}"}}"#));
}

#[test]
fn the_length_of_the_json_is_in_the_content_type() {
    let header = r#"{"inputs":[{"name":"x","datatype":"UINT8","shape":[1],"parameters":{"binary_data_size":1}}],"outputs":[{"name":"x","parameters":{"binary_data":true}}]}"#;
    let body = format!("{header}\u{7}");
    let typed = |cloud: &str, length: usize| {
        format!("Content-Type: application/vnd.{cloud}.binary+json;json-header-size={length}\r\n")
    };
    let cloud = Cloud::sagemaker();
    let mut client = cloud.connect();
    // The second request isn't plain, so hyper writes the response.
    for path in ["/invocations", "/invocations?a=b"] {
        client.request("POST", path, &typed("sagemaker-triton", header.len()), body.as_bytes());
        let response = client.response();
        assert_eq!(response.code, 200, "{}", response.text());
        let length = response.body.len() - 1;
        let kind =
            format!("application/vnd.sagemaker-triton.binary+json;json-header-size={length}");
        assert_eq!(response.header("Content-Type"), Some(kind.as_str()));
        assert_eq!(response.header("Inference-Header-Content-Length"), None);
        assert_eq!(response.body.last(), Some(&7));
    }
    let cloud = Cloud::vertex_ai(HttpOptions::default());
    let response = cloud.call("POST", "/predict", &typed("vertex-ai-triton", header.len()), &body);
    let length = (response.body.len() - 1).to_string();
    assert_eq!(response.header("Content-Type"), Some("application/octet-stream"));
    assert_eq!(response.header("Inference-Header-Content-Length"), Some(length.as_str()));
    for (length, text) in [(body.len() + 1, "should be in range"), (99_999_999_999, "out of range")]
    {
        let response = cloud.call("POST", "/predict", &typed("vertex-ai-triton", length), &body);
        assert_eq!(response.code, 400);
        assert!(response.text().contains(text), "{}", response.text());
    }
}

#[test]
fn archives_come_and_go() {
    let cloud = Cloud::sagemaker();
    cloud.check("GET", "/models", "", 200, r#"{"models":[]}"#);
    assert_eq!(cloud.load("b", "h").code, 200);
    let url = "/opt/ml/models/h/model";
    assert_eq!(cloud.orders(), [format!("register {url} inner=b"), "load b".into()]);
    let described = format!(r#"{{"modelName":"b","modelUrl":"{url}"}}"#);
    cloud.check("GET", "/models/b", "", 200, &described);
    // The fake server has no ready model with that name.
    cloud.check("GET", "/models", "", 200, r#"{"models":[{}]}"#);
    cloud.check("POST", "/models/b/invoke", &infer_body(1), 200, &infer_response("b", 1));
    cloud.check("POST", "/models/echo/invoke", &infer_body(1), 404, "");
    cloud.check("DELETE", "/models/b", "", 200, "");
    cloud.check("DELETE", "/models/b", "", 404, "");
    assert_eq!(cloud.orders(), ["unload b true".into(), format!("unregister {url}")]);
    assert_eq!(cloud.load("echo", "flat").code, 200);
    assert_eq!(cloud.orders()[0], "register /opt/ml/models/flat model=echo");
    let listed = r#"{"models":[{"modelName":"echo","modelUrl":"/opt/ml/models/flat"}]}"#;
    cloud.check("GET", "/models", "", 200, listed);
    let notices = cloud.notices.lock().unwrap().join(", ");
    let expected = "Loading SageMaker TargetModel: b, Unloading SageMaker TargetModel: b, Loading \
                    SageMaker TargetModel: echo";
    assert_eq!(notices, expected);
}

#[test]
fn a_header_names_the_model_of_an_archive() {
    let cloud = Cloud::sagemaker();
    let target = "X-Amzn-SageMaker-Target-Model: b\r\n";
    let response = cloud.call("POST", "/models", target, &load_body("a", "h"));
    assert_eq!(response.code, 200);
    // This is another repository under the same name, for another model.
    assert_eq!(cloud.load("a", "i").code, 200);
    let response = cloud.call("POST", "/models/a/invoke", target, &infer_body(1));
    assert_eq!(response.text(), infer_response("b", 1));
    cloud.check(
        "GET",
        "/models/a",
        "",
        200,
        r#"{"modelName":"a","modelUrl":"/opt/ml/models/h/model"}"#,
    );
    cloud.orders();
    // The header may be missing where Triton requires it.
    cloud.check("DELETE", "/models/a", "", 200, "");
    let expected =
        ["unload b true", "unregister /opt/ml/models/h/model", "unregister /opt/ml/models/i/model"];
    assert_eq!(cloud.orders(), expected);
}

#[test]
fn loads_that_fail_leave_nothing() {
    let cloud = Cloud::sagemaker();
    let taken =
        r#"{"error":"model repository '/opt/ml/models/taken/model' has already been registered"}"#;
    let response = cloud.load("a", "taken");
    assert_eq!((response.code, response.text()), (409, taken));
    assert_eq!(response.header("Content-Type"), Some("text/plain"));
    let response = cloud.load("broken", "h");
    assert_eq!((response.code, response.text()), (400, r#"{"error":"failed to load 'broken'"}"#));
    let response = cloud.load("large", "h");
    assert_eq!(response.code, 507, "{}", response.text());
    assert_eq!(cloud.load("m", "empty").code, 200);
    let url = "/opt/ml/models/h/model";
    let expected =
        ["register", "load broken", "unregister", "register", "load large", "unregister"];
    let orders = cloud.orders();
    for (order, expected) in orders.iter().zip(expected) {
        assert!(order.starts_with(expected), "{orders:?}");
    }
    assert_eq!(orders[2], format!("unregister {url}"));
    assert_eq!(orders[6], "register /opt/ml/models/empty/model");
    cloud.check("GET", "/models/broken", "", 404, "");
    for (body, text) in [
        ("{", "failed to parse the request JSON buffer"),
        (r#"{"url":7}"#, "attempt to access JSON non-string as string"),
        ("{}", "expected a path of the form"),
        (r#"{"url":"/opt/ml/models/h/model/../../../../../etc"}"#, "expected a path of the form"),
        (r#"{"url":"/opt/ml/models/h/model/../../x/model/a/b"}"#, "expected a path of the form"),
        (r#"{"url":"/proc/self/root/opt/ml/models/h/model"}"#, ""),
    ] {
        let response = cloud.call("POST", "/models", "", body);
        assert_eq!(response.code, 400);
        assert!(response.text().contains(text), "{body}: {}", response.text());
    }
    let long = cloud.load(&"n".repeat(5000), "h");
    assert_eq!(
        (long.code, long.text()),
        (400, r#"{"error":"\"model_name\" has more than 4096 bytes"}"#)
    );
    assert_eq!(cloud.orders(), Vec::<String>::new());
}

#[test]
fn failures_of_an_archive_are_the_clients() {
    let cloud = Cloud::sagemaker();
    assert_eq!(cloud.load("held", "h").code, 200);
    let invoke = |body: &str| {
        let mut client = cloud.connect();
        client.request("POST", "/models/held/invoke", "", body.as_bytes());
        client
    };
    for (text, code) in
        [("no idea", 400), ("CUDA out of memory. Tried to allocate", 507), ("MemoryError: ", 507)]
    {
        let mut client = invoke(&infer_body(1));
        let (_, sender) = cloud.held.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        sender.send_final(Err(galatea_infer::Status::internal(text)));
        let response = client.response();
        assert_eq!(
            (response.code, response.text()),
            (code, format!(r#"{{"error":"{text}"}}"#).as_str())
        );
        assert_eq!(response.header("Content-Type"), Some("application/json"));
    }
    let response = invoke("{}").response();
    assert_eq!(response.code, 400, "{}", response.text());
    let unknown = "X-Amzn-SageMaker-Target-Model: unknown\r\n";
    let response = cloud.call("POST", "/models/held/invoke", unknown, &infer_body(1));
    assert_eq!(response.code, 400, "{}", response.text());
}

#[test]
fn requests_about_one_archive_wait_for_each_other() {
    let cloud = Cloud::sagemaker();
    let (started, starting) = mpsc::channel();
    let (go_on, waiting) = mpsc::channel::<()>();
    *cloud.fake.before_load.lock().unwrap() = Some(Box::new(move || {
        started.send(()).unwrap();
        waiting.recv().unwrap();
    }));
    let mut loading = cloud.connect();
    loading.request("POST", "/models", "", load_body("b", "h").as_bytes());
    starting.recv_timeout(PATIENCE).unwrap();
    let mut unloading = cloud.connect();
    unloading.request("DELETE", "/models/b", "", b"");
    // Requests for other names are not delayed.
    assert_eq!(cloud.load("other", "i").code, 200);
    cloud.check("GET", "/models/b", "", 404, "");
    // The client of the load disconnects, but the load continues.
    drop(loading);
    go_on.send(()).unwrap();
    assert_eq!(unloading.response().code, 200);
    let orders = cloud.orders();
    let position = |text: &str| orders.iter().position(|order| order == text).unwrap();
    assert!(position("load b") < position("unload b true"), "{orders:?}");
    cloud.check("GET", "/models/b", "", 404, "");
}

#[test]
fn cve_2025_33238_loads_and_unloads_of_one_name_may_race() {
    let cloud = Cloud::sagemaker();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let cloud = &cloud;
            scope.spawn(move || {
                for _ in 0..25 {
                    let response = match thread % 2 {
                        0 => cloud.load("b", "h"),
                        _ => cloud.call("DELETE", "/models/b", "", ""),
                    };
                    assert!([200, 404].contains(&response.code), "{}", response.text());
                }
            });
        }
    });
    cloud.call("DELETE", "/models/b", "", "");
    let orders = cloud.orders();
    let count = |start: &str| orders.iter().filter(|order| order.starts_with(start)).count();
    assert_eq!(count("register"), count("unregister"), "no repository is left");
    cloud.check("GET", "/models", "", 200, r#"{"models":[]}"#);
}

#[test]
fn vertex_ai_serves_one_model_and_redirects() {
    let cloud = Cloud::vertex_ai(HttpOptions::default());
    cloud.check("GET", "/health", "", 200, "");
    cloud.check("POST", "/health", "", 405, r#"{"error":"Method Not Allowed"}"#);
    cloud.check("POST", "/predict", &infer_body(7), 200, &infer_response("echo", 7));
    cloud.check("GET", "/predict", "", 405, r#"{"error":"Method Not Allowed"}"#);
    for path in ["/", "/v2", "/predict/", "/v2/repository/models/echo/unload"] {
        cloud.check("POST", path, "", 400, "");
    }
    cloud.check_redirect("v2", "", 200, r#"{"name":"fake","version":"1","extensions":["a","b"]}"#);
    cloud.check_redirect("v2/health/live", "", 200, "");
    cloud.check_redirect("v2/models/other/infer", &infer_body(3), 200, &infer_response("other", 3));
    cloud.check_redirect("metrics", "", 200, "a 1\n");
    for path in ["", "/v2", "v2/logging", "v2/trace/setting", "v2/models/echo/generate", "\u{e9}"] {
        cloud.check_redirect(path, "{}", 400, "");
    }
    for path in [
        "v2/repository/models/echo/load",
        "v2/repository/models/echo/unload",
        "v2/systemsharedmemory/region/r/register",
        "v2/cudasharedmemory/unregister",
    ] {
        cloud.check_redirect(path, "{}", 403, "");
    }
    let headers = "X-Vertex-Ai-Triton-Redirect: v2\r\n";
    assert_eq!(cloud.call("GET", "/predict", headers, "").code, 405);
    assert_eq!(cloud.orders(), Vec::<String>::new());
}
