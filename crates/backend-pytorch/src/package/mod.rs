//! A package that AOTInductor created (`model.pt2`): a ZIP archive that contains the model as a
//! shared library, its source, and a description of the machine that it was compiled for.

mod formula;
mod metadata;
mod predictable;
mod results;
mod shapes;
mod tensor;
mod weights;
mod writes;

use std::fs::{DirBuilder, File};
use std::io::{BufReader, Read};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use galatea_backend::is_library_truncated;
use galatea_infer::Status;
use zip::ZipArchive;

pub(crate) use metadata::{Metadata, proxy_operations};
pub(crate) use predictable::is_predictable;
pub(crate) use results::{CompiledResult, compiled_results};
pub(crate) use shapes::{CompiledInput, compiled_inputs, mismatch};
use weights::WeightFiles;
pub(crate) use weights::WeightsPlace;

/// The model's directory in the package, under the name that Triton and PyTorch use.
const MODEL_FOLDER: &str = "data/aotinductor/model/";

/// The maximum size of a text. The source of a large model takes some ten megabytes.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// An open package.
pub(crate) struct Package {
    archive: ZipArchive<BufReader<File>>,
    path: PathBuf,
    /// The names of the model's files in the archive.
    files: Vec<String>,
    /// A file with one of the weights, if they are in separate files.
    separate_weights: Option<String>,
    /// True if the package also has an exported program, to which such weights may belong.
    is_exported: bool,
}

/// A package's library, in a directory that is removed when the value is dropped.
pub(crate) struct ExtractedLibrary {
    folder: PathBuf,
    pub(crate) path: PathBuf,
}

impl Package {
    /// Opens the package at `path`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the file isn't a package with a compiled model.
    pub(crate) fn open(path: &Path) -> Result<Self, Status> {
        let file = File::open(path).map_err(|error| unreadable(path, &error.to_string()))?;
        let archive = ZipArchive::new(BufReader::new(file))
            .map_err(|error| unreadable(path, &format!("it is no ZIP archive ({error})")))?;
        let names = archive.file_names().filter_map(Result::ok);
        let names: Vec<String> = names.map(|name| name.into_owned()).collect();
        let is_exported = names.iter().any(|name| name.contains("models/"));
        let weights = names.iter().find(|name| weights::is_list(name)).cloned();
        let files: Vec<String> = names.into_iter().filter(|name| is_of_model(name)).collect();
        if !files.iter().any(|name| name.ends_with(".so")) {
            let reason = if is_exported {
                "it has an exported program, but no compiled model: make it with \
                 `torch._inductor.aoti_compile_and_package`, or set `runtime: \"model.py\"`"
            } else {
                "it has no library of a model in 'data/aotinductor/model'"
            };
            return Err(unreadable(path, reason));
        }
        Ok(Self { archive, path: path.to_owned(), files, separate_weights: weights, is_exported })
    }

    /// The description of the machine that the model was compiled for; empty if there is none.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it can't be read.
    pub(crate) fn metadata(&mut self) -> Result<Metadata, Status> {
        let Some(text) = self.text("_metadata.json")? else { return Ok(Metadata::default()) };
        Metadata::parse(&text)
            .map_err(|error| unreadable(&self.path, &format!("its metadata is wrong ({error})")))
    }

    /// The operations that the model's library leaves to PyTorch's dispatcher, which has no C
    /// interface.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the list can't be read.
    pub(crate) fn proxy_operations(&mut self) -> Result<Vec<String>, Status> {
        let Some(text) = self.text(".wrapper.json")? else { return Ok(Vec::new()) };
        proxy_operations(&text).map_err(|error| {
            unreadable(&self.path, &format!("its list of operations is wrong ({error})"))
        })
    }

    /// The source of the model's library, if the package has it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it can't be read.
    pub(crate) fn source(&mut self) -> Result<Option<String>, Status> {
        match self.text(".wrapper.cpp")? {
            Some(source) => Ok(Some(source)),
            // Packages from PyTorch versions before 2.7 have one source file.
            None => self.text(".cpp"),
        }
    }

    /// The source of the model's loops, if it isn't part of [`Package::source`].
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it can't be read.
    pub(crate) fn kernels(&mut self) -> Result<Option<String>, Status> {
        self.text(".kernel.cpp")
    }

    /// The location of the model's weights. `source` is the package's source.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the weights aren't in the package.
    pub(crate) fn weights_place(&self, source: Option<&str>) -> Result<WeightsPlace, Status> {
        let has = |ending: &str| self.files.iter().any(|name| name.ends_with(ending));
        let files = WeightFiles {
            has_blob: has(weights::BLOB_ENDING),
            has_pickled_list: has(weights::PICKLED_LIST),
            separate: self.separate_weights.as_deref().filter(|_| !self.is_exported),
        };
        let held = source.and_then(weights::library_holds_weights);
        weights::place(held, files).map_err(|reason| unreadable(&self.path, &reason))
    }

    /// Returns true if only a Python program can read the model's weights.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the package can't be read.
    pub(crate) fn has_pickled_weights(&mut self) -> Result<bool, Status> {
        if self.separate_weights.is_none() {
            return Ok(false);
        }
        let source = self.source()?;
        Ok(self.weights_place(source.as_deref()) == Ok(WeightsPlace::Pickled))
    }

    /// Reads the file that contains all weights. `read` gets the file's content and its size.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if they can't be read.
    pub(crate) fn read_blob<T>(
        &mut self,
        read: impl FnOnce(&mut dyn Read, u64) -> std::io::Result<T>,
    ) -> Result<T, Status> {
        let name = self.files.iter().find(|name| name.ends_with(weights::BLOB_ENDING));
        let found =
            name.ok_or_else(|| String::from("it has no file of weights")).and_then(|name| {
                let mut entry = self.archive.by_name(name).map_err(|error| error.to_string())?;
                let size = entry.size();
                read(&mut entry, size).map_err(|error| format!("'{name}' is unreadable ({error})"))
            });
        found.map_err(|reason| unreadable(&self.path, &reason))
    }

    /// Writes the model's library to a new directory in `parent`, which only this user can read.
    ///
    /// # Errors
    ///
    /// The reason why the library can't be read or written.
    pub(crate) fn extract(&mut self, parent: &Path) -> Result<ExtractedLibrary, Status> {
        let failed = |error: &dyn std::fmt::Display| {
            Status::unavailable(format!("can't extract '{}': {error}", self.path.display()))
        };
        let name = self.files.iter().find(|name| name.ends_with(".so")).cloned();
        let name = name.ok_or_else(|| failed(&"there is no library"))?;
        let folder = private_folder(parent).map_err(|error| {
            failed(&format_args!("no directory in '{}' ({error})", parent.display()))
        })?;
        let path = folder.join("model.so");
        let extracted = ExtractedLibrary { folder, path };
        let mut entry = self.archive.by_name(&name).map_err(|error| failed(&error))?;
        let mut file = File::create_new(&extracted.path).map_err(|error| failed(&error))?;
        std::io::copy(&mut entry, &mut file).map_err(|error| failed(&error))?;
        if is_library_truncated(&extracted.path) {
            return Err(failed(&"the model's library is cut short"));
        }
        Ok(extracted)
    }

    /// The text of the model's file whose name ends with `ending`, if there is one.
    fn text(&mut self, ending: &str) -> Result<Option<String>, Status> {
        let Some(name) = self.files.iter().find(|name| name.ends_with(ending)) else {
            return Ok(None);
        };
        let mut text = String::new();
        let read =
            self.archive.by_name(name).map_err(|error| error.to_string()).and_then(|entry| {
                let limited = entry.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text);
                limited.map_err(|error| error.to_string())
            });
        read.map_err(|error| unreadable(&self.path, &format!("'{name}' is unreadable ({error})")))?;
        if text.len() as u64 > TEXT_BYTES_MAX {
            let reason = format!("'{name}' has more than {TEXT_BYTES_MAX} bytes");
            return Err(unreadable(&self.path, &reason));
        }
        Ok(Some(text))
    }
}

impl Drop for ExtractedLibrary {
    fn drop(&mut self) {
        // Files that can't be removed are left to the system, which clears its temporary directory.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn unreadable(path: &Path, reason: &str) -> Status {
    let path = path.display();
    Status::invalid_argument(format!("'{path}' is no package of a compiled model: {reason}"))
}

/// Returns true if the file in the archive belongs to the model. In newer packages, all files are
/// in one directory.
fn is_of_model(name: &str) -> bool {
    let (before, file) = name.rsplit_once(MODEL_FOLDER).unwrap_or(("no", ""));
    (before.is_empty() || before.ends_with('/')) && !file.is_empty()
}

/// Creates a directory whose path has never been used before. If two libraries have the same path,
/// the loader treats them as one, even if the first file is gone.
pub(crate) fn private_folder(parent: &Path) -> std::io::Result<PathBuf> {
    /// The number of names to try.
    const TRIALS: u32 = 1000;
    let mut last = std::io::ErrorKind::AlreadyExists.into();
    for _ in 0..TRIALS {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let folder = parent.join(format!("galatea-pytorch-{}-{time}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests;
