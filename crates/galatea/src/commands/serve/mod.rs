//! `galatea serve MODEL...`: models without a repository and without configurations.
//!
//! Files become a repository of links (`sources/`), which the server serves like any other: it is
//! loaded once, and reloaded only if the flags or a client request it. Startup is shown on the
//! terminal instead of in the log, unless the flags turn the log on (`display.rs`).

mod display;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use galatea_allocator::GlibcMallocTuner;
use galatea_tools::Arguments;
use galatea_tools::console::{ReportFormat, print_failure, print_line};
use rustix::process::{Signal, getpid, kill_process};

use self::display::StartDisplay;
use super::sources::{self, Repositories};
use crate::backends;
use crate::environment::Environment;
use crate::flags::{self, Settings, UsageError};
use crate::startup;

/// The options of `galatea serve`.
#[derive(Debug)]
pub(crate) struct ServeOptions {
    settings: Settings,
    models: Vec<String>,
    name: Option<String>,
    format: ReportFormat,
    ends_with_input: bool,
}

/// The default settings, before flags are applied: the log is silent because the terminal shows
/// progress, and the dashboard is on.
pub(super) fn defaults(environment: &Environment) -> Result<Settings, UsageError> {
    let mut settings = flags::initial_settings(&environment.clouds.vertex_ai)?;
    settings.log.info = false;
    settings.dashboard = true;
    Ok(settings)
}

impl ServeOptions {
    pub(super) fn new(
        mut settings: Settings,
        given: Arguments,
        format: ReportFormat,
        environment: &Environment,
    ) -> Result<Self, String> {
        let name = given.option("name").map(String::from);
        if let Some(name) = &name {
            galatea_repository::check_uploaded_model_name(name)
                .map_err(|error| error.to_string())?;
        }
        let ends_with_input = given.has("until-input-ends");
        let models = given.operands;
        let error = |error: UsageError| error.to_string();
        let (vertex_ai, batches) = (&environment.clouds.vertex_ai, &environment.span_batches);
        flags::resolve(&mut settings, vertex_ai, batches).map_err(error)?;
        flags::check(&settings).map_err(error)?;
        if models.is_empty() && settings.model_repositories.is_empty() {
            return Err(String::from("a model is missing: a file, a directory or a repository"));
        }
        Ok(Self { settings, models, name, format, ends_with_input })
    }
}

/// Serves until a signal ends it.
pub(super) fn run(
    options: ServeOptions,
    mut environment: Environment,
    allocator: GlibcMallocTuner,
) -> ExitCode {
    let ServeOptions { mut settings, models, name, format, ends_with_input } = options;
    backends::quiet_tensorflow(&settings, &mut environment);
    if ends_with_input && let Err(error) = end_with_input() {
        return print_failure(&error.to_string(), format);
    }
    let repositories = match repositories(&models, name.as_deref(), &environment) {
        Ok(repositories) => repositories,
        Err(reason) => return print_failure(&reason, format),
    };
    settings.model_repositories.extend(repositories.paths.iter().cloned());
    for warning in settings.warnings() {
        print_line(&mut io::stderr(), warning);
    }
    let mut display =
        StartDisplay::new(format, &mut settings, environment.colours, &repositories.places);
    let result = startup::run(settings, environment, allocator, &mut display);
    // The process may end without running destructors.
    drop(repositories);
    startup::end_with(result, |failure| display.explain(failure))
}

fn repositories(
    models: &[String],
    name: Option<&str>,
    environment: &Environment,
) -> Result<Repositories, String> {
    let sources = sources::find(models)?;
    if name.is_some() && sources.len() != 1 {
        return Err(String::from("'--name' needs exactly one model"));
    }
    if name.is_some() && matches!(sources.as_slice(), [sources::Source::Repository(_)]) {
        return Err(String::from("'--name' can't rename the models of a repository"));
    }
    let parent: &PathBuf = &environment.temporary_folder;
    Repositories::of(&sources, name, parent)
}

/// Stops the server when standard input ends, as a signal would.
fn end_with_input() -> io::Result<()> {
    let follow = || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = kill_process(getpid(), Signal::TERM);
    };
    std::thread::Builder::new().name(String::from("input")).spawn(follow).map(drop)
}
