//! Maps a method and a path to a SageMaker request.

use galatea_gate::access::ApiCategory;
use hyper::Method;

/// A request, along with the names in its path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum SageMakerRoute<'a> {
    Ping,
    Invocations,
    /// The list of all archives.
    List,
    Load,
    Describe(&'a str),
    Unload(&'a str),
    Invoke(&'a str),
}

impl<'a> SageMakerRoute<'a> {
    /// Returns the route of a request. Triton's pattern is `/models(?:/)?([^/]+)?(/invoke)?`, so
    /// the slash after `models` may be missing, and some methods examine only part of the path.
    pub(super) fn of(method: &Method, path: &'a str) -> Option<Self> {
        match path {
            "/ping" => return Some(Self::Ping),
            "/invocations" => return Some(Self::Invocations),
            _ => {}
        }
        let (name, is_invoke) = archive(path.strip_prefix("/models")?)?;
        match *method {
            Method::GET if name.is_empty() => Some(Self::List),
            Method::GET => Some(Self::Describe(name)),
            Method::POST if is_invoke => Some(Self::Invoke(name)),
            Method::POST => Some(Self::Load),
            Method::DELETE => Some(Self::Unload(name)),
            _ => None,
        }
    }

    /// Returns the category of APIs that the request belongs to.
    pub(super) const fn category(&self) -> ApiCategory {
        match self {
            Self::Ping => ApiCategory::Health,
            Self::Invocations | Self::Invoke(_) => ApiCategory::Inference,
            Self::List | Self::Load | Self::Describe(_) | Self::Unload(_) => {
                ApiCategory::ModelRepository
            }
        }
    }
}

/// Returns the name after `/models`, and true if `/invoke` follows it.
fn archive(rest: &str) -> Option<(&str, bool)> {
    let rest = match rest.strip_prefix('/') {
        Some("/invoke") => return Some(("", true)),
        Some(rest) => rest,
        None => rest,
    };
    match rest.split_once('/') {
        None => Some((rest, false)),
        Some((name, "invoke")) => Some((name, true)),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &Method, path: &str, expected: Option<SageMakerRoute<'_>>) {
        assert_eq!(SageMakerRoute::of(method, path), expected, "{method} {path}");
    }

    #[test]
    fn paths_are_those_of_triton() {
        use SageMakerRoute::{Describe, Invocations, Invoke, List, Load, Ping, Unload};
        for method in [Method::GET, Method::POST, Method::PUT] {
            check(&method, "/ping", Some(Ping));
            check(&method, "/invocations", Some(Invocations));
        }
        for (path, get, post, delete) in [
            ("/models", List, Load, Unload("")),
            ("/models/", List, Load, Unload("")),
            ("/models/a", Describe("a"), Load, Unload("a")),
            ("/modelsa", Describe("a"), Load, Unload("a")),
            ("/models/a/invoke", Describe("a"), Invoke("a"), Unload("a")),
            ("/modelsa/invoke", Describe("a"), Invoke("a"), Unload("a")),
            ("/models/invoke", Describe("invoke"), Load, Unload("invoke")),
            ("/models//invoke", List, Invoke(""), Unload("")),
            ("/models/..", Describe(".."), Load, Unload("..")),
        ] {
            check(&Method::GET, path, Some(get));
            check(&Method::POST, path, Some(post));
            check(&Method::DELETE, path, Some(delete));
            check(&Method::PUT, path, None);
            check(&Method::HEAD, path, None);
        }
    }

    #[test]
    fn anything_else_is_unknown() {
        for path in [
            "/",
            "/ping/",
            "/pings",
            "/invocations/",
            "/model",
            "/models//",
            "/models/a/",
            "/models/a/b",
            "/models/a/invoke/",
            "/models/a/invoke/x",
            "/models//a",
            "/models//invoke/",
            "/v2",
            "/v2/repository/index",
        ] {
            check(&Method::GET, path, None);
            check(&Method::POST, path, None);
        }
    }
}
