//! Model repositories on disk: which models they hold, and safe access to their files.
//!
//! ```text
//! REPOSITORY/MODEL/config.pbtxt
//!                  configs/NAME.pbtxt
//!                  VERSION/model.onnx
//! ```
//!
//! Open `repository.rs` first. [`Repository::scan`] reads all models and
//! [`Repository::find`] those of one name, each with the
//! [`ModificationTimes`](galatea_policy::ModificationTimes) of its files. [`Scan`], [`Lookup`] and [`ModelSource`] are the
//! vocabulary of what they find, which the engine uses too. [`Repository::register`] adds
//! a repository and may map other names to its directories;
//! [`Repository::with_namespaces`] allows models of the same name in several
//! repositories. [`Overlays`] makes models of files that come with a request to load.
//! [`versions_to_load`] applies a version policy, and a [`VersionDirectory`] is what a
//! backend gets to find its files.
//!
//! This crate interprets no configuration, doesn't decide what a model needs, and doesn't
//! watch for changes.
//!
//! # Paths
//!
//! Files are opened relative to the handle of a directory, and the kernel refuses a path
//! that leads out of it. Paths are never compared as text. The operator's links count: a
//! model's directory may be a link to anywhere, and links below it may lead to anywhere
//! in the same repository. Names from a configuration may not even contain `..`.
//!
//! # Example
//!
//! ```
//! use galatea_repository::{Lookup, Repository, ScanOptions};
//!
//! let directory = std::env::temp_dir().join(format!("repository-{}", std::process::id()));
//! std::fs::create_dir_all(directory.join("net/1")).unwrap();
//! let repository = Repository::open([&directory]).unwrap();
//! let Lookup::Models(models) = repository.find("net", &ScanOptions::default()) else {
//!     panic!("the model is there")
//! };
//! assert_eq!(models[0].versions[0].number, 1);
//! # std::fs::remove_dir_all(directory).unwrap();
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod beneath;
mod directory;
mod modification;
mod name;
mod overlay;
mod repository;
mod root;
mod roots;
mod scan;
mod source;
mod temporary;
#[cfg(test)]
mod testing;
mod version;
mod version_directory;

pub use directory::ModelDirectory;
pub use name::{InvalidName, check_model_name, check_new_model_name};
pub use overlay::Overlays;
pub use repository::Repository;
pub use root::RepositoryError;
pub use roots::RegisterError;
pub use scan::{ListedModel, Lookup, Scan, ScanProblem};
pub use source::{ConfigFile, ModelSource, ScanOptions, VersionSource};
pub use version::{VersionSelection, versions_to_load};
pub use version_directory::VersionDirectory;
