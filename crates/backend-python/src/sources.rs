//! The worker's source files, which are embedded in the program.

use std::path::PathBuf;

use galatea_backend::ModelFiles;
use galatea_infer::{Code, Status};
use serde_json::{Value, json};

/// The source of a module in `workers/python`.
macro_rules! source {
    ($name:literal, $file:literal) => {
        ($name, include_str!(concat!("../../../workers/python/", $file)))
    };
}

/// The code that a worker executes first.
pub(crate) const BOOTSTRAP: &str = include_str!("../../../workers/python/bootstrap.py");

/// The names and sources of the modules.
const MODULES: &[(&str, &str)] = &[
    source!("galatea_worker", "galatea_worker/__init__.py"),
    source!("galatea_worker.arena", "galatea_worker/arena.py"),
    source!("galatea_worker.arrays", "galatea_worker/arrays.py"),
    source!("galatea_worker.bls", "galatea_worker/bls.py"),
    source!("galatea_worker.channel", "galatea_worker/channel.py"),
    source!("galatea_worker.children", "galatea_worker/children.py"),
    source!("galatea_worker.config", "galatea_worker/config.py"),
    source!("galatea_worker.control", "galatea_worker/control.py"),
    source!("galatea_worker.coroutines", "galatea_worker/coroutines.py"),
    source!("galatea_worker.dlpack", "galatea_worker/dlpack.py"),
    source!("galatea_worker.enums", "galatea_worker/enums.py"),
    source!("galatea_worker.errors", "galatea_worker/errors.py"),
    source!("galatea_worker.execute", "galatea_worker/execute.py"),
    source!("galatea_worker.forms", "galatea_worker/forms.py"),
    source!("galatea_worker.function", "galatea_worker/function.py"),
    source!("galatea_worker.gpu", "galatea_worker/gpu.py"),
    source!("galatea_worker.helpers", "galatea_worker/helpers.py"),
    source!("galatea_worker.hints", "galatea_worker/hints.py"),
    source!("galatea_worker.lifeline", "galatea_worker/lifeline.py"),
    source!("galatea_worker.logger", "galatea_worker/logger.py"),
    source!("galatea_worker.main", "galatea_worker/main.py"),
    source!("galatea_worker.memory", "galatea_worker/memory.py"),
    source!("galatea_worker.metrics", "galatea_worker/metrics.py"),
    source!("galatea_worker.model", "galatea_worker/model.py"),
    source!("galatea_worker.native", "galatea_worker/native.py"),
    source!("galatea_worker.numbers", "galatea_worker/numbers.py"),
    source!("galatea_worker.readiness", "galatea_worker/readiness.py"),
    source!("galatea_worker.request", "galatea_worker/request.py"),
    source!("galatea_worker.response", "galatea_worker/response.py"),
    source!("galatea_worker.sender", "galatea_worker/sender.py"),
    source!("galatea_worker.side", "galatea_worker/side.py"),
    source!("galatea_worker.state", "galatea_worker/state.py"),
    source!("galatea_worker.template", "galatea_worker/template.py"),
    source!("galatea_worker.tensor", "galatea_worker/tensor.py"),
    source!("galatea_worker.values", "galatea_worker/values.py"),
    source!("galatea_worker.wire", "galatea_worker/wire.py"),
    source!("c_python_backend_utils", "c_python_backend_utils.py"),
    source!("triton_python_backend_utils", "triton_python_backend_utils.py"),
];

/// A script of the program that executes models in workers instead of a file.
#[derive(Copy, Clone, Debug)]
pub struct SuppliedScript {
    /// The module with the function that creates a model.
    pub(crate) module: &'static str,
    modules: &'static [(&'static str, &'static str)],
    pub(crate) instances: InstanceForm,
}

/// The form of a model's instances.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum InstanceForm {
    /// Each instance has a worker.
    Worker,
    /// All instances share a worker, in which each is a slot for a request. `count` is their number
    /// if the configuration doesn't specify it.
    Slot { count: u32 },
}

/// The number of slots of a model whose configuration doesn't specify it, as in llama.cpp's server.
const SLOTS_DEFAULT: u32 = 4;

impl SuppliedScript {
    /// Executes PyTorch models.
    pub const PYTORCH: Self = Self {
        module: "galatea_pytorch",
        modules: &[
            source!("galatea_pytorch", "galatea_pytorch/__init__.py"),
            source!("galatea_pytorch.batches", "galatea_pytorch/batches.py"),
            source!("galatea_pytorch.classes", "galatea_pytorch/classes.py"),
            source!("galatea_pytorch.files", "galatea_pytorch/files.py"),
            source!("galatea_pytorch.install", "galatea_pytorch/install.py"),
            source!("galatea_pytorch.options", "galatea_pytorch/options.py"),
            source!("galatea_pytorch.ordered", "galatea_pytorch/ordered.py"),
            source!("galatea_pytorch.package", "galatea_pytorch/package.py"),
            source!("galatea_pytorch.runtime", "galatea_pytorch/runtime.py"),
            source!("galatea_pytorch.script", "galatea_pytorch/script.py"),
        ],
        instances: InstanceForm::Worker,
    };

    /// Generates text with llama.cpp.
    pub const LLAMACPP: Self = Self {
        module: "galatea_llamacpp",
        modules: &[
            source!("galatea_llamacpp", "galatea_llamacpp/__init__.py"),
            source!("galatea_llamacpp.engine", "galatea_llamacpp/engine.py"),
            source!("galatea_llamacpp.gguf", "galatea_llamacpp/gguf.py"),
            source!("galatea_llamacpp.meters", "galatea_llamacpp/meters.py"),
            source!("galatea_llamacpp.model", "galatea_llamacpp/model.py"),
            source!("galatea_llamacpp.processors", "galatea_llamacpp/processors.py"),
            source!("galatea_llamacpp.replies", "galatea_llamacpp/replies.py"),
            source!("galatea_llamacpp.sampling", "galatea_llamacpp/sampling.py"),
            source!("galatea_llamacpp.settings", "galatea_llamacpp/settings.py"),
            source!("galatea_llamacpp.tensors", "galatea_llamacpp/tensors.py"),
        ],
        instances: InstanceForm::Slot { count: SLOTS_DEFAULT },
    };

    /// The script in the form that workers receive.
    pub(crate) fn to_json(self) -> Value {
        json!({ "module": self.module, "sources": object(self.modules) })
    }
}

/// The path of the file that a supplied script reads. A `model.py` may be anywhere, as in Triton,
/// because it can open any file anyway. A client that names a file for a supplied script must not
/// reach files of the server.
///
/// A missing file isn't an error here: the script looks for others, and reports which.
pub(crate) fn model_path(files: &dyn ModelFiles, name: &str) -> Result<PathBuf, Status> {
    match files.resolve(name) {
        Err(status) if status.code() == Code::NotFound => Ok(files.version_path().join(name)),
        resolved => resolved,
    }
}

/// The modules as a JSON object.
pub(crate) fn bundle() -> String {
    object(MODULES).to_string()
}

fn object(modules: &[(&str, &str)]) -> Value {
    let modules = modules.iter();
    modules.map(|(name, text)| ((*name).to_owned(), Value::from(*text))).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Has `known`, and refuses names with a dot at the beginning.
    struct Files;

    impl ModelFiles for Files {
        fn model_path(&self) -> &Path {
            Path::new("/model")
        }

        fn version(&self) -> i64 {
            1
        }

        fn version_path(&self) -> &Path {
            Path::new("/model/1")
        }

        fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
            match name {
                "known" => Ok(self.version_path().join(name)),
                _ if name.starts_with('.') => Err(Status::invalid_argument("leads out")),
                _ => Err(Status::not_found("missing")),
            }
        }
    }

    #[test]
    fn the_file_of_a_supplied_script_is_in_the_models_directory() {
        for name in ["known", "missing"] {
            assert_eq!(model_path(&Files, name), Ok(Path::new("/model/1").join(name)));
        }
        assert_eq!(
            model_path(&Files, "../x").map_err(|one| one.code()),
            Err(Code::InvalidArgument)
        );
    }
}
