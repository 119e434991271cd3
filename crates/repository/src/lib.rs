//! Model repositories on disk: which models they hold, and a safe way to
//! their files.
//!
//! ```text
//! REPOSITORY/MODEL/config.pbtxt
//!                  configs/NAME.pbtxt
//!                  VERSION/model.onnx
//! ```
//!
//! [`Repository::scan`] lists what is there and [`Repository::find`] looks for
//! one model, each with a [`ModificationTimes`](galatea_policy::ModificationTimes) of when its files
//! changed last. [`versions_to_load`] applies a version policy, and a
//! [`VersionDirectory`] is what a backend gets to find its files.
//! [`Repository::register`] adds a repository, and may give its models other names
//! than their directories have; [`Repository::with_namespaces`] lets repositories have
//! models of the same name. [`Overlays`] makes models of files that clients send. Nothing here reads a
//! configuration's content or decides what a model needs, and nothing watches
//! for changes.
//!
//! Files are opened relative to the handle of a directory, by the kernel's
//! rule that the way may not lead out of it; paths are never compared as
//! text. The operator's links count: a model's directory may be a link to
//! anywhere, and links below it may lead to anywhere in the same repository.
//! Names that come out of a configuration may not even contain `..`.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod beneath;
mod directory;
mod name;
mod overlay;
mod policy;
mod roots;
mod scan;
mod stamp;

pub use directory::{ModelDirectory, VersionDirectory};
pub use name::{InvalidName, check_model_name};
pub use overlay::Overlays;
pub use policy::{VersionSelection, versions_to_load};
pub use roots::RegisterError;
pub use scan::{
    ConfigFile, Finding, Listed, ModelSource, Problem, Repository, RepositoryError, Scan,
    ScanOptions, VersionSource,
};
