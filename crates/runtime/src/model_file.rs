//! The model's files. GPUs with certain compute capabilities may use different ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use galatea_backend::{ModelFiles, misnamed_file_hint_in};
use galatea_config::{InstanceKind, ModelSpec};
use galatea_infer::{Code, Status};

use crate::source::CpuOrGpu;

/// The model's files by processor.
#[derive(Debug)]
pub struct ModelFilesByProcessor {
    default: Option<PathBuf>,
    on_gpus: BTreeMap<u32, PathBuf>,
}

impl ModelFilesByProcessor {
    /// Finds the files for all processors that the model has instances on. If the configuration
    /// doesn't specify a name, the file is called `default_name`.
    ///
    /// # Errors
    ///
    /// The same as for [`model_path`].
    pub fn new(
        spec: &ModelSpec,
        files: &dyn ModelFiles,
        default_name: &str,
    ) -> Result<Self, Status> {
        let find = |name: &str| model_path(files, name, default_name, &spec.name);
        let groups = spec.instance_groups.iter();
        let gpus = groups
            .filter(|group| group.kind == InstanceKind::Gpu)
            .flat_map(|group| &group.gpus)
            .filter_map(|&gpu| u32::try_from(gpu).ok());
        let mut on_gpus = BTreeMap::new();
        for gpu in gpus {
            let path = find(spec.model_filename(Some(gpu)))?;
            on_gpus.insert(gpu, path);
        }
        let on_cpus = on_gpus.is_empty()
            || spec.instance_groups.iter().any(|group| group.kind != InstanceKind::Gpu);
        let default = || find(spec.model_filename(None));
        Ok(Self { default: on_cpus.then(default).transpose()?, on_gpus })
    }

    /// The file for a processor.
    ///
    /// # Errors
    ///
    /// `Internal` if the model has no instances on the processor.
    pub fn for_processor(&self, processor: CpuOrGpu) -> Result<&Path, Status> {
        let path = match processor {
            CpuOrGpu::Cpu => self.default.as_ref(),
            CpuOrGpu::Gpu(gpu) => self.on_gpus.get(&gpu),
        };
        path.map(PathBuf::as_path).ok_or_else(|| {
            Status::internal(format!("the model has no group of instances on {processor:?}"))
        })
    }
}

/// The path of the model's file. `name` is the name in the configuration; if it is empty, the
/// default name is used. If the path is a directory, the file in it has the default name, and its
/// weights are stored next to it.
///
/// # Errors
///
/// A status that states the file, the model, and the file that was probably meant.
pub fn model_path(
    files: &dyn ModelFiles,
    name: &str,
    default_name: &str,
    model: &str,
) -> Result<PathBuf, Status> {
    let path = model_entry(files, name, default_name, model)?;
    if !path.is_dir() {
        return Ok(path);
    }
    let name = if name.is_empty() { default_name } else { name };
    let inside = files.resolve(&format!("{name}/{default_name}"));
    inside.map_err(|status| not_found(status, name, model))
}

/// The path of a model that may be an entire directory. `name` is the name in the configuration;
/// if it is empty, the default name is used.
///
/// # Errors
///
/// The same as for [`model_path`].
pub fn model_entry(
    files: &dyn ModelFiles,
    name: &str,
    default_name: &str,
    model: &str,
) -> Result<PathBuf, Status> {
    let name = if name.is_empty() { default_name } else { name };
    files.resolve(name).map_err(|status| {
        let status = not_found(status, name, model);
        let advice = match status.code() {
            Code::NotFound => misnamed_file_hint_in(files.version_path(), name),
            _ => String::new(),
        };
        Status::new(status.code(), format!("{}{advice}", status.message()))
    })
}

fn not_found(status: Status, name: &str, model: &str) -> Status {
    status.prefixed(format!("unable to find '{name}' for model '{model}': "))
}
