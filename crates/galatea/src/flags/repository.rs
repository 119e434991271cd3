//! Flags for model repositories and model loading.

use std::path::PathBuf;

use galatea_engine::{ControlMode, NamespaceMode};
use galatea_repository::SymlinkPolicy;

use super::flag::{Flag, no_default};
use super::value::{self, InvalidValue};
use super::{Group, Settings};
use crate::error_paths::ErrorPaths;
use crate::memory::ModelMemoryLimit;
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
             loads what --load-model names, and lets clients load and unload. \"demand\" loads a \
             model when a request needs it, and unloads others if --model-memory is exceeded; \
             clients may load and unload too. \"demand\" is not one of Triton's modes.",
            model_control_mode,
        ),
        Flag::other(
            "model-memory",
            "bytes",
            no_default,
            "How much memory all models together may take with --model-control-mode=demand, in \
             bytes, with a unit (512M, 16G), or as a percentage of the memory of the machine or \
             of the control group (60%). Required in that mode. Not one of Triton's flags.",
            |settings, value| {
                settings.model_memory = Some(model_memory(value)?);
                Ok(())
            },
        ),
        Flag::other(
            "model-gpu-memory",
            "integer:bytes",
            no_default,
            "GPU:BYTES that all models together may take on a GPU with \
             --model-control-mode=demand, with a unit (0:8G), or as a percentage of the GPU's \
             memory (0:80%). Default: no limit. No effect without GPUs. Not one of Triton's \
             flags.",
            model_gpu_memory,
        ),
        Flag::other(
            "repository-poll-secs",
            "integer",
            |settings| settings.repository_poll_secs.to_string(),
            "Seconds between two looks at the repositories with --model-control-mode=poll; with \
             0 only one is taken, at start.",
            |settings, value| {
                settings.repository_poll_secs = value::not_negative(value)?;
                settings.sets_poll_secs = true;
                Ok(())
            },
        ),
        Flag::other(
            "load-model",
            "string",
            no_default,
            "A model to load at start with --model-control-mode=explicit or demand. May be given \
             several times; with explicit, \"*\" alone means all models. With demand, the model \
             stays in memory until a client unloads it.",
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
        "demand" => ControlMode::Demand,
        _ => return Err(InvalidValue(String::from("invalid argument for --model-control-mode"))),
    };
    Ok(())
}

/// Parses a number of bytes or a percentage.
fn model_memory(value: &str) -> Result<ModelMemoryLimit, InvalidValue> {
    if let Some(percent) = value.strip_suffix('%') {
        let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
        return percent.map(ModelMemoryLimit::Percent).ok_or_else(|| {
            InvalidValue(format!("expected a percentage from 1% to 100%. Got {value}"))
        });
    }
    match value::byte_size(value)? {
        0 => Err(InvalidValue(String::from("expected more than 0 bytes"))),
        bytes => Ok(ModelMemoryLimit::Bytes(bytes)),
    }
}

/// Parses a GPU's number, and bytes or a percentage.
fn model_gpu_memory(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    let (gpu, limit) = value::numbers(value, ':')?;
    let gpu = gpu.parse().map_err(|_| {
        InvalidValue(format!("expected the number of a GPU before the colon. Got {value}"))
    })?;
    settings.gpus.model_memory.insert(gpu, model_memory(limit)?);
    settings.no_effect_without_gpus("model-gpu-memory");
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
