//! Flags for backends and repository agents.

use std::path::PathBuf;

use super::flag::{Flag, no_default};
use super::settings::BackendSetting;
use super::value::{self, InvalidValue};
use super::{Group, Settings};

pub(super) const GROUP: Group = Group {
    title: "Backend",
    flags: &[&[
        Flag::other(
            "onnxruntime-library",
            "path",
            no_default,
            "ONNX Runtime's shared library, needed by models of the onnxruntime backend. \
             Otherwise the variable GALATEA_ONNXRUNTIME_LIBRARY counts, and then an installed \
             Python package onnxruntime.",
            |settings, value| library(&mut settings.onnxruntime_library, value),
        ),
        Flag::other(
            "openvino-library",
            "path",
            no_default,
            "OpenVINO's shared library (libopenvino_c.so), needed by models of the openvino \
             backend. Otherwise the variable GALATEA_OPENVINO_LIBRARY counts, and then an \
             installed Python package openvino.",
            |settings, value| library(&mut settings.openvino_library, value),
        ),
        Flag::other(
            "tensorflow-library",
            "path",
            no_default,
            "TensorFlow's shared library (libtensorflow_cc.so.2), needed by models of the \
             tensorflow backend. Otherwise the variable GALATEA_TENSORFLOW_LIBRARY counts, and \
             then an installed Python package tensorflow-cpu or tensorflow.",
            |settings, value| library(&mut settings.tensorflow_library, value),
        ),
        Flag::other(
            "torch-library",
            "path",
            no_default,
            "PyTorch's shared library (libtorch_cpu.so), needed by models of the pytorch backend. \
             Otherwise the variable GALATEA_TORCH_LIBRARY counts, and then an installed Python \
             package torch.",
            |settings, value| library(&mut settings.torch_library, value),
        ),
        Flag::boolean(
            "allow-native-models",
            "Whether the pytorch backend may load compiled models (model.pt2), which are native \
             code in the server's process. Load requests that bring files can't bring such models \
             in any case. Not one of Triton's flags.",
            |settings| &mut settings.allows_native_models,
        ),
        Flag::directory(
            "backend-directory",
            "Where to find backends that are not built in: the library of backend NAME is \
             NAME/libtriton_NAME.so in this directory, unless there is one beside the model.",
            |settings| &mut settings.backend_directory,
        ),
        Flag::other(
            "backend-config",
            "string,string=string",
            no_default,
            "A setting as BACKEND,SETTING=VALUE, or SETTING=VALUE for all backends. The backend \
             onnxruntime has default-max-batch-size (4), enable-global-threadpool, \
             intra_op_thread_count and inter_op_thread_count, openvino has \
             default-max-batch-size, and tensorflow has default-max-batch-size and \
             allow-soft-placement; other settings of built-in backends change nothing, and \
             the log says so. Backends that are libraries get theirs as they are.",
            backend_config,
        ),
        Flag::directory(
            "repoagent-directory",
            "Where to find repository agents: DIRECTORY/NAME/libtritonrepoagent_NAME.so.",
            |settings| &mut settings.repoagent_directory,
        ),
    ]],
};

/// Sets the path of a runtime's library.
fn library(path: &mut Option<PathBuf>, value: &str) -> Result<(), InvalidValue> {
    if value.is_empty() {
        return Err(InvalidValue(String::from("the path is empty")));
    }
    *path = Some(PathBuf::from(value));
    Ok(())
}

fn backend_config(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    let shape = "<backend name>,<setting>=<value> or <setting>=<value>";
    let malformed = || InvalidValue(format!("the format is {shape}. Got {value}"));
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
}
