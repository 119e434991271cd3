//! Reads the model in a directory: its configuration file, its versions and their files.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_policy::ModificationTimes;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::beneath::{self, SymlinkPolicy};
use crate::directory::ModelDirectory;
use crate::modification::DirectoryTimes;
use crate::remote::FoundModel;
use crate::root::Root;
use crate::version::version_number;
use crate::walk::ENTRIES_MAX;

/// The maximum size of a configuration, in bytes. A longer configuration is certainly a mistake.
const CONFIG_BYTES_MAX: u64 = 16 * 1024 * 1024;

pub(crate) const CONFIG_FILE: &str = "config.pbtxt";
const CONFIG_FOLDER: &str = "configs";

/// Model subdirectories that are not versions. The log doesn't mention them.
const OTHER_FOLDERS: [&str; 3] = ["warmup", "initial_state", CONFIG_FOLDER];

/// Options for reading a model's directory.
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// The name of a custom configuration. Models that have `configs/NAME.pbtxt` with this name use
    /// that file instead of `config.pbtxt`.
    pub config_name: Option<String>,
    /// The treatment of links in the models' directories.
    pub symlinks: SymlinkPolicy,
}

/// A model found by a scan.
#[derive(Clone, Debug)]
pub struct ScannedModel {
    /// The model's name: the directory's name, or the name that registration mapped to the
    /// directory.
    pub name: String,
    /// The model's namespace, if namespaces are on.
    pub namespace: Option<Arc<str>>,
    /// True if registration gave the model its name, in which case the name in its configuration is
    /// ignored.
    pub is_mapped: bool,
    /// The model's directory.
    pub directory: ModelDirectory,
    /// The model's configuration file, if any.
    pub config: Option<ConfigFile>,
    /// The model's versions, ascending.
    pub versions: Vec<ScannedVersion>,
    /// Notes for the log about the parts that the scan ignored.
    pub notes: Vec<String>,
    /// The modification times of the model's files.
    pub modified: ModificationTimes,
}

/// A configuration file and its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// The file's path, for messages.
    pub path: PathBuf,
    /// The file's contents.
    pub text: String,
}

/// A version of a model, found by a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedVersion {
    /// The version's number.
    pub number: i64,
    /// The sorted names of the version's files and directories. Names that aren't UTF-8 are left
    /// out, because no configuration could refer to them.
    pub files: Vec<String>,
}

impl ScannedModel {
    /// Reads the model in a directory outside the repositories, which a repository agent specified.
    ///
    /// # Errors
    ///
    /// Returns a description of the part that can't be read.
    pub fn read_directory(name: &str, path: &Path, options: &ScanOptions) -> Result<Self, String> {
        let directory = ModelDirectory::new(path.to_owned(), options.symlinks);
        directory.open().map_err(|error| format!("can't open '{}': {error}", path.display()))?;
        let config = read_config(&directory, options)?;
        Ok(Self { config, ..Self::without_config(name, directory)? })
    }

    /// Reads the model in this directory of a repository.
    pub(crate) fn read(root: &Root, name: &str, options: &ScanOptions) -> Result<Self, String> {
        let directory = root.model_directory(name, options.symlinks)?;
        // Read the times first, so that a file that changes while it is read counts as newer later.
        let times = DirectoryTimes::read(&directory);
        let config = read_config(&directory, options)?;
        let inside = config.as_ref().and_then(|file| file.path.strip_prefix(directory.path()).ok());
        let entry = inside.and_then(|path| path.components().next());
        let is_cut = times.is_cut;
        let modified = times.into_model_times(entry.map(|part| part.as_os_str()));
        let mut source = Self { config, modified, ..Self::without_config(name, directory)? };
        if is_cut {
            source.notes.push(format!(
                "model '{name}' has more than {ENTRIES_MAX} files; changes of the others are not \
                 noticed"
            ));
        }
        Ok(source)
    }

    /// Reads a model from an object store. Its versions come from the listing, because their files
    /// have not been copied yet.
    pub(crate) fn of_copy(
        name: &str,
        found: FoundModel,
        options: &ScanOptions,
    ) -> Result<Self, String> {
        let directory = ModelDirectory::of_copy(found.copy.clone());
        let config = read_config(&directory, options)?;
        let inside = config.as_ref().and_then(|file| file.path.strip_prefix(directory.path()).ok());
        let modified = found.modified(inside.and_then(Path::to_str));
        let shown = |file: ConfigFile| match file.path.strip_prefix(directory.path()) {
            Ok(inside) => ConfigFile { path: directory.display_path().join(inside), ..file },
            Err(_) => file,
        };
        let mut source = Self { modified, ..Self::empty(name, directory.clone()) };
        source.config = config.map(shown);
        let listing = &found.copy.listing;
        for folder in listing.directories.iter().filter(|folder| !folder.contains('/')) {
            if !OTHER_FOLDERS.contains(&folder.as_str()) {
                source.add_single_version_model(folder, || Ok(listing.names_in(folder)))?;
            }
        }
        source.versions.sort_by_key(|version| version.number);
        Ok(source)
    }

    /// Reads the model in this directory, without its configuration.
    pub(crate) fn without_config(name: &str, directory: ModelDirectory) -> Result<Self, String> {
        let mut source = Self::empty(name, directory);
        source.read_versions()?;
        Ok(source)
    }

    fn empty(name: &str, directory: ModelDirectory) -> Self {
        Self {
            name: name.to_owned(),
            namespace: None,
            is_mapped: false,
            directory,
            config: None,
            versions: Vec::new(),
            notes: Vec::new(),
            modified: ModificationTimes::default(),
        }
    }

    fn read_versions(&mut self) -> Result<(), String> {
        for entry in list(&self.directory, Path::new(""))? {
            let Some(name) = entry.to_str() else { continue };
            if OTHER_FOLDERS.contains(&name) || !is_directory(&self.directory, name)? {
                continue;
            }
            let directory = self.directory.clone();
            self.add_single_version_model(name, || {
                let names = list(&directory, Path::new(name))?;
                Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
            })?;
        }
        self.versions.sort_by_key(|version| version.number);
        Ok(())
    }

    /// Adds the version in one of the model's directories, or notes that the directory is not a
    /// version.
    fn add_single_version_model(
        &mut self,
        name: &str,
        files: impl FnOnce() -> Result<Vec<String>, String>,
    ) -> Result<(), String> {
        match version_number(name) {
            Ok(number) => self.versions.push(ScannedVersion { number, files: files()? }),
            Err(reason) => self.notes.push(format!(
                "ignore version directory '{}' of model '{}', {reason}",
                name.escape_debug(),
                self.name
            )),
        }
        Ok(())
    }
}

fn is_directory(model: &ModelDirectory, name: &str) -> Result<bool, String> {
    let located = model.open().and_then(|directory| Ok(directory.locate(Path::new(name))?));
    let kind = located.and_then(|handle| Ok(beneath::file_type(&handle)?));
    match (kind, version_number(name)) {
        (Ok(kind), _) => Ok(kind == FileType::Directory),
        // A broken link with a version's name makes the model invalid. Other broken links are
        // ignored.
        (Err(error), Ok(_)) => Err(describe(model, Path::new(name), error)),
        (Err(_), Err(_)) => Ok(false),
    }
}

fn list(model: &ModelDirectory, folder: &Path) -> Result<Vec<OsString>, String> {
    let listed = model.open().and_then(|directory| directory.list(folder));
    listed.map_err(|error| describe(model, folder, error))
}

fn read_config(
    model: &ModelDirectory,
    options: &ScanOptions,
) -> Result<Option<ConfigFile>, String> {
    if let Some(name) = &options.config_name {
        let custom = Path::new(CONFIG_FOLDER).join(format!("{name}.pbtxt"));
        if let Some(file) = read_optional(model, &custom)? {
            return Ok(Some(file));
        }
    }
    read_optional(model, Path::new(CONFIG_FILE))
}

fn read_optional(model: &ModelDirectory, path: &Path) -> Result<Option<ConfigFile>, String> {
    match model.open().and_then(|directory| directory.read_text(path, CONFIG_BYTES_MAX)) {
        Ok(text) => Ok(Some(ConfigFile { path: model.path().join(path), text })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(describe(model, path, error)),
    }
}

fn describe(model: &ModelDirectory, path: &Path, error: io::Error) -> String {
    let path = model.display_path().join(path);
    if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) {
        return format!("'{}' leads out of the model's directory", path.display());
    }
    format!("can't read '{}': {error}", path.display())
}
