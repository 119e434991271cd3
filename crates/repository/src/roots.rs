//! Which repositories there are, and what the models in their directories are
//! called.
//!
//! A model has its directory's name, unless the repository was registered with
//! other names for some of its directories. Such a name comes before directories
//! of that name, in whichever repository; and a directory that has other names
//! lost its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use crate::scan::Root;
use crate::{RepositoryError, check_model_name};

/// Why a repository can't be registered or unregistered, in the original's words
/// where it has some.
#[derive(Debug, Error)]
pub enum RegisterError {
    /// There is no such directory.
    #[error("failed to register '{path}', repository not found")]
    Missing {
        /// The path.
        path: String,
    },
    /// It is in an object store.
    #[error(transparent)]
    Unsupported(RepositoryError),
    /// It is there already.
    #[error("model repository '{path}' has already been registered")]
    Known {
        /// The path.
        path: String,
    },
    /// Another repository has given a directory this name.
    #[error("failed to register '{name}', there is a conflicting mapping for '{name}'")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// No directory can have this name, or no model.
    #[error("failed to register '{path}', {reason}")]
    Name {
        /// The path.
        path: String,
        /// What is wrong with the name.
        reason: String,
    },
    /// A repository that isn't there can't go.
    #[error("failed to unregister '{path}', repository not found")]
    Unknown {
        /// The path.
        path: String,
    },
}

/// The repositories at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roots {
    /// By their paths, which is the order in which they are searched.
    list: Vec<Arc<Root>>,
    /// Directories by the names that they were given.
    given: BTreeMap<String, Given>,
}

#[derive(Clone, Debug)]
struct Given {
    root: Arc<Root>,
    directory: String,
}

/// A model's directory in a repository.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) root: Arc<Root>,
    pub(crate) directory: String,
    /// What the model is called.
    pub(crate) name: String,
    /// Whether it was given its name, whatever its configuration says.
    pub(crate) is_named: bool,
}

impl Roots {
    pub(crate) const fn of(list: Vec<Arc<Root>>) -> Self {
        Self { list, given: BTreeMap::new() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Root>> {
        self.list.iter()
    }

    /// Adds a repository, with the names that some of its directories are given:
    /// pairs of directory and name.
    pub(crate) fn register(
        &mut self,
        root: Root,
        names: &[(String, String)],
    ) -> Result<(), RegisterError> {
        let path = || root.path().display().to_string();
        if self.position(root.path()).is_ok() {
            return Err(RegisterError::Known { path: path() });
        }
        for (number, (directory, name)) in names.iter().enumerate() {
            for part in [directory, name] {
                check_model_name(part).map_err(|error| RegisterError::Name {
                    path: path(),
                    reason: error.to_string(),
                })?;
            }
            let mut earlier = names.iter().take(number);
            if self.given.contains_key(name) || earlier.any(|(_, other)| other == name) {
                return Err(RegisterError::NameTaken { name: name.clone() });
            }
        }
        let root = Arc::new(root);
        for (directory, name) in names {
            let given = Given { root: root.clone(), directory: directory.clone() };
            self.given.insert(name.clone(), given);
        }
        let place = self.position(root.path()).unwrap_or_else(|place| place);
        self.list.insert(place, root);
        Ok(())
    }

    /// Takes a repository away, and the names that it gave.
    pub(crate) fn unregister(&mut self, path: &Path) -> Result<(), RegisterError> {
        let place = self
            .position(path)
            .map_err(|_| RegisterError::Unknown { path: path.display().to_string() })?;
        let root = self.list.remove(place);
        self.given.retain(|_, given| !Arc::ptr_eq(&given.root, &root));
        Ok(())
    }

    fn position(&self, path: &Path) -> Result<usize, usize> {
        self.list.binary_search_by(|root| root.path().cmp(path))
    }

    /// Whether a model of this name has it because its directory was given it.
    pub(crate) fn is_given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// Where models of this name are.
    pub(crate) fn places(&self, name: &str) -> Vec<Place> {
        if let Some(given) = self.given.get(name) {
            let exists = given.root.has(&given.directory);
            return exists.then(|| given.place(name)).into_iter().collect();
        }
        let has_it = |root: &&Arc<Root>| root.has(name) && !self.is_renamed(root, name);
        let place = |root: &Arc<Root>| Place {
            root: root.clone(),
            directory: name.to_owned(),
            name: name.to_owned(),
            is_named: false,
        };
        self.list.iter().filter(has_it).map(place).collect()
    }

    /// What a directory stands for: the names that it was given, else its own,
    /// unless another directory was given that.
    pub(crate) fn places_of(&self, root: &Arc<Root>, directory: &str) -> Vec<Place> {
        let own: Vec<Place> = self.given_to(root, directory).collect();
        if !own.is_empty() || self.is_given(directory) {
            return own;
        }
        let (root, name) = (root.clone(), directory.to_owned());
        vec![Place { root, directory: name.clone(), name, is_named: false }]
    }

    fn is_renamed(&self, root: &Arc<Root>, directory: &str) -> bool {
        self.given_to(root, directory).next().is_some()
    }

    fn given_to<'a>(
        &'a self,
        root: &'a Arc<Root>,
        directory: &'a str,
    ) -> impl Iterator<Item = Place> + 'a {
        let is_it =
            move |given: &Given| given.directory == directory && Arc::ptr_eq(&given.root, root);
        let all = self.given.iter().filter(move |(_, given)| is_it(given));
        all.map(|(name, given)| given.place(name))
    }
}

impl Given {
    fn place(&self, name: &str) -> Place {
        Place {
            root: self.root.clone(),
            directory: self.directory.clone(),
            name: name.to_owned(),
            is_named: true,
        }
    }
}

#[cfg(test)]
mod tests;
