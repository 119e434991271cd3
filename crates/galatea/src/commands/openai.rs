//! `galatea openai`: a repository, with the flags and defaults of Triton's frontend for OpenAI
//! clients.

use galatea_tools::Arguments;

use crate::environment::Environment;
use crate::flags::{self, Settings, UsageError};

/// The levels of the frontend's HTTP library.
const LEVELS: [&str; 6] = ["debug", "info", "warning", "error", "critical", "trace"];

/// The default settings, before flags are applied: the frontend listens for OpenAI clients only.
pub(super) fn defaults(environment: &Environment) -> Result<Settings, UsageError> {
    let mut settings = flags::initial_settings(&environment.clouds.vertex_ai)?;
    settings.openai.door.allow = true;
    (settings.http.allow, settings.grpc.allow, settings.metrics.allow) = (false, false, false);
    Ok(settings)
}

/// Applies the frontend's own options, and checks the settings.
pub(super) fn settings(
    mut settings: Settings,
    given: &Arguments,
    environment: &Environment,
) -> Result<Settings, String> {
    let error = |error: UsageError| error.to_string();
    if let Some(level) = given.option("tritonserver-log-verbose-level") {
        flags::apply(&mut settings, "log-verbose", level).map_err(error)?;
    }
    if let Some(level) = given.option("uvicorn-log-level") {
        if !LEVELS.contains(&level) {
            let known = LEVELS.map(|level| format!("'{level}'")).join(", ");
            return Err(format!(
                "argument --uvicorn-log-level: invalid choice: '{level}' (choose from {known})"
            ));
        }
        settings
            .notes
            .push(String::from("'--uvicorn-log-level' has no effect: there is no such log"));
    }
    let (vertex_ai, batches) = (&environment.clouds.vertex_ai, &environment.span_batches);
    flags::resolve(&mut settings, vertex_ai, batches).map_err(error)?;
    if let Some(argument) = given.operands.first() {
        return Err(format!("unrecognized arguments: {argument}"));
    }
    if settings.model_repositories.is_empty() {
        return Err(String::from("the following arguments are required: --model-repository"));
    }
    flags::check(&settings).map_err(error)?;
    Ok(settings)
}
