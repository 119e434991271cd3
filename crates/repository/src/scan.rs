//! What the repositories hold.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use galatea_policy::{ModificationTimes, fits_namespaces, model_id};
use rustix::fs::FileType;
use rustix::io::Errno;
use thiserror::Error;

use crate::directory::ModelDirectory;
use crate::roots::{Place, RegisterError, Roots};
use crate::stamp::Times;
use crate::{beneath, check_model_name};

/// A longer configuration is a mistake, and not worth the memory.
const CONFIG_BYTES_MAX: u64 = 16 * 1024 * 1024;

const CONFIG_FILE: &str = "config.pbtxt";
const CONFIG_FOLDER: &str = "configs";

/// Directories of a model that are no versions and need no mention.
const KNOWN_FOLDERS: [&str; 3] = ["warmup", "initial_state", CONFIG_FOLDER];

/// Places of models that Triton knows and this server can't read.
const CLOUD_SCHEMES: [&str; 3] = ["s3://", "gs://", "as://"];

/// A repository that can't be used at all.
#[derive(Debug, Error)]
pub enum RepositoryError {
    /// It is in an object store.
    #[error(
        "model repository '{path}' is in an object store, which is not supported yet: \
         copy it to a local directory"
    )]
    Cloud {
        /// The address.
        path: String,
    },
    /// It can't be opened as a directory.
    #[error("can't open model repository '{path}': {source}")]
    Open {
        /// The path.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// What keeps a model from being loaded, or a repository from being listed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// A repository can't be listed.
    #[error("failed to poll model repository '{path}': {reason}")]
    Repository {
        /// Its path.
        path: String,
        /// Why.
        reason: String,
    },
    /// Several repositories have a model of that name; none of them counts.
    #[error("failed to poll model '{name}': not unique across all model repositories")]
    Duplicate {
        /// The model's name.
        name: String,
    },
    /// A model's directory can't be read.
    #[error("failed to poll model '{name}': {reason}")]
    Model {
        /// The model's name, or id with namespaces; escaped where it isn't a possible
        /// one.
        name: String,
        /// Why.
        reason: String,
    },
}

/// What a scan looks for.
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// Models that have `configs/NAME.pbtxt` with this name use it instead of
    /// their `config.pbtxt`.
    pub config_name: Option<String>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Scan {
    /// The models, sorted by name.
    pub models: Vec<ModelSource>,
    /// What could not be taken.
    pub problems: Vec<Problem>,
}

/// A model as the repository holds it.
#[derive(Clone, Debug)]
pub struct ModelSource {
    /// Its name, which is its directory's unless it was given one.
    pub name: String,
    /// Its namespace, if there are any.
    pub namespace: Option<Arc<str>>,
    /// Whether it was given its name when its repository was registered; what its
    /// configuration says doesn't count then.
    pub is_named: bool,
    /// Its directory.
    pub directory: ModelDirectory,
    /// Its configuration; `None` if it has none.
    pub config: Option<ConfigFile>,
    /// Its versions, ascending.
    pub versions: Vec<VersionSource>,
    /// What was left out, for the log.
    pub notes: Vec<String>,
    /// When its files changed last.
    pub modified: ModificationTimes,
}

/// What a look for one model found.
#[derive(Debug)]
pub enum Finding {
    /// It is in no repository.
    Missing,
    /// It is there; with namespaces, perhaps in several repositories.
    Models(Vec<ModelSource>),
    /// It is there, but can't be taken.
    Problem(Problem),
}

/// A name that a directory in a repository has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The model's namespace, if there are any.
    pub namespace: Option<Arc<str>>,
    /// The model's name.
    pub name: String,
    /// Whether several repositories have it.
    pub is_duplicate: bool,
}

/// A configuration file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Where it is, for messages.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
}

/// A version of a model as the repository holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionSource {
    /// Its number.
    pub number: i64,
    /// The names of the files and directories in it, sorted. Names that
    /// aren't UTF-8 are left out: no configuration could ask for them.
    pub files: Vec<String>,
}

/// The model repositories of a server. Every look sees them as they were when it
/// began.
#[derive(Debug)]
pub struct Repository {
    roots: RwLock<Arc<Roots>>,
    /// Whether repositories may have models of the same name.
    has_namespaces: bool,
}

#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    handle: Arc<OwnedFd>,
}

impl Repository {
    /// Opens the directories; the same path given twice counts once.
    ///
    /// # Errors
    ///
    /// If one of them is in an object store or can't be opened.
    pub fn open<P: Into<PathBuf>>(
        paths: impl IntoIterator<Item = P>,
    ) -> Result<Self, RepositoryError> {
        let mut paths: Vec<PathBuf> = paths.into_iter().map(Into::into).collect();
        paths.sort();
        paths.dedup();
        let roots = paths.into_iter().map(|path| Root::open(path).map(Arc::new));
        let roots = Roots::of(roots.collect::<Result<_, _>>()?);
        Ok(Self { roots: RwLock::new(Arc::new(roots)), has_namespaces: false })
    }

    /// The same repositories, each a namespace of its own: they may have models of
    /// the same name. A namespace is called by the repository's path as it was given.
    #[must_use]
    pub fn with_namespaces(self) -> Self {
        Self { has_namespaces: true, ..self }
    }

    /// Adds a repository. `names` are pairs of a directory in it and the name that
    /// its model has in place of the directory's; a directory may have several.
    ///
    /// # Errors
    ///
    /// If it can't be opened or is there already, or one of the names is taken or
    /// impossible.
    pub fn register(
        &self,
        path: impl Into<PathBuf>,
        names: &[(String, String)],
    ) -> Result<(), RegisterError> {
        let root = Root::open(path.into()).map_err(|error| match error {
            RepositoryError::Cloud { .. } => RegisterError::Unsupported(error),
            RepositoryError::Open { path, .. } => RegisterError::Missing { path },
        })?;
        if let Some((_, name)) = names.iter().find(|(_, name)| !self.allows(name)) {
            let (path, reason) = (root.path.display().to_string(), unfit(name));
            return Err(RegisterError::Name { path, reason });
        }
        self.change(|roots| roots.register(root, names))
    }

    /// Takes a repository away. Models that were loaded from it stay as they are.
    ///
    /// # Errors
    ///
    /// If it isn't there.
    pub fn unregister(&self, path: impl AsRef<Path>) -> Result<(), RegisterError> {
        self.change(|roots| roots.unregister(path.as_ref()))
    }

    /// Whether directories of a repository are called like this by registration.
    #[must_use]
    pub fn is_given_name(&self, name: &str) -> bool {
        self.roots().is_given(name)
    }

    /// The namespace of models whose files a client brings.
    #[must_use]
    pub fn namespace_of_files(&self) -> Option<Arc<str>> {
        self.has_namespaces.then(|| Arc::from(""))
    }

    /// Whether a model could have this name beside others of other namespaces.
    fn allows(&self, name: &str) -> bool {
        !self.has_namespaces || fits_namespaces(name)
    }

    /// The namespace of a repository's models, if there are any.
    fn namespace(&self, root: &Root) -> Option<Arc<str>> {
        self.has_namespaces.then(|| root.path.display().to_string().into())
    }

    /// What directories of a repository stand for; what can't be is a problem.
    fn places(
        &self,
        roots: &Roots,
        root: &Arc<Root>,
        problems: &mut Vec<Problem>,
    ) -> io::Result<Vec<Place>> {
        let namespace = self.namespace(root);
        let impossible = |name: String, reason| {
            let name = model_id(namespace.as_deref(), &name).to_string();
            Problem::Model { name, reason }
        };
        let mut unnamed = Vec::new();
        let directories = root.model_names(&mut unnamed)?;
        problems.extend(unnamed.into_iter().map(|(name, reason)| impossible(name, reason)));
        let places = directories.iter().flat_map(|directory| roots.places_of(root, directory));
        let (fit, others): (Vec<_>, Vec<_>) = places.partition(|place| self.allows(&place.name));
        let others = others
            .into_iter()
            .map(|place| impossible(place.name.replace(':', "\\:"), unfit(&place.name)));
        problems.extend(others);
        Ok(fit)
    }

    fn source(&self, place: &Place, options: &ScanOptions) -> Result<ModelSource, String> {
        let source = place.model(options)?;
        Ok(ModelSource { namespace: self.namespace(&place.root), ..source })
    }

    fn roots(&self) -> Arc<Roots> {
        self.roots.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Roots) -> Result<(), RegisterError>,
    ) -> Result<(), RegisterError> {
        let mut roots = self.roots.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut roots))
    }

    /// The names of the models of all repositories, sorted, with the escaped ones
    /// of directories whose names no model may have; what can't be listed is left
    /// out.
    #[must_use]
    pub fn names(&self) -> Vec<Listed> {
        let mut places: BTreeMap<(Option<Arc<str>>, String), usize> = BTreeMap::new();
        let mut impossible = Vec::new();
        let roots = self.roots();
        for root in roots.iter() {
            for place in self.places(&roots, root, &mut impossible).unwrap_or_default() {
                *places.entry((self.namespace(root), place.name)).or_default() += 1;
            }
        }
        for problem in impossible {
            if let Problem::Model { name, .. } = problem {
                places.entry((None, name)).or_insert(1);
            }
        }
        let listed =
            |((namespace, name), count)| Listed { namespace, name, is_duplicate: count > 1 };
        places.into_iter().map(listed).collect()
    }

    /// Looks for one model.
    #[must_use]
    pub fn find(&self, name: &str, options: &ScanOptions) -> Finding {
        let problem = |reason| Finding::Problem(Problem::Model { name: name.to_owned(), reason });
        if let Err(error) = check_model_name(name) {
            return problem(error.to_string());
        }
        if !self.allows(name) {
            return problem(unfit(name));
        }
        let places = self.roots().places(name);
        match places.len() {
            0 => Finding::Missing,
            2.. if !self.has_namespaces => {
                Finding::Problem(Problem::Duplicate { name: name.to_owned() })
            }
            _ => {
                let sources = places.iter().map(|place| self.source(place, options));
                sources.collect::<Result<_, _>>().map_or_else(problem, Finding::Models)
            }
        }
    }

    /// Lists the models of all repositories.
    #[must_use]
    pub fn scan(&self, options: &ScanOptions) -> Scan {
        let mut scan = Scan::default();
        let mut places: BTreeMap<(Option<Arc<str>>, String), Vec<Place>> = BTreeMap::new();
        let roots = self.roots();
        for root in roots.iter() {
            match self.places(&roots, root, &mut scan.problems) {
                Ok(found) => found.into_iter().for_each(|place| {
                    let id = (self.namespace(root), place.name.clone());
                    places.entry(id).or_default().push(place);
                }),
                Err(error) => scan.problems.push(Problem::Repository {
                    path: root.path.display().to_string(),
                    reason: error.to_string(),
                }),
            }
        }
        for ((namespace, name), places) in places {
            let [place] = places.as_slice() else {
                scan.problems.push(Problem::Duplicate { name });
                continue;
            };
            match self.source(place, options) {
                Ok(model) => scan.models.push(model),
                Err(reason) => {
                    let name = model_id(namespace.as_deref(), &name).to_string();
                    scan.problems.push(Problem::Model { name, reason });
                }
            }
        }
        scan
    }
}

impl Root {
    fn open(path: PathBuf) -> Result<Self, RepositoryError> {
        let text = path.display().to_string();
        if CLOUD_SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
            return Err(RepositoryError::Cloud { path: text });
        }
        match beneath::open_directory(&path) {
            Ok(handle) => Ok(Self { path, handle: Arc::new(handle) }),
            Err(source) => Err(RepositoryError::Open { path: text, source }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is an entry that is, or may be, a directory of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        rustix::fs::statat(&self.handle, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok()
            && !self.is_no_directory(OsStr::new(name))
    }

    /// Names of entries that are, or may be, directories of models.
    fn model_names(&self, problems: &mut Vec<(String, String)>) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in beneath::entries(self.handle.as_fd())? {
            if self.is_no_directory(&entry) {
                continue;
            }
            let name = entry.to_string_lossy();
            let possible = entry.to_str().map_or_else(
                || Err(String::from("its name isn't UTF-8")),
                |name| check_model_name(name).map_err(|error| error.to_string()),
            );
            match possible {
                Ok(()) => names.push(name.into_owned()),
                Err(reason) => problems.push((name.escape_debug().to_string(), reason)),
            }
        }
        Ok(names)
    }

    /// Whether an entry is certainly something else than a directory, such
    /// as a text file beside the models. What can't be examined may be one.
    fn is_no_directory(&self, entry: &OsStr) -> bool {
        let status = rustix::fs::statat(&self.handle, entry, rustix::fs::AtFlags::empty());
        status.is_ok_and(|status| FileType::from_raw_mode(status.st_mode) != FileType::Directory)
    }

    fn model(&self, name: &str, options: &ScanOptions) -> Result<ModelSource, String> {
        let directory = self
            .model_directory(name)
            .map_err(|error| format!("can't open '{}': {error}", self.path.join(name).display()))?;
        // Times come first: what changes while it is read is newer then.
        let times = Times::of(&directory);
        let config = config_file(&directory, options)?;
        let inside = config.as_ref().and_then(|file| file.path.strip_prefix(directory.path()).ok());
        let entry = inside.and_then(|path| path.components().next());
        let modified = times.stamp(entry.map(|part| part.as_os_str()));
        Ok(ModelSource { config, modified, ..ModelSource::of(name, directory)? })
    }

    /// Usually bounded by the repository; bounded by itself where the entry
    /// is a link to somewhere else.
    fn model_directory(&self, name: &str) -> io::Result<ModelDirectory> {
        let path = self.path.join(name);
        match beneath::locate(self.handle.as_fd(), Path::new(name)) {
            Ok(_) => Ok(ModelDirectory::new(path, self.handle.clone(), PathBuf::from(name))),
            Err(Errno::XDEV) => {
                let own = beneath::open_entry(self.handle.as_fd(), OsStr::new(name))?;
                Ok(ModelDirectory::new(path, Arc::new(own), PathBuf::new()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Place {
    fn model(&self, options: &ScanOptions) -> Result<ModelSource, String> {
        let source = self.root.model(&self.directory, options)?;
        Ok(ModelSource { name: self.name.clone(), is_named: self.is_named, ..source })
    }
}

impl ModelSource {
    /// The model in a directory that is in no repository: one that somebody trusted
    /// says holds it. Links in it may lead to anywhere below it.
    ///
    /// # Errors
    ///
    /// What can't be read of it.
    pub fn at(name: &str, path: &Path, options: &ScanOptions) -> Result<Self, String> {
        let handle = beneath::open_directory(path)
            .map_err(|error| format!("can't open '{}': {error}", path.display()))?;
        let directory = ModelDirectory::new(path.to_owned(), Arc::new(handle), PathBuf::new());
        let config = config_file(&directory, options)?;
        Ok(Self { config, ..Self::of(name, directory)? })
    }

    /// The model in this directory, without a configuration.
    pub(crate) fn of(name: &str, directory: ModelDirectory) -> Result<Self, String> {
        let mut source = Self {
            name: name.to_owned(),
            namespace: None,
            is_named: false,
            directory,
            config: None,
            versions: Vec::new(),
            notes: Vec::new(),
            modified: ModificationTimes::default(),
        };
        source.find_versions()?;
        Ok(source)
    }

    fn find_versions(&mut self) -> Result<(), String> {
        for entry in list(&self.directory, Path::new(""))? {
            let Some(name) = entry.to_str() else { continue };
            if KNOWN_FOLDERS.contains(&name) || !is_directory(&self.directory, name)? {
                continue;
            }
            match version_number(name) {
                Ok(number) => {
                    let names = list(&self.directory, Path::new(name))?;
                    let files = names.into_iter().filter_map(|name| name.into_string().ok());
                    self.versions.push(VersionSource { number, files: files.collect() });
                }
                Err(reason) => self.notes.push(format!(
                    "ignore version directory '{}' of model '{}', {reason}",
                    name.escape_debug(),
                    self.name
                )),
            }
        }
        self.versions.sort_by_key(|version| version.number);
        Ok(())
    }
}

/// Why a name can't be told apart from others in their namespaces.
fn unfit(name: &str) -> String {
    let name = name.escape_debug();
    format!("'{name}' begins with ':' or contains '::', which no name may do with namespaces")
}

/// The number in a version directory's name: digits, the first of them not a
/// zero unless it is the only one.
pub(crate) fn version_number(name: &str) -> Result<i64, &'static str> {
    if !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("which is not a number");
    }
    if name.len() > 1 && name.starts_with('0') {
        return Err("which has leading zeros");
    }
    name.parse().map_err(|_| "which is too large a number")
}

fn is_directory(model: &ModelDirectory, name: &str) -> Result<bool, String> {
    let handle = beneath::locate(model.boundary().as_fd(), &model.prefixed(Path::new(name)));
    let kind = handle.and_then(|handle| beneath::file_type(&handle));
    match (kind, version_number(name)) {
        (Ok(kind), _) => Ok(kind == FileType::Directory),
        // A broken link that could be a version is the model's error; any
        // other is none of our business.
        (Err(error), Ok(_)) => Err(explain(model, Path::new(name), error)),
        (Err(_), Err(_)) => Ok(false),
    }
}

fn list(model: &ModelDirectory, folder: &Path) -> Result<Vec<std::ffi::OsString>, String> {
    beneath::list(model.boundary().as_fd(), &model.prefixed(folder))
        .map_err(|error| explain(model, folder, error))
}

fn config_file(
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
    match beneath::read_text(model.boundary().as_fd(), &model.prefixed(path), CONFIG_BYTES_MAX) {
        Ok(text) => Ok(Some(ConfigFile { path: model.path().join(path), text })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(explain(model, path, error)),
    }
}

fn explain(model: &ModelDirectory, path: &Path, error: impl Into<io::Error>) -> String {
    let error = error.into();
    let path = model.path().join(path);
    if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) {
        return format!("'{}' leads out of the repository", path.display());
    }
    format!("can't read '{}': {error}", path.display())
}

#[cfg(test)]
mod tests;
