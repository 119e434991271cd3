//! Model repositories on disk: finding their models, and safe access to the models' files.
//!
//! ```text
//! REPOSITORY/MODEL/config.pbtxt
//!                  configs/NAME.pbtxt
//!                  VERSION/model.onnx
//! ```
//!
//! Open `repository.rs` first. [`ModelRepositories::scan`] reads all models and [`ModelRepositories::find`] those
//! with one name, each with the [`ModificationTimes`](galatea_policy::ModificationTimes) of its
//! files. [`ScanResult`], [`LookupResult`] and [`ScannedModel`] are the result types, which the engine also
//! uses. [`ModelRepositories::register`] adds a repository and may map other names to its directories;
//! [`ModelRepositories::with_namespaces`] allows models with the same name in several repositories.
//! [`UploadedModelFactory`] creates models from files that come with a load request, and [`SymlinkRepository`]
//! from files outside any repository. [`versions_to_load`] applies a version policy, and a
//! [`VersionDirectory`] lets a backend find its files.
//!
//! A repository may also be in an object store, such as `s3://bucket/path`: see `remote/mod.rs`.
//!
//! This crate interprets no configuration, doesn't decide what a model needs, and doesn't
//! watch for changes.
//!
//! # Paths
//!
//! Files are opened relative to a directory handle, and paths are never compared as text. Names
//! from a configuration may only lead down and may not even contain `..`. An operator's links in a
//! repository are followed anywhere, unless [`ScanOptions`] forbid them; in a directory with a
//! client's files, the kernel refuses a path that leads out. Directories are reopened for each scan
//! and each load: a repository may be replaced while the server runs.
//!
//! # Example
//!
//! ```
//! use galatea_repository::{LookupResult, ModelRepositories, ScanOptions};
//!
//! let directory = std::env::temp_dir().join(format!("repository-{}", std::process::id()));
//! std::fs::create_dir_all(directory.join("net/1")).unwrap();
//! let repository = ModelRepositories::open([&directory]).unwrap();
//! let LookupResult::Models(models) = repository.find("net", &ScanOptions::default()) else {
//!     panic!("the model is there")
//! };
//! assert_eq!(models[0].versions[0].number, 1);
//! # std::fs::remove_dir_all(directory).unwrap();
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod beneath;
mod directory;
mod linked;
mod modification;
mod name;
mod overlay;
mod remote;
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
mod walk;

pub use beneath::SymlinkPolicy;
pub use directory::ModelDirectory;
pub use linked::SymlinkRepository;
pub use name::{InvalidName, MODEL_NAME_BYTES_MAX, check_model_name, check_uploaded_model_name};
pub use overlay::UploadedModelFactory;
pub use remote::{
    InFlightDownloads, ObjectDownload, ObjectVersion, RemoteConnector, RemoteError, RemoteObject,
    RemoteRepository, RemoteStore, is_remote,
};
pub use repository::ModelRepositories;
pub use root::RepositoryError;
pub use roots::RegisterError;
pub use scan::{ListedModel, LookupResult, ScanProblem, ScanResult};
pub use source::{ConfigFile, ScanOptions, ScannedModel, ScannedVersion};
pub use version::{VersionSelection, versions_to_load};
pub use version_directory::VersionDirectory;
