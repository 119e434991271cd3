//! Flags for model repositories and model loading.

use std::path::PathBuf;

use galatea_engine::{ControlMode, NamespaceMode};
use galatea_repository::SymlinkPolicy;

use super::flag::{Flag, no_default};
use super::value::{self, InvalidValue};
use super::{Group, Settings};
use crate::error_paths::ErrorPaths;
use crate::model_code::{self, ModelCodePermission};

pub(super) const GROUP: Group = Group {
    title: "Model Repository",
    flags: &[&[
        Flag::other(
            "model-store",
            "string",
            no_default,
            "The same as --model-repository.",
            add_repository,
        ),
        Flag::other(
            "model-repository",
            "string",
            no_default,
            "A directory with models, or a bucket: s3://BUCKET/PATH, s3://HOST:PORT/BUCKET/PATH, \
             gs://BUCKET/PATH, as://ACCOUNT/CONTAINER/PATH. May be given several times; a model \
             that is in two of them is not loaded.",
            add_repository,
        ),
        Flag::boolean(
            "exit-on-error",
            "Whether to end with an error if a model can't be loaded at start. Otherwise the \
             other models are served.",
            |settings| &mut settings.exit_on_error,
        ),
        Flag::switch(
            "disable-auto-complete-config",
            "Demand complete model configurations: backends don't fill in what one leaves out.",
            |settings| {
                settings.auto_complete_config = false;
                settings.disables_auto_complete = true;
            },
        ),
        Flag::boolean(
            "strict-readiness",
            "Whether the server calls itself ready only if all of its models are.",
            |settings| &mut settings.strict_readiness,
        ),
        Flag::other(
            "model-control-mode",
            "string",
            |settings| String::from(settings.control_mode.name()),
            "How models come and go. \"none\" loads all of them at start and changes nothing \
             later. \"poll\" does so too, and follows changes of the repositories. \"explicit\" \
             loads what --load-model names, and lets clients load and unload.",
            model_control_mode,
        ),
        Flag::number(
            "repository-poll-secs",
            "Seconds between two looks at the repositories with --model-control-mode=poll; with \
             0 only one is taken, at start.",
            |settings| &mut settings.repository_poll_secs,
        ),
        Flag::other(
            "load-model",
            "string",
            no_default,
            "A model to load at start with --model-control-mode=explicit. May be given several \
             times; \"*\" alone means all models.",
            |settings, value| {
                if !settings.startup_models.iter().any(|known| known == value) {
                    settings.startup_models.push(value.to_owned());
                }
                Ok(())
            },
        ),
        Flag::other(
            "model-config-name",
            "string",
            no_default,
            "Use configs/NAME.pbtxt of the models that have it instead of their config.pbtxt.",
            model_config_name,
        ),
        Flag::decision(
            "repository-symlinks",
            "Whether symbolic links in model repositories are followed, wherever they lead. With \
             false a model with one in its path, or in that of a file that it needs, is not \
             loaded.",
            |settings| Some(settings.repository_symlinks == SymlinkPolicy::Followed),
            |settings, follows| {
                settings.repository_symlinks =
                    if follows { SymlinkPolicy::Followed } else { SymlinkPolicy::Forbidden };
            },
        ),
        Flag::other(
            "model-load-thread-count",
            "integer",
            |settings| settings.model_load_threads.to_string(),
            "How many versions of models load at the same time.",
            |settings, value| {
                // Like Triton, this server ends with an error if the number is negative.
                let threads: u32 = value::number(value)?;
                settings.model_load_threads = usize::try_from(threads.max(1)).unwrap_or(usize::MAX);
                Ok(())
            },
        ),
        Flag::number(
            "model-load-retry-count",
            "How often to try again, at once, to load a model version that failed.",
            |settings| &mut settings.load_retries,
        ),
        Flag::decision(
            "model-namespacing",
            "Whether repositories may hold models of the same name. An ensemble then means the \
             one in its own repository; clients can't reach a model whose name several have.",
            |settings| Some(settings.namespaces == NamespaceMode::Repositories),
            |settings, has_several| {
                settings.namespaces =
                    if has_several { NamespaceMode::Repositories } else { NamespaceMode::None };
            },
        ),
        Flag::decision(
            model_code::FLAG,
            "Whether requests to load may bring code: a model in Python, or a configuration that \
             names a backend, a library, a program or an agent that the repository's doesn't. Not \
             one of Triton's flags.",
            |settings| Some(settings.model_code == ModelCodePermission::Allowed),
            |settings, is_allowed| {
                settings.model_code = if is_allowed {
                    ModelCodePermission::Allowed
                } else {
                    ModelCodePermission::Refused
                };
            },
        ),
        Flag::other(
            "error-paths",
            "string",
            |settings| String::from(settings.error_paths.name()),
            "The form of paths in errors of loads and of models, and in the index: 'absolute' as \
             in Triton, or 'relative' to the model repository. The log keeps absolute paths. Not \
             one of Triton's flags.",
            |settings, value| {
                settings.error_paths = ErrorPaths::by_name(value).ok_or_else(|| {
                    InvalidValue(format!("expected 'absolute' or 'relative'. Got {value}"))
                })?;
                Ok(())
            },
        ),
        Flag::decision(
            "enable-peer-access",
            "Whether GPUs may reach each other's memory. No effect without GPUs.",
            |settings| Some(settings.gpus.peer_access),
            |settings, is_enabled| {
                settings.gpus.peer_access = is_enabled;
                settings.no_effect_without_gpus("enable-peer-access");
            },
        ),
    ]],
};

fn add_repository(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    if value.is_empty() {
        return Err(InvalidValue(String::from("the path is empty")));
    }
    settings.model_repositories.push(PathBuf::from(value));
    Ok(())
}

fn model_control_mode(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    settings.control_mode = match value.to_ascii_lowercase().as_str() {
        "none" => ControlMode::None,
        "poll" => ControlMode::Poll,
        "explicit" => ControlMode::Explicit,
        _ => return Err(InvalidValue(String::from("invalid argument for --model-control-mode"))),
    };
    Ok(())
}

fn model_config_name(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    if value.is_empty() {
        return Err(InvalidValue(String::from("Error: empty argument for --model-config-name")));
    }
    if value.contains(['/', '\0']) {
        return Err(InvalidValue(String::from("the name of a file without a path is needed")));
    }
    settings.model_config_name = Some(value.to_owned());
    Ok(())
}
