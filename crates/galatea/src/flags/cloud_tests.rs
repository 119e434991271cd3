//! Tests of the flags and variables for cloud endpoints.

use std::path::PathBuf;

use super::*;
use crate::environment::{SpanBatchVariables, VertexAiVariables};

fn parsed_under(variables: &VertexAiVariables, arguments: &[&str]) -> Result<Settings, String> {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned());
    match parse(arguments, variables, &SpanBatchVariables::default()) {
        Ok(ServerCommand::Serve(settings)) => Ok(*settings),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

fn parsed(arguments: &[&str]) -> Result<Settings, String> {
    parsed_under(&VertexAiVariables::default(), arguments)
}

#[test]
// row: CLI-24
fn flags_change_their_own_endpoint() {
    let clouds = parsed(&[]).unwrap().clouds;
    for door in [&clouds.sagemaker, &clouds.vertex_ai] {
        assert_eq!((door.allow, door.address.as_str(), door.port), (false, "0.0.0.0", 8080));
    }
    assert_eq!((clouds.sagemaker_threads, clouds.vertex_ai_threads), (8, 8));
    let arguments = ["--allow-sagemaker=1", "--sagemaker-port=81", "--sagemaker-thread-count=0"];
    let changed = parsed(&arguments).unwrap().clouds;
    assert_eq!((changed.sagemaker.allow, changed.sagemaker.port), (true, 81));
    assert_eq!(changed.sagemaker_threads, 1);
    assert_eq!(changed.vertex_ai, clouds.vertex_ai);
    let arguments = [
        "--allow-vertex-ai=true",
        "--vertex-ai-port=82",
        "--vertex-ai-thread-count=3",
        "--vertex-ai-default-model=m",
    ];
    let changed = parsed(&arguments).unwrap().clouds;
    assert_eq!((changed.vertex_ai.allow, changed.vertex_ai.port), (true, 82));
    assert_eq!(changed.vertex_ai_threads, 3);
    assert_eq!(changed.vertex_ai_default_model, "m");
    assert_eq!(changed.sagemaker, clouds.sagemaker);
}

#[test]
fn malformed_values_are_refused() {
    let bad = |name: &str, reason: &str| format!("Bad option: \"--{name}\".\n{reason}");
    let pair = "Cannot parse pair option due to incorrect number of inputs.--<pair option> \
                argument requires format <first>-<second>. Found: 5";
    for (name, value, reason) in [
        ("allow-sagemaker", "x", "invalid value for bool option: x"),
        ("allow-vertex-ai", "", "invalid value for bool option: "),
        ("sagemaker-safe-port-range", "5", pair),
        ("sagemaker-safe-port-range", "a-b", "Invalid option value. Got a"),
        ("sagemaker-safe-port-range", "-1-2", "Invalid option value. Got "),
        ("sagemaker-thread-count", "x", "Invalid option value. Got x"),
        ("vertex-ai-port", "x", "Invalid option value. Got x"),
    ] {
        assert_eq!(parsed(&[&format!("--{name}={value}")]).unwrap_err(), bad(name, reason));
    }
    let range = parsed(&["--sagemaker-safe-port-range=1-2-3"]).unwrap();
    assert_eq!(range.clouds.sagemaker_safe_ports, Some((1, 2)));
}

#[test]
// row: CLI-15
fn ports_are_shared_with_no_other_endpoint() {
    let same = |one: &str, other: &str, at: &str| {
        format!(
            "The server cannot listen to {one} requests and {other} requests at the same address \
             and port {at}"
        )
    };
    let (sagemaker, vertex_ai) = ("--allow-sagemaker=1", "--allow-vertex-ai=1");
    for (arguments, expected) in [
        (vec![sagemaker, "--http-port=8080"], same("HTTP", "SageMaker", "0.0.0.0:8080")),
        (vec![vertex_ai, "--vertex-ai-port=8001"], same("GRPC", "Vertex AI", "0.0.0.0:8001")),
        (vec![sagemaker, vertex_ai], same("SageMaker", "Vertex AI", "0.0.0.0:8080")),
        (
            vec![sagemaker, "--metrics-port=8080", "--sagemaker-safe-port-range=1-9999"],
            same("metrics", "SageMaker", "0.0.0.0:8080"),
        ),
    ] {
        assert_eq!(parsed(&arguments).unwrap_err(), expected);
    }
    for arguments in [
        vec!["--http-port=8080"],
        vec![sagemaker, "--http-port=8080", "--http-address=127.0.0.1"],
        vec![sagemaker, vertex_ai, "--sagemaker-port=0", "--vertex-ai-port=0"],
    ] {
        assert!(parsed(&arguments).is_ok(), "{arguments:?}");
    }
}

#[test]
fn sagemaker_limits_the_ports_of_others() {
    let refusal = |name: &str, port: &str, range: &str| {
        format!(
            "The server cannot listen to {name} requests at port {port}, allowed port range is \
             [{range}]"
        )
    };
    let with = |more: &[&'static str]| [&["--allow-sagemaker=1"][..], more].concat();
    for (arguments, expected) in [
        (with(&["--sagemaker-safe-port-range=8001-9000"]), refusal("HTTP", "8000", "8001, 9000")),
        (
            with(&["--sagemaker-safe-port-range=8000-8001"]),
            refusal("metrics", "8002", "8000, 8001"),
        ),
        (
            with(&[
                "--sagemaker-safe-port-range=8000-8002",
                "--allow-vertex-ai=1",
                "--vertex-ai-port=9",
            ]),
            refusal("Vertex AI", "9", "8000, 8002"),
        ),
        // The other endpoint comes first, and the two are compared in both directions.
        (with(&["--sagemaker-safe-port-range=9-1"]), refusal("HTTP", "8000", "9, 1")),
    ] {
        assert_eq!(parsed(&arguments).unwrap_err(), expected);
    }
    let inside = with(&["--sagemaker-safe-port-range=8000-8002", "--sagemaker-port=70"]);
    assert!(parsed(&inside).is_ok());
    let elsewhere =
        ["--http-address=127.0.0.1", "--allow-grpc=0", "--sagemaker-safe-port-range=1-2"];
    assert!(parsed(&with(&elsewhere)).is_ok());
    assert!(parsed(&["--sagemaker-safe-port-range=1-2"]).is_ok());
}

#[test]
fn vertex_ai_changes_defaults() {
    let prediction = VertexAiVariables { is_prediction: true, ..VertexAiVariables::default() };
    let doors = |settings: &Settings| {
        [&settings.http, &settings.grpc, &settings.metrics, &settings.clouds.vertex_ai]
            .map(|door| door.allow)
    };
    let settings = parsed_under(&prediction, &[]).unwrap();
    assert_eq!(doors(&settings), [false, false, true, true]);
    let arguments = ["--allow-vertex-ai=false", "--allow-grpc=1"];
    let settings = parsed_under(&prediction, &arguments).unwrap();
    assert_eq!(doors(&settings), [false, true, true, false]);

    let port = |port: &str| VertexAiVariables {
        http_port: Some(port.to_owned()),
        ..VertexAiVariables::default()
    };
    assert_eq!(parsed_under(&port("5234"), &[]).unwrap().clouds.vertex_ai.port, 5234);
    let given = parsed_under(&port("5234"), &["--vertex-ai-port=7"]).unwrap();
    assert_eq!(given.clouds.vertex_ai.port, 7);
    // As in Triton, this applies even if the endpoint is not enabled.
    assert_eq!(parsed_under(&port("x"), &[]).unwrap_err(), "Invalid option value. Got x");
}

#[test]
fn vertex_ai_names_a_repository() {
    let variables =
        VertexAiVariables { repository: Some(PathBuf::from("/r")), ..Default::default() };
    let of = |arguments: &[&str]| parsed_under(&variables, arguments).unwrap().model_repositories;
    assert_eq!(of(&[]), [PathBuf::from("/r")]);
    assert_eq!(of(&["--model-repository=/m"]), [PathBuf::from("/m")]);
}
