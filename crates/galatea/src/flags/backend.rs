//! Backends and repository agents.

use std::path::PathBuf;

use super::settings::BackendSetting;
use super::value::{self, Refusal};
use super::{Flag, Group};

pub(super) const GROUP: Group = Group {
    title: "Backend",
    flags: &[ONNXRUNTIME_LIBRARY, BACKEND_DIRECTORY, BACKEND_CONFIG, REPOAGENT_DIRECTORY],
};

const ONNXRUNTIME_LIBRARY: Flag = Flag {
    name: "onnxruntime-library",
    argument: Some("path"),
    default: "",
    help: "ONNX Runtime's shared library, needed by models of the onnxruntime backend. \
           Otherwise the variable GALATEA_ONNXRUNTIME_LIBRARY counts, and then an installed \
           Python package onnxruntime.",
    apply: |settings, value| {
        if value.is_empty() {
            return Err(Refusal(String::from("the path is empty")));
        }
        settings.onnxruntime_library = Some(PathBuf::from(value));
        Ok(())
    },
};

const BACKEND_DIRECTORY: Flag = Flag {
    name: "backend-directory",
    argument: Some("string"),
    default: "/opt/tritonserver/backends",
    help: "Where to find backends that are not built in: the library of backend NAME is \
           NAME/libtriton_NAME.so in this directory, unless there is one beside the model.",
    apply: |settings, value| {
        if value.is_empty() {
            return Err(Refusal(String::from("--backend-directory can not be empty")));
        }
        settings.backend_directory = PathBuf::from(value);
        Ok(())
    },
};

const BACKEND_CONFIG: Flag = Flag {
    name: "backend-config",
    argument: Some("string,string=string"),
    default: "",
    help: "A setting as BACKEND,SETTING=VALUE, or SETTING=VALUE for all backends. The backend \
           onnxruntime has default-max-batch-size (4), enable-global-threadpool, \
           intra_op_thread_count and inter_op_thread_count; those of other built-in backends \
           and others of this one change nothing, and the log says so. Backends that are \
           libraries get theirs as they are.",
    apply: |settings, value| {
        let shape = "<backend name>,<setting>=<value> or <setting>=<value>";
        let malformed = || Refusal(format!("the format is {shape}. Got {value}"));
        let (backend, setting) = match value.split_once(',') {
            Some(("", _)) => return Err(malformed()),
            Some((backend, setting)) => (backend, setting),
            None => ("", value),
        };
        let (key, setting_value) = value::pair(setting, '=', shape).map_err(|_| malformed())?;
        settings.backend_settings.push(BackendSetting {
            backend: backend.to_owned(),
            key: key.to_owned(),
            value: setting_value.to_owned(),
        });
        Ok(())
    },
};

const REPOAGENT_DIRECTORY: Flag = Flag {
    name: "repoagent-directory",
    argument: Some("string"),
    default: "/opt/tritonserver/repoagents",
    help: "Where to find repository agents: DIRECTORY/NAME/libtritonrepoagent_NAME.so.",
    apply: |settings, value| {
        if value.is_empty() {
            return Err(Refusal(String::from("--repoagent-directory can not be empty")));
        }
        settings.repoagent_directory = PathBuf::from(value);
        Ok(())
    },
};
