//! Responses in the forms that Triton's frontend uses.

use galatea_gate::access::{AccessRefusal, TenantRefusal};
use galatea_infer::{Code, Status};
use galatea_openai::{Failure, detail_document, error_document};
use hyper::StatusCode;
use hyper::header::HeaderValue;

use super::route::OpenAiRoute;
use crate::http_response::{self, HttpResponse};

/// Creates an error with this text.
pub(super) fn detail(code: StatusCode, text: &str) -> HttpResponse {
    http_response::document(code, detail_document(text).into())
}

/// The form of the errors of an endpoint.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum ErrorForm {
    /// That of Triton's frontend.
    Detail,
    /// That of OpenAI's API.
    OpenAi,
}

impl ErrorForm {
    /// Creates the response to a request that failed.
    pub(super) fn failed(self, failure: Failure) -> HttpResponse {
        let (code, document) = match self {
            Self::Detail => failure.into_document(),
            Self::OpenAi => failure.into_error_document(),
        };
        let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        http_response::document(code, document.into())
    }

    /// Creates the response to a request that the server or the model refused.
    pub(super) fn refused(self, status: &Status) -> HttpResponse {
        let mut response = refused(status);
        if self == Self::OpenAi {
            let document = error_document(status.message(), "server_error", None);
            response.chunks.clear();
            response.chunks.push(document.into());
        }
        response
    }

    /// Creates the response to a request whose model could not be loaded on demand. Triton has no
    /// such refusals, so the code and the headers are those of the inference endpoint.
    pub(super) fn not_loaded(self, status: &Status) -> HttpResponse {
        let mut response = self.refused(status);
        response.code = http_response::failure(status).code;
        response
    }
}

/// Creates the response to a request that the server or the model refused. As in Triton, the code
/// is 500, whatever the reason. Refusals that Triton doesn't have, because of the memory limit or a
/// deadline, have the same code and headers as on the inference door.
pub(super) fn refused(status: &Status) -> HttpResponse {
    let mut response = http_response::failure(status);
    if !matches!(status.code(), Code::Exhausted | Code::DeadlineExceeded) {
        response.code = StatusCode::INTERNAL_SERVER_ERROR;
    }
    response.chunks.clear();
    response.chunks.push(detail_document(status.message()).into());
    response
}

/// Refuses a method.
pub(super) fn wrong_method(route: &OpenAiRoute<'_>) -> HttpResponse {
    let mut response = detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    let allowed = HeaderValue::try_from(route.method().as_str());
    response.headers = allowed.ok().map(|allowed| Box::from([(ALLOW_NAME, allowed)]));
    response
}

const ALLOW_NAME: &str = "Allow";

/// Refuses a caller that lacks the key for an API. A tenant's key is refused as OpenAI's API does.
pub(super) fn restricted(refusal: AccessRefusal<'_>) -> HttpResponse {
    let refusal = match refusal {
        AccessRefusal::Tenant(refusal) => refusal,
        AccessRefusal::Header { required } => {
            let text =
                format!("This API is restricted, expecting header '{required}' with valid value");
            let document = error_document(&text, "authentication_error", Some("invalid_auth"));
            return http_response::document(StatusCode::UNAUTHORIZED, document.into());
        }
    };
    let (kind, code) = match refusal {
        TenantRefusal::MissingKey | TenantRefusal::UnknownKey => {
            ("invalid_request_error", "invalid_api_key")
        }
        TenantRefusal::ForbiddenApi(_) => ("invalid_request_error", "insufficient_permissions"),
        TenantRefusal::TooManyRequests { .. } => ("requests", "rate_limit_exceeded"),
    };
    let document = error_document(&refusal.to_string(), kind, Some(code));
    let response = http_response::document(http_response::tenant_code(refusal), document.into());
    http_response::with_tenant_headers(refusal, response)
}

/// Refuses a body of at least this length.
pub(crate) fn too_large(length: u64, bytes_max: u64) -> HttpResponse {
    let text = format!(
        "Request size of {length} bytes exceeds the maximum allowed input size of {bytes_max} \
         bytes. Use --http-max-input-size to increase the limit."
    );
    let document = error_document(&text, "invalid_request_error", Some("content_too_large"));
    http_response::document(StatusCode::PAYLOAD_TOO_LARGE, document.into())
}
