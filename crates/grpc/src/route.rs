//! Routes a call by its headers to a method, or to the reason for refusing it.

use std::time::Duration;

use galatea_codec::compression::ContentCoding;
use galatea_codec_grpc::GrpcCode;
use galatea_explain::DetailLevel;
use galatea_gate::access::{AccessGate, AccessGrant, AccessRefusal, ApiCategory};
use http::header::{HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method as HttpMethod, StatusCode};

use crate::call_headers::CallHeaders;
use crate::compression::request_coding;
use crate::deadline::{Timeout, parse_timeout};
use crate::failure::{Failure, Refusal};
use crate::stream::StreamErrors;

/// The methods that this server offers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    CudaSharedMemoryRegister,
    CudaSharedMemoryStatus,
    CudaSharedMemoryUnregister,
    HealthCheck,
    LogSettings,
    ModelConfig,
    ModelInfer,
    ModelMetadata,
    ModelReady,
    ModelStatistics,
    ModelStreamInfer,
    RepositoryIndex,
    RepositoryModelLoad,
    RepositoryModelUnload,
    ServerLive,
    ServerMetadata,
    ServerReady,
    SystemSharedMemoryRegister,
    SystemSharedMemoryStatus,
    SystemSharedMemoryUnregister,
    TraceSetting,
}

impl Method {
    /// Returns true if all responses of this method are only a few bytes long. Such calls are read
    /// even if the client falls behind on its responses, so it can still check the server's health.
    pub(crate) const fn has_short_response(self) -> bool {
        matches!(self, Self::HealthCheck | Self::ModelReady | Self::ServerLive | Self::ServerReady)
    }

    /// Returns the API category of the method.
    const fn category(self) -> ApiCategory {
        match self {
            Self::HealthCheck | Self::ModelReady | Self::ServerLive | Self::ServerReady => {
                ApiCategory::Health
            }
            Self::ModelMetadata | Self::ServerMetadata => ApiCategory::Metadata,
            Self::ModelInfer | Self::ModelStreamInfer => ApiCategory::Inference,
            Self::CudaSharedMemoryRegister
            | Self::CudaSharedMemoryStatus
            | Self::CudaSharedMemoryUnregister
            | Self::SystemSharedMemoryRegister
            | Self::SystemSharedMemoryStatus
            | Self::SystemSharedMemoryUnregister => ApiCategory::SharedMemory,
            Self::ModelConfig => ApiCategory::ModelConfig,
            Self::RepositoryIndex | Self::RepositoryModelLoad | Self::RepositoryModelUnload => {
                ApiCategory::ModelRepository
            }
            Self::ModelStatistics => ApiCategory::Statistics,
            Self::LogSettings => ApiCategory::Logging,
            Self::TraceSetting => ApiCategory::Trace,
        }
    }
}

/// A method that the protocol defines.
enum KnownMethod {
    Offered(Method),
    /// The server doesn't offer the method, for this reason. Callers without access to its category
    /// must not learn the reason.
    NotOffered(ApiCategory, &'static str),
}

impl KnownMethod {
    const fn category(&self) -> ApiCategory {
        match self {
            Self::Offered(method) => method.category(),
            Self::NotOffered(category, _) => *category,
        }
    }
}

/// A call that may be read.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) admission: AccessGrant,
    pub(crate) timeout: Option<Timeout>,
    pub(crate) request_coding: Option<ContentCoding>,
    /// The form in which failures are reported, for streams only.
    pub(crate) errors: StreamErrors,
}

/// Routes a call by its headers.
pub(crate) fn route(
    head: &Parts,
    known: &CallHeaders<'_>,
    gate: &AccessGate,
) -> Result<Route, Refusal> {
    if head.method != HttpMethod::POST {
        return Err(Refusal::Http(StatusCode::METHOD_NOT_ALLOWED));
    }
    if !known.content_type.is_some_and(is_grpc) {
        return Err(Refusal::Http(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let method = method(head.uri.path()).map_err(Refusal::Grpc)?;
    let admission = admit(gate, &method, &head.headers)?;
    if let KnownMethod::Offered(Method::ModelInfer) = method {
        gate.count_request(admission).map_err(|refusal| Refusal::Grpc(refusal.into()))?;
    }
    let method = match method {
        KnownMethod::Offered(method) => method,
        KnownMethod::NotOffered(_, reason) => return Err(Refusal::Grpc(unimplemented(reason))),
    };
    let request_coding = request_coding(known.grpc_encoding)?;
    let timeout = timeout(known.grpc_timeout).map_err(Refusal::Grpc)?;
    Ok(Route { method, admission, timeout, request_coding, errors: errors(known.stream_errors) })
}

/// Asks the gate. As in Triton, the key is compared verbatim with the header names, so a key with a
/// capital letter admits no caller: HTTP/2 has no such names.
fn admit(
    gate: &AccessGate,
    method: &KnownMethod,
    headers: &HeaderMap,
) -> Result<AccessGrant, Refusal> {
    let header = |name: &str| {
        let mut all = headers.iter();
        all.find(|(known, _)| known.as_str() == name).map(|(_, value)| value.as_bytes())
    };
    gate.admit(method.category(), header).map_err(|refusal| {
        let failure = match refusal {
            AccessRefusal::Header { required } => {
                let text = format!("This protocol is restricted, expecting header '{required}'");
                Failure::new(GrpcCode::Unavailable, text)
            }
            AccessRefusal::Tenant(refusal) => refusal.into(),
        };
        match method {
            KnownMethod::Offered(Method::ModelStreamInfer) => Refusal::Stream(failure),
            KnownMethod::Offered(_) | KnownMethod::NotOffered(..) => Refusal::Grpc(failure),
        }
    })
}

/// Returns the detail for a call that requests explanations. Callers that may not read statistics
/// learn nothing about other requests.
pub(crate) fn explained_detail(gate: &AccessGate, headers: &HeaderMap) -> DetailLevel {
    let statistics = KnownMethod::Offered(Method::ModelStatistics);
    if admit(gate, &statistics, headers).is_ok() { DetailLevel::Schedule } else { DetailLevel::Own }
}

/// Returns the time limit of the call. A call without any time left is refused.
fn timeout(header: Option<&HeaderValue>) -> Result<Option<Timeout>, Failure> {
    let Some(text) = header else { return Ok(None) };
    match parse_timeout(text.as_bytes()) {
        None => Err(Failure::new(GrpcCode::InvalidArgument, "malformed grpc-timeout header")),
        Some(Timeout::Within(Duration::ZERO)) => {
            Err(Failure::new(GrpcCode::DeadlineExceeded, "Deadline Exceeded"))
        }
        Some(timeout) => Ok(Some(timeout)),
    }
}

/// Returns the client's choice of how stream failures are reported. Failures become the stream's
/// status if the header has exactly the expected value.
fn errors(header: Option<&HeaderValue>) -> StreamErrors {
    match header {
        Some(value) if value.as_bytes() == b"true" => StreamErrors::AsStatus,
        Some(_) | None => StreamErrors::AsMessages,
    }
}

/// Returns true for `application/grpc`, with or without a message format or parameters.
fn is_grpc(content_type: &HeaderValue) -> bool {
    match content_type.as_bytes().strip_prefix(b"application/grpc") {
        Some([]) => true,
        Some(rest) => rest.starts_with(b"+proto") || rest.starts_with(b";"),
        None => false,
    }
}

fn method(path: &str) -> Result<KnownMethod, Failure> {
    let found = match path.strip_prefix("/inference.GRPCInferenceService/") {
        Some(name) => inference_method(name),
        None => health_method(path),
    };
    found.ok_or_else(|| Failure::new(GrpcCode::Unimplemented, format!("unknown method {path}")))
}

fn inference_method(name: &str) -> Option<KnownMethod> {
    let method = match name {
        "CudaSharedMemoryRegister" => Method::CudaSharedMemoryRegister,
        "CudaSharedMemoryStatus" => Method::CudaSharedMemoryStatus,
        "CudaSharedMemoryUnregister" => Method::CudaSharedMemoryUnregister,
        "LogSettings" => Method::LogSettings,
        "ModelConfig" => Method::ModelConfig,
        "ModelInfer" => Method::ModelInfer,
        "ModelMetadata" => Method::ModelMetadata,
        "ModelReady" => Method::ModelReady,
        "ModelStatistics" => Method::ModelStatistics,
        "ModelStreamInfer" => Method::ModelStreamInfer,
        "RepositoryIndex" => Method::RepositoryIndex,
        "RepositoryModelLoad" => Method::RepositoryModelLoad,
        "RepositoryModelUnload" => Method::RepositoryModelUnload,
        "ServerLive" => Method::ServerLive,
        "ServerMetadata" => Method::ServerMetadata,
        "ServerReady" => Method::ServerReady,
        "SystemSharedMemoryRegister" => Method::SystemSharedMemoryRegister,
        "SystemSharedMemoryStatus" => Method::SystemSharedMemoryStatus,
        "SystemSharedMemoryUnregister" => Method::SystemSharedMemoryUnregister,
        "TraceSetting" => Method::TraceSetting,
        _ => return None,
    };
    Some(KnownMethod::Offered(method))
}

fn health_method(path: &str) -> Option<KnownMethod> {
    match path.strip_prefix("/grpc.health.v1.Health/")? {
        "Check" => Some(KnownMethod::Offered(Method::HealthCheck)),
        "Watch" => {
            let reason = "watching the health status is not supported";
            Some(KnownMethod::NotOffered(ApiCategory::Health, reason))
        }
        _ => None,
    }
}

fn unimplemented(message: &'static str) -> Failure {
    Failure::new(GrpcCode::Unimplemented, message)
}

#[cfg(test)]
mod tests {
    use http::Request;
    use prost_reflect::DescriptorPool;

    use super::*;

    fn routed(head: &Parts, gate: &AccessGate) -> Result<Route, Refusal> {
        route(head, &CallHeaders::of(&head.headers), gate)
    }

    /// Checks the route of a call with this path, this content type and one more header.
    fn check(path: &str, content_type: &str, header: (&str, &str), expected: &str) {
        let request = Request::post(path).header("content-type", content_type);
        let request = request.header(header.0, header.1).body(()).unwrap();
        let found = match routed(&request.into_parts().0, &AccessGate::default()) {
            Ok(route) => format!("{route:?}"),
            Err(refusal) => format!("{refusal:?}"),
        };
        assert!(found.contains(expected), "{path}: {found}");
    }

    const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
    const NONE: (&str, &str) = ("x", "y");

    #[test]
    fn content_types_and_http_methods_are_checked() {
        let ok = "ModelInfer";
        check(INFER, "application/grpc", NONE, ok);
        check(INFER, "application/grpc+proto", NONE, ok);
        check(INFER, "application/grpc;charset=utf-8", NONE, ok);
        for refused in ["application/grpc-web", "application/json", "application/grpcs", ""] {
            check(INFER, refused, NONE, "Http(415)");
        }
        let get = Request::get(INFER).header("content-type", "application/grpc").body(()).unwrap();
        let expected = Err(Refusal::Http(StatusCode::METHOD_NOT_ALLOWED));
        assert_eq!(routed(&get.into_parts().0, &AccessGate::default()), expected);
    }

    #[test]
    fn every_method_of_the_protocol_is_known() {
        let descriptors = DescriptorPool::decode(galatea_protocol::DESCRIPTOR_SET).unwrap();
        let mut offered = 0;
        for service in descriptors.services() {
            for rpc in service.methods() {
                match method(&format!("/{}/{}", service.full_name(), rpc.name())) {
                    Err(failure) => panic!("{}: {failure:?}", rpc.name()),
                    Ok(KnownMethod::Offered(_)) => offered += 1,
                    Ok(KnownMethod::NotOffered(_, message)) => {
                        let endings = ["not supported", "not available in this server"];
                        let is_named = endings.iter().any(|end| message.ends_with(end));
                        assert!(is_named, "{}: {message}", rpc.name());
                    }
                }
            }
        }
        assert_eq!(offered, 21);
        check("/x/y", "application/grpc", NONE, "unknown method /x/y");
        check(&format!("{INFER}/"), "application/grpc", NONE, "unknown method");
    }

    /// Returns Triton's category for a protocol method.
    fn category_of_triton(name: &str) -> ApiCategory {
        match name {
            "Check" | "Watch" | "ServerLive" | "ServerReady" | "ModelReady" => ApiCategory::Health,
            "ServerMetadata" | "ModelMetadata" => ApiCategory::Metadata,
            "ModelInfer" | "ModelStreamInfer" => ApiCategory::Inference,
            "ModelConfig" => ApiCategory::ModelConfig,
            "ModelStatistics" => ApiCategory::Statistics,
            "TraceSetting" => ApiCategory::Trace,
            "LogSettings" => ApiCategory::Logging,
            name if name.contains("SharedMemory") => ApiCategory::SharedMemory,
            name if name.starts_with("Repository") => ApiCategory::ModelRepository,
            name => panic!("the category of {name} is to be looked up in Triton"),
        }
    }

    /// Returns true if the gate refuses a call to this method with this metadata.
    fn is_refused(gate: &AccessGate, path: &str, metadata: &[(&str, &str)]) -> bool {
        let request = Request::post(path).header("content-type", "application/grpc");
        let add = |request: http::request::Builder, (name, value): &(&str, &str)| {
            request.header(*name, *value)
        };
        let request = metadata.iter().fold(request, add).body(()).unwrap();
        let Err(refusal) = routed(&request.into_parts().0, gate) else { return false };
        let (Refusal::Grpc(failure) | Refusal::Stream(failure)) = refusal else { return false };
        let (code, message) = failure.into_parts();
        code == GrpcCode::Unavailable
            && message == "This protocol is restricted, expecting header 'p-key'"
    }

    #[test]
    fn every_method_is_behind_the_gate_of_its_category() {
        let descriptors = DescriptorPool::decode(galatea_protocol::DESCRIPTOR_SET).unwrap();
        for restricted in ApiCategory::ALL {
            let mut rules = galatea_gate::access::AccessRules::default();
            rules.add(&format!("{restricted}:key=value"), "p-").unwrap();
            let gate = AccessGate::new(rules);
            for rpc in
                descriptors.services().flat_map(|service| service.methods().collect::<Vec<_>>())
            {
                let path = format!("/{}/{}", rpc.parent_service().full_name(), rpc.name());
                let is_restricted = category_of_triton(rpc.name()) == restricted;
                for metadata in [&[][..], &[("p-key", "x")], &[("key", "value")]] {
                    assert_eq!(is_refused(&gate, &path, metadata), is_restricted, "{path}");
                }
                // If a header has several values, the first counts.
                let wrong_first = [("p-key", "x"), ("p-key", "value")];
                assert_eq!(is_refused(&gate, &path, &wrong_first), is_restricted, "{path}");
                assert!(!is_refused(&gate, &path, &[("p-key", "value")]), "{path}");
            }
        }
    }

    #[test]
    fn streams_choose_the_form_of_failures() {
        let stream = "/inference.GRPCInferenceService/ModelStreamInfer";
        check(stream, "application/grpc", NONE, "AsMessages");
        check(stream, "application/grpc", ("triton_grpc_error", "true"), "AsStatus");
        check(stream, "application/grpc", ("triton_grpc_error", "1"), "AsMessages");
    }

    #[test]
    fn compression_and_timeouts_are_checked() {
        let compressed = "Compressed(Failure { code: Unimplemented";
        check(INFER, "application/grpc", ("grpc-encoding", "snappy"), compressed);
        check(INFER, "application/grpc", ("grpc-encoding", "gzip"), "Some(Gzip)");
        check(INFER, "application/grpc", ("grpc-encoding", "identity"), "ModelInfer");
        check(INFER, "application/grpc", ("grpc-timeout", "x"), "InvalidArgument");
        check(INFER, "application/grpc", ("grpc-timeout", "0S"), "DeadlineExceeded");
        let within = format!("{:?}", Timeout::Within(Duration::from_millis(5)));
        check(INFER, "application/grpc", ("grpc-timeout", "5m"), &within);
    }
}
