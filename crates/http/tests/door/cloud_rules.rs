//! The gate in front of the SageMaker and Vertex AI doors: restricted APIs and limits.

use galatea_gate::access::{AccessGate, AccessRules, ApiCategory};
use galatea_http::{HttpOptions, InferenceType, PingCheck};

use crate::cloud_harness::{Cloud, load_body};

/// Every route of the cloud doors, with its category, method, path and redirect.
const ROUTES: &[(ApiCategory, &str, &str, &str)] = &[
    (ApiCategory::Health, "GET", "/ping", ""),
    (ApiCategory::Inference, "POST", "/invocations", ""),
    (ApiCategory::ModelRepository, "GET", "/models", ""),
    (ApiCategory::ModelRepository, "GET", "/models/b", ""),
    (ApiCategory::ModelRepository, "POST", "/models", ""),
    (ApiCategory::ModelRepository, "POST", "/models/x", ""),
    (ApiCategory::Inference, "POST", "/models/b/invoke", ""),
    (ApiCategory::ModelRepository, "DELETE", "/models/nothing", ""),
    (ApiCategory::Health, "GET", "/health", ""),
    (ApiCategory::Inference, "POST", "/predict", ""),
    (ApiCategory::Health, "POST", "/predict", "v2/health/live"),
    (ApiCategory::Health, "POST", "/predict", "v2/health/ready"),
    (ApiCategory::Health, "POST", "/predict", "v2/models/m/ready"),
    (ApiCategory::Metadata, "POST", "/predict", "v2"),
    (ApiCategory::Metadata, "POST", "/predict", "v2/models/m"),
    (ApiCategory::Inference, "POST", "/predict", "v2/models/m/infer"),
    (ApiCategory::Inference, "POST", "/predict", "v2/models/m/versions/1/infer"),
    (ApiCategory::ModelConfig, "POST", "/predict", "v2/models/m/config"),
    (ApiCategory::Statistics, "POST", "/predict", "v2/models/m/stats"),
    (ApiCategory::Statistics, "POST", "/predict", "v2/models/stats"),
    (ApiCategory::ModelRepository, "POST", "/predict", "v2/repository/index"),
    (ApiCategory::SharedMemory, "POST", "/predict", "v2/systemsharedmemory/status"),
    (ApiCategory::SharedMemory, "POST", "/predict", "v2/cudasharedmemory/region/r/status"),
];

#[test]
fn cve_2026_24207_rules_hold_at_the_doors_of_clouds() {
    for restricted in ApiCategory::ALL {
        let http = || {
            let mut rules = AccessRules::default();
            rules.add(&format!("{restricted}:key=value"), "").unwrap();
            HttpOptions { gate: AccessGate::new(rules), ..HttpOptions::default() }
        };
        let sagemaker = Cloud::sagemaker_with(http(), InferenceType::Infer, PingCheck::Ready);
        let vertex_ai = Cloud::vertex_ai(http());
        sagemaker.call("POST", "/models", "key: value\r\n", &load_body("b", "h"));
        for (category, method, path, redirect) in ROUTES {
            let is_vertex_ai = ["/health", "/predict"].contains(path);
            let cloud = if is_vertex_ai { &vertex_ai } else { &sagemaker };
            let redirect = match *redirect {
                "" => String::new(),
                to => format!("X-Vertex-Ai-Triton-Redirect: {to}\r\n"),
            };
            for (key, is_right) in
                [("", false), ("key: other\r\n", false), ("key: value\r\n", true)]
            {
                let response = cloud.call(method, path, &format!("{redirect}{key}"), "");
                let is_refused = response.code == 403;
                let expected = *category == restricted && !is_right;
                assert_eq!(is_refused, expected, "{restricted}: {method} {path} {redirect}{key}");
                let text = "This API is restricted, expecting header 'key'";
                assert_eq!(response.text().contains(text), expected);
            }
        }
        let loaded = sagemaker.orders();
        let loads = loaded.iter().filter(|order| order.starts_with("load ")).count();
        assert_eq!(loads, 1, "{loaded:?}");
    }
}

#[test]
fn bodies_have_the_limits_of_http() {
    let http = || HttpOptions { input_bytes_max: 100, chunks_max: 8, ..HttpOptions::default() };
    let cloud = Cloud::sagemaker_with(http(), InferenceType::Infer, PingCheck::Ready);
    assert_eq!(cloud.load("b", "h").code, 200);
    let long = " ".repeat(200);
    let chunks = "1\r\n{\r\n".repeat(9);
    for path in ["/invocations", "/models/b/invoke", "/models"] {
        let response = cloud.call("POST", path, "", &long);
        assert_eq!(response.code, 400, "{path}: {}", response.text());
        let mut client = cloud.connect();
        client.send(format!(
            "POST {path} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
        ));
        let response = client.response();
        assert!(response.text().contains("exceeds maximum of 8 non-empty chunks"), "{path}");
    }
    let cloud = Cloud::vertex_ai(http());
    for headers in ["", "X-Vertex-Ai-Triton-Redirect: v2/models/echo/infer\r\n"] {
        let response = cloud.call("POST", "/predict", headers, &long);
        assert_eq!(response.code, 400, "{}", response.text());
    }
}
