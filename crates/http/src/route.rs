//! Maps a path to its endpoint.
//!
//! As in Triton, paths are not percent-decoded, so a model whose name would need encoding can't be
//! reached. Paths are matched as a whole.

use galatea_control::ShmKind;
use galatea_gate::access::ApiCategory;
use hyper::Method;

/// An endpoint, along with the names in its path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    Live,
    Ready,
    ServerMetadata,
    Model {
        name: &'a str,
        version: &'a str,
        action: ModelAction<'a>,
    },
    AllStatistics,
    RepositoryIndex {
        repository: Option<&'a str>,
    },
    Load {
        repository: Option<&'a str>,
        model: &'a str,
    },
    Unload {
        repository: Option<&'a str>,
        model: &'a str,
    },
    SharedMemory {
        kind: ShmKind,
        region: Option<&'a str>,
        action: RegionAction,
    },
    Logging,
    /// The trace settings of one model, or the global ones.
    TraceSetting {
        model: Option<&'a str>,
    },
}

/// A request about a model.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelAction<'a> {
    Metadata,
    Infer,
    /// Generates a single response, as flat JSON.
    Generate,
    /// Generates any number of responses, as events.
    GenerateStream,
    Ready,
    Config,
    Statistics,
    /// Reports the model's requests as they arrive.
    Traffic,
    /// Returns the report with this name, if the server has it.
    Report(&'a str),
}

impl ModelAction<'_> {
    const fn category(self) -> ApiCategory {
        match self {
            Self::Metadata => ApiCategory::Metadata,
            Self::Infer | Self::Generate | Self::GenerateStream => ApiCategory::Inference,
            Self::Ready => ApiCategory::Health,
            Self::Config => ApiCategory::ModelConfig,
            Self::Statistics | Self::Report(_) => ApiCategory::Statistics,
            Self::Traffic => ApiCategory::Trace,
        }
    }
}

/// A request about shared memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum RegionAction {
    Status,
    Register,
    Unregister,
}

impl<'a> Route<'a> {
    /// Returns the endpoint at `path`, if there is one. Any other word after a model is taken as a
    /// report name; the server may not have that report.
    pub(crate) fn of(path: &'a str) -> Option<Self> {
        let rest = path.strip_prefix("/v2")?;
        if rest.is_empty() {
            return Some(Self::ServerMetadata);
        }
        let rest = rest.strip_prefix('/')?;
        if let Some(rest) = rest.strip_prefix("models/") {
            return if rest == "stats" { Some(Self::AllStatistics) } else { model(rest) };
        }
        match rest {
            "health/live" => return Some(Self::Live),
            "health/ready" => return Some(Self::Ready),
            "logging" => return Some(Self::Logging),
            "trace/setting" => return Some(Self::TraceSetting { model: None }),
            _ => {}
        }
        if let Some(rest) = rest.strip_prefix("repository/") {
            return repository(rest);
        }
        if let Some(rest) = rest.strip_prefix("systemsharedmemory/") {
            return shared_memory(ShmKind::System, rest);
        }
        shared_memory(ShmKind::Cuda, rest.strip_prefix("cudasharedmemory/")?)
    }

    /// Returns the category of APIs that the endpoint belongs to.
    pub(crate) const fn category(&self) -> ApiCategory {
        match self {
            Self::Live | Self::Ready => ApiCategory::Health,
            Self::ServerMetadata => ApiCategory::Metadata,
            Self::Model { action, .. } => action.category(),
            Self::AllStatistics => ApiCategory::Statistics,
            Self::RepositoryIndex { .. } | Self::Load { .. } | Self::Unload { .. } => {
                ApiCategory::ModelRepository
            }
            Self::SharedMemory { .. } => ApiCategory::SharedMemory,
            Self::Logging => ApiCategory::Logging,
            Self::TraceSetting { .. } => ApiCategory::Trace,
        }
    }

    /// Returns true if the endpoint supports this method.
    pub(crate) fn allows(&self, method: &Method) -> bool {
        match self {
            Self::Live | Self::Ready | Self::ServerMetadata | Self::AllStatistics => {
                method == Method::GET
            }
            Self::Model { action, .. } => match action {
                ModelAction::Infer | ModelAction::Generate | ModelAction::GenerateStream => {
                    method == Method::POST
                }
                ModelAction::Metadata
                | ModelAction::Ready
                | ModelAction::Config
                | ModelAction::Statistics
                | ModelAction::Traffic
                | ModelAction::Report(_) => method == Method::GET,
            },
            Self::RepositoryIndex { .. } | Self::Load { .. } | Self::Unload { .. } => {
                method == Method::POST
            }
            Self::SharedMemory { action, .. } => match action {
                RegionAction::Status => method == Method::GET,
                RegionAction::Register | RegionAction::Unregister => method == Method::POST,
            },
            Self::Logging | Self::TraceSetting { .. } => {
                method == Method::GET || method == Method::POST
            }
        }
    }
}

fn model(rest: &str) -> Option<Route<'_>> {
    let (name, rest) = split(rest);
    if name.is_empty() {
        return None;
    }
    let (version, rest) = match rest {
        Some(rest) if rest.starts_with("versions/") => {
            let (_, rest) = split(rest);
            let (version, rest) = split(rest?);
            if version.is_empty() || !version.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            (version, rest)
        }
        Some(_) | None => ("", rest),
    };
    let action = match rest {
        None => ModelAction::Metadata,
        Some("infer") => ModelAction::Infer,
        Some("generate") => ModelAction::Generate,
        Some("generate_stream") => ModelAction::GenerateStream,
        Some("ready") => ModelAction::Ready,
        Some("config") => ModelAction::Config,
        Some("stats") => ModelAction::Statistics,
        Some("traffic") => ModelAction::Traffic,
        Some("trace/setting") if version.is_empty() => {
            return Some(Route::TraceSetting { model: Some(name) });
        }
        Some(word) if word.is_empty() || word.contains('/') => return None,
        Some(report) => ModelAction::Report(report),
    };
    Some(Route::Model { name, version, action })
}

fn repository(rest: &str) -> Option<Route<'_>> {
    if let Some(route) = repository_action(rest, None) {
        return Some(route);
    }
    let (repository, rest) = split(rest);
    repository_action(rest.filter(|_| !repository.is_empty())?, Some(repository))
}

fn repository_action<'a>(rest: &'a str, repository: Option<&'a str>) -> Option<Route<'a>> {
    if rest == "index" {
        return Some(Route::RepositoryIndex { repository });
    }
    let (model, action) = split(rest.strip_prefix("models/")?);
    if model.is_empty() {
        return None;
    }
    match action {
        Some("load") => Some(Route::Load { repository, model }),
        Some("unload") => Some(Route::Unload { repository, model }),
        Some(_) | None => None,
    }
}

fn shared_memory(kind: ShmKind, rest: &str) -> Option<Route<'_>> {
    let (region, action) = match rest.strip_prefix("region/") {
        None => (None, rest),
        Some(rest) => {
            let (region, action) = split(rest);
            (Some(region).filter(|region| !region.is_empty()), action?)
        }
    };
    let action = match action {
        "status" => RegionAction::Status,
        "register" => RegionAction::Register,
        "unregister" => RegionAction::Unregister,
        _ => return None,
    };
    if region.is_none() && rest.starts_with("region/") {
        return None;
    }
    Some(Route::SharedMemory { kind, region, action })
}

/// Returns the parts before and after the first slash.
fn split(path: &str) -> (&str, Option<&str>) {
    match path.split_once('/') {
        Some((first, rest)) => (first, Some(rest)),
        None => (path, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, expected: &str) {
        let found = Route::of(path).map_or(String::from("none"), |route| format!("{route:?}"));
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn server_paths() {
        check("/v2", "ServerMetadata");
        check("/v2/health/live", "Live");
        check("/v2/health/ready", "Ready");
        check("/v2/logging", "Logging");
        check("/v2/trace/setting", "TraceSetting { model: None }");
        check("/v2/models/stats", "AllStatistics");
    }

    #[test]
    fn model_paths() {
        let of = |name: &str, version: &str, action: &str| {
            format!("Model {{ name: {name:?}, version: {version:?}, action: {action} }}")
        };
        check("/v2/models/m", &of("m", "", "Metadata"));
        check("/v2/models/m/versions/3", &of("m", "3", "Metadata"));
        check("/v2/models/m/infer", &of("m", "", "Infer"));
        check("/v2/models/m/versions/3/infer", &of("m", "3", "Infer"));
        check("/v2/models/m/generate", &of("m", "", "Generate"));
        check("/v2/models/m/generate_stream", &of("m", "", "GenerateStream"));
        check("/v2/models/m/versions/3/generate_stream", &of("m", "3", "GenerateStream"));
        check("/v2/models/m/versions/12/ready", &of("m", "12", "Ready"));
        check("/v2/models/m/config", &of("m", "", "Config"));
        check("/v2/models/m/stats", &of("m", "", "Statistics"));
        check("/v2/models/m/scheduler", &of("m", "", r#"Report("scheduler")"#));
        check("/v2/models/m/versions/3/scheduler", &of("m", "3", r#"Report("scheduler")"#));
        check("/v2/models/stats/infer", &of("stats", "", "Infer"));
        check("/v2/models/versions", &of("versions", "", "Metadata"));
        check("/v2/models/a%2Fb/infer", &of("a%2Fb", "", "Infer"));
        check("/v2/models/m/trace/setting", "TraceSetting { model: Some(\"m\") }");
    }

    #[test]
    fn repository_and_shared_memory_paths() {
        check("/v2/repository/index", "RepositoryIndex { repository: None }");
        check("/v2/repository/r/index", "RepositoryIndex { repository: Some(\"r\") }");
        check("/v2/repository/models/m/load", "Load { repository: None, model: \"m\" }");
        check(
            "/v2/repository/r/models/m/unload",
            "Unload { repository: Some(\"r\"), model: \"m\" }",
        );
        check(
            "/v2/repository/models/models/m/load",
            "Load { repository: Some(\"models\"), model: \"m\" }",
        );
        let of = |kind: &str, region: &str, action: &str| {
            format!("SharedMemory {{ kind: {kind}, region: {region}, action: {action} }}")
        };
        let named = "Some(\"r\")";
        check("/v2/systemsharedmemory/status", &of("System", "None", "Status"));
        check("/v2/cudasharedmemory/region/r/register", &of("Cuda", named, "Register"));
        check("/v2/systemsharedmemory/region/r/unregister", &of("System", named, "Unregister"));
        check("/v2/systemsharedmemory/region/status", "none");
        check("/v2/systemsharedmemory/region//status", "none");
    }

    /// Every endpoint below `/v2`, grouped by the category that Triton gives it.
    const PATHS: [(ApiCategory, &str); 9] = [
        (
            ApiCategory::Health,
            "/health/live /health/ready /models/m/ready /models/m/versions/1/ready",
        ),
        (ApiCategory::Metadata, " /models/m /models/m/versions/1"),
        (ApiCategory::Inference, "/models/m/infer /models/m/generate /models/m/generate_stream"),
        (ApiCategory::ModelConfig, "/models/m/config /models/m/versions/1/config"),
        (ApiCategory::Statistics, "/models/stats /models/m/stats /models/m/scheduler"),
        (
            ApiCategory::ModelRepository,
            "/repository/index /repository/r/index /repository/models/m/load \
             /repository/r/models/m/unload",
        ),
        (
            ApiCategory::SharedMemory,
            "/systemsharedmemory/status /systemsharedmemory/region/r/register \
             /cudasharedmemory/unregister /cudasharedmemory/region/r/status",
        ),
        (ApiCategory::Trace, "/trace/setting /models/m/trace/setting /models/m/traffic"),
        (ApiCategory::Logging, "/logging"),
    ];

    #[test]
    fn every_endpoint_has_the_category_of_triton() {
        for (category, paths) in PATHS {
            for path in paths.split(' ') {
                let path = format!("/v2{path}");
                assert_eq!(Route::of(&path).unwrap().category(), category, "{path}");
            }
        }
    }

    /// Returns the names of an enumeration's variants in this file.
    fn variants(name: &str) -> Vec<&'static str> {
        let (_, body) = include_str!("route.rs").split_once(&format!("enum {name}")).unwrap();
        let (body, _) = body.split_once("\n}").unwrap();
        let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
        let is_variant = |line: &&str| line.starts_with(|first: char| first.is_ascii_uppercase());
        let end = |first: char| !first.is_ascii_alphanumeric();
        lines.filter(is_variant).filter_map(|line| line.split(end).next()).collect()
    }

    #[test]
    fn no_endpoint_is_without_a_category_of_triton() {
        let paths = PATHS.iter().flat_map(|(_, paths)| paths.split(' '));
        let routes: Vec<String> =
            paths.map(|path| format!("{:?}", Route::of(&format!("/v2{path}")).unwrap())).collect();
        for route in variants("Route<'a>") {
            assert!(routes.iter().any(|shown| shown.starts_with(route)), "PATHS lacks {route}");
        }
        for action in variants("ModelAction") {
            let is_there = |shown: &String| {
                let shown = shown.split_once("action: ").map(|(_, shown)| shown);
                shown.and_then(|shown| shown.split([' ', '(']).next()) == Some(action)
            };
            assert!(routes.iter().any(is_there), "PATHS lacks {action}");
        }
    }

    #[test]
    // row: HTTP-01
    fn anything_else_is_unknown() {
        for path in [
            "/",
            "",
            "/v2/",
            "/v1",
            "/v2x",
            "/v2/models",
            "/v2/models/",
            "/v2/models/m/",
            "/v2/models//infer",
            "/v2/models/m/infer/",
            "/v2/models/m/scheduler/",
            "/v2/models/m/scheduler/x",
            "/v2/models/m/versions/",
            "/v2/models/m/versions/x",
            "/v2/models/m/versions/-1",
            "/v2/models/m/versions/1/trace/setting",
            "/v2/models/m/versions/1/versions/2",
            "/v2/health",
            "/v2/health/live/",
            "/v2/repository",
            "/v2/repository//index",
            "/v2/repository/models//load",
            "/v2/repository/models/a/b/load",
            "/v2/systemsharedmemory",
            "/v2/othersharedmemory/status",
        ] {
            check(path, "none");
        }
    }
}
