//! Model repositories and how their models are loaded.

use std::path::PathBuf;

use galatea_engine::{ControlMode, Namespaces};
use galatea_repository::Symlinks;

use super::value::{self, Refusal};
use super::{Flag, Group, Settings};
use crate::error_paths::ErrorPaths;
use crate::model_code::{self, ModelCode};

pub(super) const GROUP: Group = Group {
    title: "Model Repository",
    flags: &[
        MODEL_STORE,
        MODEL_REPOSITORY,
        EXIT_ON_ERROR,
        DISABLE_AUTO_COMPLETE_CONFIG,
        STRICT_READINESS,
        MODEL_CONTROL_MODE,
        REPOSITORY_POLL_SECS,
        LOAD_MODEL,
        MODEL_CONFIG_NAME,
        REPOSITORY_SYMLINKS,
        MODEL_LOAD_THREAD_COUNT,
        MODEL_LOAD_RETRY_COUNT,
        MODEL_NAMESPACING,
        ALLOW_MODEL_CODE_FROM_LOADS,
        ERROR_PATHS,
        ENABLE_PEER_ACCESS,
    ],
};

const MODEL_STORE: Flag = Flag {
    name: "model-store",
    argument: Some("string"),
    default: "",
    help: "The same as --model-repository.",
    apply: add_repository,
};

const MODEL_REPOSITORY: Flag = Flag {
    name: "model-repository",
    argument: Some("string"),
    default: "",
    help: "A directory with models, or a bucket: s3://BUCKET/PATH, s3://HOST:PORT/BUCKET/PATH, \
           gs://BUCKET/PATH, as://ACCOUNT/CONTAINER/PATH. May be given several times; a model that \
           is in two of them is not loaded.",
    apply: add_repository,
};

fn add_repository(settings: &mut Settings, value: &str) -> Result<(), Refusal> {
    if value.is_empty() {
        return Err(Refusal(String::from("the path is empty")));
    }
    settings.model_repositories.push(PathBuf::from(value));
    Ok(())
}

const EXIT_ON_ERROR: Flag = Flag {
    name: "exit-on-error",
    argument: Some("boolean"),
    default: "true",
    help: "Whether to end with an error if a model can't be loaded at start. Otherwise the \
           other models are served.",
    apply: |settings, value| {
        settings.exit_on_error = value::boolean(value)?;
        Ok(())
    },
};

const DISABLE_AUTO_COMPLETE_CONFIG: Flag = Flag {
    name: "disable-auto-complete-config",
    argument: None,
    default: "",
    help: "Demand complete model configurations: backends don't fill in what one leaves out.",
    apply: |settings, _| {
        settings.auto_complete_config = false;
        settings.disables_auto_complete = true;
        Ok(())
    },
};

const STRICT_READINESS: Flag = Flag {
    name: "strict-readiness",
    argument: Some("boolean"),
    default: "true",
    help: "Whether the server calls itself ready only if all of its models are.",
    apply: |settings, value| {
        settings.strict_readiness = value::boolean(value)?;
        Ok(())
    },
};

const MODEL_CONTROL_MODE: Flag = Flag {
    name: "model-control-mode",
    argument: Some("string"),
    default: "none",
    help: "How models come and go. \"none\" loads all of them at start and changes nothing \
           later. \"poll\" does so too, and follows changes of the repositories. \"explicit\" \
           loads what --load-model names, and lets clients load and unload.",
    apply: |settings, value| {
        settings.control_mode = match value.to_ascii_lowercase().as_str() {
            "none" => ControlMode::None,
            "poll" => ControlMode::Poll,
            "explicit" => ControlMode::Explicit,
            _ => return Err(Refusal(String::from("invalid argument for --model-control-mode"))),
        };
        Ok(())
    },
};

const REPOSITORY_POLL_SECS: Flag = Flag {
    name: "repository-poll-secs",
    argument: Some("integer"),
    default: "15",
    help: "Seconds between two looks at the repositories with --model-control-mode=poll; with 0 \
           only one is taken, at start.",
    apply: |settings, value| {
        settings.repository_poll_secs = value::not_negative(value)?;
        Ok(())
    },
};

const LOAD_MODEL: Flag = Flag {
    name: "load-model",
    argument: Some("string"),
    default: "",
    help: "A model to load at start with --model-control-mode=explicit. May be given several \
           times; \"*\" alone means all models.",
    apply: |settings, value| {
        if !settings.startup_models.iter().any(|known| known == value) {
            settings.startup_models.push(value.to_owned());
        }
        Ok(())
    },
};

const MODEL_CONFIG_NAME: Flag = Flag {
    name: "model-config-name",
    argument: Some("string"),
    default: "",
    help: "Use configs/NAME.pbtxt of the models that have it instead of their config.pbtxt.",
    apply: |settings, value| {
        if value.is_empty() {
            return Err(Refusal(String::from("Error: empty argument for --model-config-name")));
        }
        if value.contains(['/', '\0']) {
            return Err(Refusal(String::from("the name of a file without a path is needed")));
        }
        settings.model_config_name = Some(value.to_owned());
        Ok(())
    },
};

const REPOSITORY_SYMLINKS: Flag = Flag {
    name: "repository-symlinks",
    argument: Some("boolean"),
    default: "true",
    help: "Whether symbolic links in model repositories are followed, wherever they lead. With \
           false a model with one in its path, or in that of a file that it needs, is not loaded.",
    apply: |settings, value| {
        settings.repository_symlinks =
            if value::boolean(value)? { Symlinks::Followed } else { Symlinks::Forbidden };
        Ok(())
    },
};

const MODEL_LOAD_THREAD_COUNT: Flag = Flag {
    name: "model-load-thread-count",
    argument: Some("integer"),
    default: "4",
    help: "How many versions of models load at the same time.",
    apply: |settings, value| {
        // Triton ends with an error below 0, and so does this server.
        let threads: u32 = value::number(value)?;
        settings.model_load_threads = usize::try_from(threads.max(1)).unwrap_or(usize::MAX);
        Ok(())
    },
};

const MODEL_LOAD_RETRY_COUNT: Flag = Flag {
    name: "model-load-retry-count",
    argument: Some("integer"),
    default: "0",
    help: "How often to try again, at once, to load a model version that failed.",
    apply: |settings, value| {
        settings.load_retries = value::not_negative(value)?;
        Ok(())
    },
};

const MODEL_NAMESPACING: Flag = Flag {
    name: "model-namespacing",
    argument: Some("boolean"),
    default: "false",
    help: "Whether repositories may hold models of the same name. An ensemble then means the \
           one in its own repository; clients can't reach a model whose name several have.",
    apply: |settings, value| {
        settings.namespaces =
            if value::boolean(value)? { Namespaces::Repositories } else { Namespaces::None };
        Ok(())
    },
};

const ALLOW_MODEL_CODE_FROM_LOADS: Flag = Flag {
    name: model_code::FLAG,
    argument: Some("boolean"),
    default: "true",
    help: "Whether requests to load may bring code: a model in Python, or a configuration that \
           names a backend, a library, a program or an agent that the repository's doesn't. Not \
           one of Triton's flags.",
    apply: |settings, value| {
        settings.model_code =
            if value::boolean(value)? { ModelCode::Allowed } else { ModelCode::Refused };
        Ok(())
    },
};

const ERROR_PATHS: Flag = Flag {
    name: "error-paths",
    argument: Some("string"),
    default: "absolute",
    help: "The form of paths in errors of loads and of models, and in the index: 'absolute' as in \
           Triton, or 'relative' to the model repository. The log keeps absolute paths. Not one \
           of Triton's flags.",
    apply: |settings, value| {
        settings.error_paths = ErrorPaths::by_name(value)
            .ok_or_else(|| Refusal(format!("expected 'absolute' or 'relative'. Got {value}")))?;
        Ok(())
    },
};

const ENABLE_PEER_ACCESS: Flag = Flag {
    name: "enable-peer-access",
    argument: Some("boolean"),
    default: "true",
    help: "Whether GPUs may reach each other's memory. No effect without GPUs.",
    apply: |settings, value| {
        settings.gpus.peer_access = value::boolean(value)?;
        settings.no_effect_without_gpus("enable-peer-access");
        Ok(())
    },
};
