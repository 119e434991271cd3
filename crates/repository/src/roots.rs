//! A server's repositories, and the names of the models in their directories.
//!
//! A model is named after its directory, unless the repository was registered with other names for
//! the directory. A mapped name takes precedence over directories with that name in any repository.
//! A directory with mapped names can't be addressed by its own name.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use crate::name::check_model_name;
use crate::remote::FoundModel;
use crate::root::Root;

/// A reason why a repository can't be registered or unregistered. The messages are Triton's where
/// Triton has any.
#[derive(Debug, Error)]
pub enum RegisterError {
    /// No such directory exists.
    #[error("failed to register '{path}', repository not found")]
    NotFound {
        /// The path.
        path: String,
    },
    /// The repository is in an object store that can't be opened.
    #[error("failed to register '{path}', repository not found: {reason}")]
    Remote {
        /// The address.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The repository is already registered.
    #[error("model repository '{path}' has already been registered")]
    AlreadyRegistered {
        /// The path.
        path: String,
    },
    /// Another repository has mapped this name to a directory.
    #[error("failed to register '{name}', there is a conflicting mapping for '{name}'")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// No directory or model can have this name.
    #[error("failed to register '{path}', {reason}")]
    InvalidName {
        /// The path.
        path: String,
        /// The mistake in the name.
        reason: String,
    },
    /// The repository is not registered.
    #[error("failed to unregister '{path}', repository not found")]
    NotRegistered {
        /// The path.
        path: String,
    },
}

/// The repositories at one point in time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roots {
    /// The repositories, sorted by path, which is also the search order.
    list: Vec<Arc<Root>>,
    /// The directories, by the names that registration mapped to them.
    mappings: BTreeMap<String, MappedDirectory>,
}

#[derive(Clone, Debug)]
struct MappedDirectory {
    root: Arc<Root>,
    directory: String,
}

/// A model's directory in a repository, and the model's name.
#[derive(Clone, Debug)]
pub(crate) struct ModelLocation {
    pub(crate) root: Arc<Root>,
    pub(crate) directory: String,
    pub(crate) name: String,
    /// True if registration mapped the name to the directory.
    pub(crate) is_mapped: bool,
    /// The model in an object store, if it has already been read.
    pub(crate) found: Option<Result<FoundModel, String>>,
}

impl Roots {
    pub(crate) const fn new(list: Vec<Arc<Root>>) -> Self {
        Self { list, mappings: BTreeMap::new() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Root>> {
        self.list.iter()
    }

    /// Adds a repository. `names` contains pairs of a directory and its model's name.
    pub(crate) fn register(
        &mut self,
        root: Root,
        names: &[(String, String)],
    ) -> Result<(), RegisterError> {
        let path = || root.path().display().to_string();
        if self.position(root.path()).is_ok() {
            return Err(RegisterError::AlreadyRegistered { path: path() });
        }
        for (number, (directory, name)) in names.iter().enumerate() {
            for part in [directory, name] {
                check_model_name(part).map_err(|error| RegisterError::InvalidName {
                    path: path(),
                    reason: error.to_string(),
                })?;
            }
            let mut earlier = names.iter().take(number);
            if self.mappings.contains_key(name) || earlier.any(|(_, other)| other == name) {
                return Err(RegisterError::NameTaken { name: name.clone() });
            }
        }
        let root = Arc::new(root);
        for (directory, name) in names {
            let mapped = MappedDirectory { root: root.clone(), directory: directory.clone() };
            self.mappings.insert(name.clone(), mapped);
        }
        let position = self.position(root.path()).unwrap_or_else(|position| position);
        self.list.insert(position, root);
        Ok(())
    }

    /// Removes a repository and its mappings.
    pub(crate) fn unregister(&mut self, path: &Path) -> Result<(), RegisterError> {
        let position = self
            .position(path)
            .map_err(|_| RegisterError::NotRegistered { path: path.display().to_string() })?;
        let root = self.list.remove(position);
        self.mappings.retain(|_, mapped| !Arc::ptr_eq(&mapped.root, &root));
        Ok(())
    }

    fn position(&self, path: &Path) -> Result<usize, usize> {
        self.list.binary_search_by(|root| root.path().cmp(path))
    }

    /// Returns true if registration mapped this name to a directory.
    pub(crate) fn is_mapped(&self, name: &str) -> bool {
        self.mappings.contains_key(name)
    }

    /// The directories whose model has this name.
    pub(crate) fn locate(&self, name: &str) -> Vec<ModelLocation> {
        if let Some(mapped) = self.mappings.get(name) {
            let exists = mapped.root.has(&mapped.directory);
            return exists.then(|| mapped.location(name)).into_iter().collect();
        }
        let has_it =
            |root: &&Arc<Root>| root.has(name) && self.mappings_to(root, name).next().is_none();
        self.list.iter().filter(has_it).map(|root| unmapped(root, name)).collect()
    }

    /// The models in a directory: one for each name mapped to it, or else one with the directory's
    /// name, unless that name is mapped to another directory.
    pub(crate) fn models_of(&self, root: &Arc<Root>, directory: &str) -> Vec<ModelLocation> {
        let mapped: Vec<ModelLocation> = self.mappings_to(root, directory).collect();
        if !mapped.is_empty() || self.is_mapped(directory) {
            return mapped;
        }
        vec![unmapped(root, directory)]
    }

    fn mappings_to<'a>(
        &'a self,
        root: &'a Arc<Root>,
        directory: &'a str,
    ) -> impl Iterator<Item = ModelLocation> + 'a {
        let leads_there = move |mapped: &MappedDirectory| {
            mapped.directory == directory && Arc::ptr_eq(&mapped.root, root)
        };
        let found = self.mappings.iter().filter(move |(_, mapped)| leads_there(mapped));
        found.map(|(name, mapped)| mapped.location(name))
    }
}

fn unmapped(root: &Arc<Root>, directory: &str) -> ModelLocation {
    let (directory, name) = (directory.to_owned(), directory.to_owned());
    ModelLocation { root: root.clone(), directory, name, is_mapped: false, found: None }
}

impl MappedDirectory {
    fn location(&self, name: &str) -> ModelLocation {
        ModelLocation {
            root: self.root.clone(),
            directory: self.directory.clone(),
            name: name.to_owned(),
            is_mapped: true,
            found: None,
        }
    }
}
