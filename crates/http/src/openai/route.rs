//! The paths of the OpenAI endpoint.

use std::borrow::Cow;

use galatea_gate::access::ApiCategory;
use hyper::Method;

/// An endpoint, along with the model in its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OpenAiRoute<'a> {
    Chat,
    Completion,
    Embedding,
    Rerank,
    Responses,
    Models,
    Model(Cow<'a, str>),
    Load(Cow<'a, str>),
    Unload(Cow<'a, str>),
    Metrics,
    Ready,
}

impl<'a> OpenAiRoute<'a> {
    /// Returns the endpoint at a path.
    pub(super) fn of(path: &'a str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completion,
            "/v1/embeddings" => Self::Embedding,
            "/v1/rerank" => Self::Rerank,
            "/v1/responses" => Self::Responses,
            "/v1/models" => Self::Models,
            "/metrics" => Self::Metrics,
            "/health/ready" => Self::Ready,
            _ => {
                let (model, action) = match path.strip_prefix("/v1/models/")?.split_once('/') {
                    None => (path.strip_prefix("/v1/models/")?, None),
                    Some((model, action)) => (model, Some(action)),
                };
                let model = decoded(model).filter(|model| !model.is_empty())?;
                match action {
                    None => Self::Model(model),
                    Some("load") => Self::Load(model),
                    Some("unload") => Self::Unload(model),
                    Some(_) => return None,
                }
            }
        })
    }

    /// Returns the endpoint's method.
    pub(super) const fn method(&self) -> Method {
        match self {
            Self::Chat
            | Self::Completion
            | Self::Embedding
            | Self::Rerank
            | Self::Responses
            | Self::Load(_)
            | Self::Unload(_) => Method::POST,
            Self::Models | Self::Model(_) | Self::Metrics | Self::Ready => Method::GET,
        }
    }

    /// Returns the category that the gate uses for the endpoint's group of APIs. The metrics have
    /// no category of their own.
    pub(super) const fn category(&self) -> ApiCategory {
        match self {
            Self::Chat | Self::Completion | Self::Embedding | Self::Rerank | Self::Responses => {
                ApiCategory::Inference
            }
            Self::Models | Self::Model(_) | Self::Load(_) | Self::Unload(_) => {
                ApiCategory::ModelRepository
            }
            Self::Metrics => ApiCategory::Statistics,
            Self::Ready => ApiCategory::Health,
        }
    }
}

/// Decodes a percent-encoded name; `None` if it isn't UTF-8, or contains a slash.
fn decoded(name: &str) -> Option<Cow<'_, str>> {
    if !name.contains('%') {
        return Some(Cow::Borrowed(name));
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let hex = behind.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.filter(|hex| hex.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).ok().filter(|name| !name.contains('/')).map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, expected: &str) {
        let found = OpenAiRoute::of(path);
        assert_eq!(found.map_or(String::from("none"), |route| format!("{route:?}")), expected);
    }

    #[test]
    fn paths_are_those_of_the_frontend() {
        check("/v1/chat/completions", "Chat");
        check("/v1/completions", "Completion");
        check("/v1/embeddings", "Embedding");
        check("/v1/rerank", "Rerank");
        check("/v1/responses", "Responses");
        check("/v1/models", "Models");
        check("/v1/models/m", "Model(\"m\")");
        check("/v1/models/a%20b%zz%", "Model(\"a b%zz%\")");
        check("/v1/models/m/load", "Load(\"m\")");
        check("/v1/models/m/unload", "Unload(\"m\")");
        check("/metrics", "Metrics");
        check("/health/ready", "Ready");
        for path in [
            "/",
            "/v1",
            "/v1/responses/resp_1",
            "/v1/models/",
            "/v1/models/m/",
            "/v1/models/a/b",
            "/v1/models/a%2fb",
            "/v1/models/%ff",
            "/v2",
        ] {
            check(path, "none");
        }
    }
}
