//! Methods other than inference, and unknown paths.

mod common;

use std::collections::BTreeMap;

use bytes::Bytes;
use common::{Fixture, framed, infer_request, inference, request};
use galatea_infer::Code;
use galatea_protocol::inference as message;
use http::{Method, StatusCode};
use message::ModelRepositoryParameter;
use message::model_repository_parameter::ParameterChoice;

fn named<M: Default>(name: &str, set: impl FnOnce(&mut M, String)) -> M {
    let mut request = M::default();
    set(&mut request, name.into());
    request
}

#[tokio::test]
async fn server_health_and_metadata() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let result = client.control("ServerLive", &message::ServerLiveRequest {}).await;
    assert!(result.message::<message::ServerLiveResponse>().live);
    let result = client.control("ServerReady", &message::ServerReadyRequest {}).await;
    assert!(result.message::<message::ServerReadyResponse>().ready);
    let result = client.control("ServerMetadata", &message::ServerMetadataRequest {}).await;
    let metadata: message::ServerMetadataResponse = result.message();
    assert_eq!((metadata.name.as_str(), metadata.version.as_str()), ("fake", "1"));
    assert_eq!(metadata.extensions, ["a", "b"]);
}

#[tokio::test]
async fn model_health_metadata_and_configuration() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let ready = async |name: &str, version: &str| {
        let request = message::ModelReadyRequest { name: name.into(), version: version.into() };
        client.control("ModelReady", &request).await
    };
    assert!(ready("m", "").await.message::<message::ModelReadyResponse>().ready);
    assert!(!ready("m", "9").await.message::<message::ModelReadyResponse>().ready);
    assert!(!ready("unknown", "").await.message::<message::ModelReadyResponse>().ready);
    assert_eq!(ready("m", "x").await.status().0, 3);
    ready("buggy", "").await.assert_failed(Code::Internal, "the server failed on this request");

    let request = message::ModelMetadataRequest { name: "m".into(), version: "3".into() };
    let result = client.control("ModelMetadata", &request).await;
    let metadata: message::ModelMetadataResponse = result.message();
    assert_eq!(metadata.versions, ["3", "7"]);
    assert_eq!((metadata.name.as_str(), metadata.platform.as_str()), ("m", "identity"));
    let tensors: Vec<String> = metadata
        .inputs
        .iter()
        .chain(&metadata.outputs)
        .map(|tensor| format!("{} {} {:?}", tensor.name, tensor.datatype, tensor.shape))
        .collect();
    assert_eq!(tensors, ["INPUT0 UINT8 [-1]", "OUTPUT0 UINT8 [-1]"]);

    let request: message::ModelConfigRequest =
        named("m", |request: &mut message::ModelConfigRequest, name| request.name = name);
    let result = client.control("ModelConfig", &request).await;
    let config = result.message::<message::ModelConfigResponse>().config.unwrap();
    assert_eq!((config.name.as_str(), config.backend.as_str()), ("m", "identity"));
}

#[tokio::test]
async fn statistics_of_one_or_all_models() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    for (name, version, text) in [("", "", "echo 1"), ("m", "", "m 1"), ("m", "4", "m 4")] {
        let request =
            message::ModelStatisticsRequest { name: name.into(), version: version.into() };
        let result = client.control("ModelStatistics", &request).await;
        let statistics = result.message::<message::ModelStatisticsResponse>().model_stats;
        let [model] = statistics.as_slice() else { panic!("{statistics:?}") };
        assert_eq!(format!("{} {}", model.name, model.version), text);
        let counts = (model.last_inference, model.inference_count, model.execution_count);
        assert_eq!(counts, (10, 11, 12));
        let inference = model.inference_stats.as_ref().unwrap();
        let queue = message::StatisticDuration { count: 3, ns: 4 };
        assert_eq!(inference.queue, Some(queue));
        assert_eq!(inference.success, Some(message::StatisticDuration::default()));
        let [batch] = model.batch_stats.as_slice() else { panic!("{model:?}") };
        assert_eq!((batch.batch_size, batch.compute_infer.unwrap().ns), (5, 6));
    }
}

#[tokio::test]
async fn the_index_lists_models() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let index = async |ready, repository: &str| {
        let repository_name = repository.into();
        let request = message::RepositoryIndexRequest { repository_name, ready };
        client.control("RepositoryIndex", &request).await
    };
    let text_of = |result: common::CallResult| -> Vec<String> {
        let models = result.message::<message::RepositoryIndexResponse>().models;
        models.iter().map(|m| [&*m.name, &*m.version, &*m.state, &*m.reason].join("|")).collect()
    };
    assert_eq!(text_of(index(true, "").await), ["echo|1|READY|"]);
    let all = ["echo|1|READY|", "b|2|UNAVAILABLE|unloaded", "c|||"];
    assert_eq!(text_of(index(false, "").await), all);
    let refused = "'repository_name' specification is not supported";
    index(false, "r").await.assert_failed(Code::Unsupported, refused);
}

fn parameters(
    name: &str,
    choice: Option<ParameterChoice>,
) -> BTreeMap<String, ModelRepositoryParameter> {
    BTreeMap::from([(name.into(), ModelRepositoryParameter { parameter_choice: choice })])
}

#[tokio::test]
// row: PREP-07
async fn models_are_loaded() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let load = async |model: &str, parameters| {
        let request = message::RepositoryModelLoadRequest {
            model_name: model.into(),
            parameters,
            ..Default::default()
        };
        client.control("RepositoryModelLoad", &request).await
    };
    let _: message::RepositoryModelLoadResponse = load("m", BTreeMap::new()).await.message();
    assert_eq!(*fixture.fake.orders.lock().unwrap(), ["load m"]);
    let unknown = "Request for unknown model: 'unknown' is not found";
    load("unknown", BTreeMap::new()).await.assert_failed(Code::NotFound, unknown);
    let bug = "the server failed on this request";
    load("buggy", BTreeMap::new()).await.assert_failed(Code::Internal, bug);
    let refused = async |name: &str, choice, code, message: &str| {
        load("m", parameters(name, choice)).await.assert_failed(code, message);
    };
    let text = || Some(ParameterChoice::StringParam("{}".into()));
    let bytes = || Some(ParameterChoice::BytesParam(Bytes::new()));
    let wrong = "invalid value type for load parameter 'config', expected string_param.";
    refused("config", bytes(), Code::InvalidArgument, wrong).await;
    let wrong = "invalid value type for load parameter 'file:x', expected bytes_param.";
    refused("file:x", text(), Code::InvalidArgument, wrong).await;
    let wrong = "unrecognized load parameter 'other'.";
    refused("other", text(), Code::InvalidArgument, wrong).await;
    assert_eq!(fixture.fake.orders.lock().unwrap().len(), 1);
    let mut with = parameters("config", text());
    let content = Some(ParameterChoice::BytesParam(Bytes::from_static(&[0, 255])));
    with.extend(parameters("file:1/x", content));
    let _: message::RepositoryModelLoadResponse = load("m", with).await.message();
    assert_eq!(fixture.fake.orders.lock().unwrap()[1], "load m config {} 1/x [0, 255]");
}

#[tokio::test]
async fn models_are_unloaded() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let unload = async |parameters| {
        let request = message::RepositoryModelUnloadRequest {
            model_name: "m".into(),
            parameters,
            ..Default::default()
        };
        client.control("RepositoryModelUnload", &request).await
    };
    for choice in [None, Some(true), Some(false)] {
        let parameters = choice.map_or_else(BTreeMap::new, |choice| {
            parameters("unload_dependents", Some(ParameterChoice::BoolParam(choice)))
        });
        let _: message::RepositoryModelUnloadResponse = unload(parameters).await.message();
    }
    let expected = ["unload m false", "unload m true", "unload m false"];
    assert_eq!(*fixture.fake.orders.lock().unwrap(), expected);
    let number = Some(ParameterChoice::Int64Param(1));
    let wrong = "invalid value type for 'unload_dependents' parameter, expected bool_param.";
    unload(parameters("unload_dependents", number))
        .await
        .assert_failed(Code::InvalidArgument, wrong);
}

/// The responses match those of a server that has the extension but no regions.
#[tokio::test]
async fn no_shared_memory_is_registered() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let system = async |name: &str| {
        let request = message::SystemSharedMemoryStatusRequest { name: name.into() };
        client.control("SystemSharedMemoryStatus", &request).await
    };
    let result: message::SystemSharedMemoryStatusResponse = system("").await.message();
    assert!(result.regions.is_empty());
    let missing = "Unable to find system shared memory region: 'r'";
    system("r").await.assert_failed(Code::NotFound, missing);
    let cuda = async |name: &str| {
        let request = message::CudaSharedMemoryStatusRequest { name: name.into() };
        client.control("CudaSharedMemoryStatus", &request).await
    };
    let result: message::CudaSharedMemoryStatusResponse = cuda("").await.message();
    assert!(result.regions.is_empty());
    let missing = "Unable to find cuda shared memory region: 'r'";
    cuda("r").await.assert_failed(Code::NotFound, missing);
    let disabled = "Client shared memory is disabled. Start the server with \
                    '--allow-client-shm=true' to enable.";
    let register = message::SystemSharedMemoryRegisterRequest::default();
    let refused = client.control("SystemSharedMemoryRegister", &register).await;
    refused.assert_failed(Code::Unsupported, disabled);
    for kind in ["System", "Cuda"] {
        let request = message::SystemSharedMemoryUnregisterRequest::default();
        let refused = client.control(&format!("{kind}SharedMemoryUnregister"), &request).await;
        refused.assert_failed(Code::Unsupported, disabled);
    }
    let name = String::from("r");
    let register = message::CudaSharedMemoryRegisterRequest { name, ..Default::default() };
    let refused = client.control("CudaSharedMemoryRegister", &register).await;
    refused.assert_failed(Code::Unsupported, disabled);
}

#[tokio::test]
async fn methods_that_are_not_offered_are_named() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let refused = async |path: &str, expected: &str| {
        client.call(request(path), Bytes::new()).await.assert_failed(Code::Unsupported, expected);
    };
    let watch = "watching the health status is not supported";
    refused("/grpc.health.v1.Health/Watch", watch).await;
    refused("/a/b", "unknown method /a/b").await;
    refused("/", "unknown method /").await;
}

#[tokio::test]
async fn calls_other_than_grpc_are_refused_as_http() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let body = framed(&infer_request("inline", Bytes::new()));
    let path = format!("http://localhost{}", inference("ModelInfer"));
    let plain = || http::Request::builder().method(Method::POST).uri(path.as_str());
    let result = client.call(plain(), body.clone()).await;
    assert_eq!(result.http, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let result =
        client.call(plain().header("content-type", "application/json"), body.clone()).await;
    assert_eq!(result.http, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let get = plain().method(Method::GET).header("content-type", "application/grpc");
    assert_eq!(client.call(get, body.clone()).await.http, StatusCode::METHOD_NOT_ALLOWED);
}
