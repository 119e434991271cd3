//! The model repositories of a server.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_policy::{can_have_namespace, model_id};
use galatea_stdx::Lock;

use crate::name::check_model_name;
use crate::remote::RemoteConnector;
use crate::root::{ListingDepth, RepositoryError, Root};
use crate::roots::{ModelLocation, RegisterError, Roots};
use crate::scan::{ListedModel, LookupResult, ScanProblem, ScanResult};
use crate::source::{ScanOptions, ScannedModel};

/// Model repositories, searched in path order. Each scan or lookup sees the set of repositories
/// that exists at the start of the call.
#[derive(Debug, Default)]
pub struct ModelRepositories {
    roots: Lock<Arc<Roots>>,
    /// The connector that opens repositories in object stores.
    connector: Option<Arc<dyn RemoteConnector>>,
    /// True if several repositories may have models with the same name.
    has_namespaces: bool,
}

/// A model's namespace and name.
type QualifiedName = (Option<Arc<str>>, String);

impl ModelRepositories {
    /// Opens the directories. A repeated path counts only once.
    ///
    /// # Errors
    ///
    /// Returns an error if any of them is in an object store or can't be opened.
    pub fn open<P: Into<PathBuf>>(
        paths: impl IntoIterator<Item = P>,
    ) -> Result<Self, RepositoryError> {
        Self::open_with(paths, None)
    }

    /// Like [`Self::open`], but with a connector for object stores.
    ///
    /// # Errors
    ///
    /// Returns an error if any of them can't be opened.
    pub fn open_with<P: Into<PathBuf>>(
        paths: impl IntoIterator<Item = P>,
        connector: Option<Arc<dyn RemoteConnector>>,
    ) -> Result<Self, RepositoryError> {
        let mut paths: Vec<PathBuf> = paths.into_iter().map(Into::into).collect();
        paths.sort();
        paths.dedup();
        let roots =
            paths.into_iter().map(|path| Root::open(path, connector.as_deref()).map(Arc::new));
        let roots = Roots::new(roots.collect::<Result<_, _>>()?);
        Ok(Self { roots: Lock::new(Arc::new(roots)), connector, has_namespaces: false })
    }

    /// Makes each repository a separate namespace, so that several may have models with the same
    /// name. A namespace's name is the repository's path as specified.
    #[must_use]
    pub fn with_namespaces(self) -> Self {
        Self { has_namespaces: true, ..self }
    }

    /// Adds a repository. `names` contains pairs of a directory and the model name that replaces
    /// the directory's name. A directory may have several names.
    ///
    /// # Errors
    ///
    /// Returns an error if the repository can't be opened or is already registered, or if a name is
    /// taken or invalid.
    pub fn register(
        &self,
        path: impl Into<PathBuf>,
        names: &[(String, String)],
    ) -> Result<(), RegisterError> {
        let opened = Root::open(path.into(), self.connector.as_deref());
        let root = opened.map_err(|error| match error {
            RepositoryError::Unreachable { ref path } => {
                RegisterError::Remote { path: path.clone(), reason: error.to_string() }
            }
            RepositoryError::Remote { path, reason } => RegisterError::Remote { path, reason },
            RepositoryError::Missing { path } | RepositoryError::NotDirectory { path } => {
                RegisterError::NotFound { path }
            }
        })?;
        if let Some((_, name)) = names.iter().find(|(_, name)| !self.allows(name)) {
            let (path, reason) = (root.path().display().to_string(), ambiguous_name(name));
            return Err(RegisterError::InvalidName { path, reason });
        }
        self.change(|roots| roots.register(root, names))
    }

    /// Removes a repository. Models loaded from it are unaffected.
    ///
    /// # Errors
    ///
    /// Returns an error if the repository isn't registered.
    pub fn unregister(&self, path: impl AsRef<Path>) -> Result<(), RegisterError> {
        self.change(|roots| roots.unregister(path.as_ref()))
    }

    /// Returns true if registration mapped this name to a directory.
    #[must_use]
    pub fn is_mapped_name(&self, name: &str) -> bool {
        self.roots().is_mapped(name)
    }

    /// The namespace of models whose files come with a load request.
    #[must_use]
    pub fn uploaded_model_namespace(&self) -> Option<Arc<str>> {
        self.has_namespaces.then(|| Arc::from(""))
    }

    /// The sorted names of the models in all repositories. Invalid names are included in escaped
    /// form. Repositories that can't be listed are left out.
    #[must_use]
    pub fn list_model_names(&self) -> Vec<ListedModel> {
        let mut counts: BTreeMap<QualifiedName, usize> = BTreeMap::new();
        let mut problems = Vec::new();
        let roots = self.roots();
        for root in roots.iter() {
            for model in
                self.locations(&roots, root, ListingDepth::Names, &mut problems).unwrap_or_default()
            {
                *counts.entry((self.namespace(root), model.name)).or_default() += 1;
            }
        }
        for problem in problems {
            if let ScanProblem::Model { name, .. } = problem {
                counts.entry((None, name)).or_insert(1);
            }
        }
        let listed =
            |((namespace, name), count)| ListedModel { namespace, name, is_duplicate: count > 1 };
        counts.into_iter().map(listed).collect()
    }

    /// Looks up the models with one name. The name may be any string.
    #[must_use]
    pub fn find(&self, name: &str, options: &ScanOptions) -> LookupResult {
        let problem =
            |reason| LookupResult::Problem(ScanProblem::Model { name: name.to_owned(), reason });
        if let Err(error) = check_model_name(name) {
            return problem(error.to_string());
        }
        if !self.allows(name) {
            return problem(ambiguous_name(name));
        }
        let locations = self.roots().locate(name);
        match locations.len() {
            0 => self.unreadable().map_or(LookupResult::Missing, LookupResult::Problem),
            2.. if !self.has_namespaces => {
                LookupResult::Problem(ScanProblem::Duplicate { name: name.to_owned() })
            }
            _ => {
                let sources = locations.iter().map(|location| self.read(location, options));
                sources.collect::<Result<_, _>>().map_or_else(problem, LookupResult::Models)
            }
        }
    }

    /// Returns the problem of a repository that can't be read, if any. Its models may seem to be
    /// missing.
    fn unreadable(&self) -> Option<ScanProblem> {
        self.roots().iter().find_map(|root| {
            let path = root.path().display().to_string();
            let problem =
                |error: io::Error| ScanProblem::Repository { path, reason: error.to_string() };
            root.check_readable().err().map(problem)
        })
    }

    /// Reads the models in all repositories.
    #[must_use]
    pub fn scan(&self, options: &ScanOptions) -> ScanResult {
        let mut scan = ScanResult::default();
        let mut locations: BTreeMap<QualifiedName, Vec<ModelLocation>> = BTreeMap::new();
        let roots = self.roots();
        for root in roots.iter() {
            match self.locations(&roots, root, ListingDepth::Models, &mut scan.problems) {
                Ok(found) => found.into_iter().for_each(|location| {
                    let id = (self.namespace(root), location.name.clone());
                    locations.entry(id).or_default().push(location);
                }),
                Err(error) => scan.problems.push(ScanProblem::Repository {
                    path: root.path().display().to_string(),
                    reason: error.to_string(),
                }),
            }
        }
        for ((namespace, name), locations) in locations {
            let [location] = locations.as_slice() else {
                scan.problems.push(ScanProblem::Duplicate { name });
                continue;
            };
            match self.read(location, options) {
                Ok(model) => scan.models.push(model),
                Err(reason) => {
                    let name = model_id(namespace.as_deref(), &name).to_string();
                    scan.problems.push(ScanProblem::Model { name, reason });
                }
            }
        }
        scan
    }

    /// The models in a repository's directories. Invalid names are reported as problems.
    fn locations(
        &self,
        roots: &Roots,
        root: &Arc<Root>,
        depth: ListingDepth,
        problems: &mut Vec<ScanProblem>,
    ) -> io::Result<Vec<ModelLocation>> {
        let namespace = self.namespace(root);
        let invalid = |name: String, reason| {
            let name = model_id(namespace.as_deref(), &name).to_string();
            ScanProblem::Model { name, reason }
        };
        let listing = root.list(depth)?;
        problems.extend(listing.invalid.into_iter().map(|(name, reason)| invalid(name, reason)));
        let found = |location: ModelLocation| ModelLocation {
            found: listing.found.get(&location.directory).cloned(),
            ..location
        };
        let locations = listing.names.iter().flat_map(|name| roots.models_of(root, name));
        let locations = locations.map(found);
        let (allowed, ambiguous): (Vec<_>, Vec<_>) =
            locations.partition(|location| self.allows(&location.name));
        let ambiguous = ambiguous.into_iter().map(|location| {
            invalid(location.name.replace(':', "\\:"), ambiguous_name(&location.name))
        });
        problems.extend(ambiguous);
        Ok(allowed)
    }

    fn read(
        &self,
        location: &ModelLocation,
        options: &ScanOptions,
    ) -> Result<ScannedModel, String> {
        let ModelLocation { root, directory, name, is_mapped, found } = location;
        let found = found.clone().or_else(|| root.remote_model(directory)).transpose()?;
        Ok(ScannedModel {
            namespace: self.namespace(root),
            name: name.clone(),
            is_mapped: *is_mapped,
            ..match found {
                Some(found) => ScannedModel::of_copy(directory, found, options)?,
                None => ScannedModel::read(root, directory, options)?,
            }
        })
    }

    /// Returns true unless namespaces are on and the id of a model with this name would be
    /// ambiguous.
    fn allows(&self, name: &str) -> bool {
        !self.has_namespaces || can_have_namespace(name)
    }

    /// The namespace of a repository's models, if namespaces are on.
    fn namespace(&self, root: &Root) -> Option<Arc<str>> {
        self.has_namespaces.then(|| root.path().display().to_string().into())
    }

    fn roots(&self) -> Arc<Roots> {
        self.roots.lock("read the list of repositories").clone()
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Roots) -> Result<(), RegisterError>,
    ) -> Result<(), RegisterError> {
        let mut roots = self.roots.lock("change the list of repositories");
        change(Arc::make_mut(&mut roots))
    }
}

/// The reason why a name is not allowed with namespaces.
fn ambiguous_name(name: &str) -> String {
    let name = name.escape_debug();
    format!("'{name}' begins with ':' or contains '::', which no name may do with namespaces")
}

#[cfg(test)]
mod registration_tests;
#[cfg(test)]
mod scan_tests;
