//! The way a door's clients describe a body.

use galatea_codec_http::{header_length_from_content_type, parse_header_length};
use galatea_infer::Status;
use hyper::header::CONTENT_TYPE;

use crate::compression::BodyCoding;
use crate::http_response::HttpResponse;
use crate::request_head::RequestHead;

/// The form in which headers state the length of the JSON before binary tensors.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// The length is in a separate header. Bodies may be compressed.
    KServe,
    /// The length is in the content type of requests and responses. Content codings are ignored.
    SageMaker,
    /// The length is in the content type of requests. Responses use KServe's form and are never
    /// compressed.
    VertexAi,
    /// All bodies are JSON, as in OpenAI's API. Content codings are ignored.
    OpenAi,
}

impl Dialect {
    /// Returns the content type of binary tensors, up to the JSON length.
    const fn binary_type(self) -> Option<&'static str> {
        match self {
            Self::KServe | Self::OpenAi => None,
            Self::SageMaker => {
                Some("application/vnd.sagemaker-triton.binary+json;json-header-size=")
            }
            Self::VertexAi => {
                Some("application/vnd.vertex-ai-triton.binary+json;json-header-size=")
            }
        }
    }

    /// Returns the length of the JSON at the start of a body of this length.
    pub(crate) fn json_length(
        self,
        head: &RequestHead<'_>,
        body_length: usize,
    ) -> Result<usize, Status> {
        if self == Self::KServe {
            return header_length(head, body_length);
        }
        Ok(self.length_in_type(head, body_length)?.unwrap_or(body_length))
    }

    /// Returns true if the headers state the length of JSON that precedes other data.
    pub(crate) fn tells_json_length(self, head: &RequestHead<'_>) -> bool {
        match self {
            Self::KServe => head.header_length.is_some(),
            Self::SageMaker | Self::VertexAi | Self::OpenAi => {
                self.length_in_type(head, usize::MAX).is_ok_and(|length| length.is_some())
            }
        }
    }

    fn length_in_type(
        self,
        head: &RequestHead<'_>,
        body_length: usize,
    ) -> Result<Option<usize>, Status> {
        match (self.binary_type(), head.header(CONTENT_TYPE.as_str())) {
            (Some(prefix), Some(value)) => {
                header_length_from_content_type(value, prefix, body_length)
            }
            _ => Ok(None),
        }
    }

    /// Returns the coding of a body.
    pub(crate) fn coding(self, head: &RequestHead<'_>) -> BodyCoding {
        match self {
            Self::KServe => BodyCoding::of(head),
            Self::SageMaker | Self::VertexAi | Self::OpenAi => BodyCoding::Identity,
        }
    }

    /// Returns true if responses are compressed for clients that accept compression.
    pub(crate) const fn compresses(self) -> bool {
        matches!(self, Self::KServe)
    }

    /// Converts the response to an inference request into the form that these clients read.
    pub(crate) fn inference(self, mut response: HttpResponse) -> HttpResponse {
        let content_type = match self {
            Self::SageMaker if response.header_length.is_some() => self.binary_type(),
            Self::SageMaker | Self::KServe | Self::VertexAi | Self::OpenAi => return response,
        };
        response.content_type = content_type;
        response.has_length_in_type = true;
        response
    }
}

/// Returns the JSON length that the header `Inference-Header-Content-Length` states.
fn header_length(head: &RequestHead<'_>, body_length: usize) -> Result<usize, Status> {
    match (head.header_length, head.second_header_length) {
        (Some(first), Some(second)) => Err(two_header_lengths(first, second)),
        (Some(value), None) => parse_header_length(value, body_length),
        (None, _) => Ok(body_length),
    }
}

/// The error for two different JSON lengths. Triton reads the first.
fn two_header_lengths(first: &[u8], second: &[u8]) -> Status {
    Status::invalid_argument(format!(
        "Unable to parse Inference-Header-Content-Length, got two values: {} and {}",
        String::from_utf8_lossy(first),
        String::from_utf8_lossy(second)
    ))
}
