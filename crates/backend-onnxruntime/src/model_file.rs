//! The model's file, which may differ on GPUs of certain compute capabilities.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use galatea_backend::{ModelFiles, misnamed_file_hint_in};
use galatea_config::{InstanceKind, ModelSpec};
use galatea_infer::{Code, Status};

use crate::accelerators::Processor;

/// The model's files by processor.
#[derive(Debug)]
pub(crate) struct ModelPaths {
    default: Option<PathBuf>,
    on_gpus: BTreeMap<u32, PathBuf>,
}

impl ModelPaths {
    /// Finds the files of all processors that the model has instances on.
    pub(crate) fn new(spec: &ModelSpec, files: &dyn ModelFiles) -> Result<Self, Status> {
        let groups = spec.instance_groups.iter();
        let gpus = groups
            .filter(|group| group.kind == InstanceKind::Gpu)
            .flat_map(|group| &group.gpus)
            .filter_map(|&gpu| u32::try_from(gpu).ok());
        let mut on_gpus = BTreeMap::new();
        for gpu in gpus {
            let path = model_path(files, spec.model_filename(Some(gpu)), &spec.name)?;
            on_gpus.insert(gpu, path);
        }
        let on_cpus = on_gpus.is_empty()
            || spec.instance_groups.iter().any(|group| group.kind != InstanceKind::Gpu);
        let default = || model_path(files, spec.model_filename(None), &spec.name);
        Ok(Self { default: on_cpus.then(default).transpose()?, on_gpus })
    }

    /// The file for a processor.
    pub(crate) fn of(&self, processor: Processor) -> Option<&Path> {
        let path = match processor {
            Processor::Cpu => self.default.as_ref(),
            Processor::Gpu(gpu) => self.on_gpus.get(&gpu),
        };
        path.map(PathBuf::as_path)
    }
}

/// The path of the model's file. A directory holds the file under the default name, next to the
/// files with its weights.
pub(crate) fn model_path(
    files: &dyn ModelFiles,
    name: &str,
    model: &str,
) -> Result<PathBuf, Status> {
    const DEFAULT: &str = "model.onnx";
    let name = if name.is_empty() { DEFAULT } else { name };
    let unable =
        |status: Status| status.prefixed(format!("unable to find '{name}' for model '{model}': "));
    let path = files.resolve(name).map_err(|status| {
        let unable = unable(status);
        let advice = match unable.code() {
            Code::NotFound => misnamed_file_hint_in(files.version_path(), name),
            _ => String::new(),
        };
        Status::new(unable.code(), format!("{}{advice}", unable.message()))
    })?;
    if !path.is_dir() {
        return Ok(path);
    }
    files.resolve(&format!("{name}/{DEFAULT}")).map_err(unable)
}
