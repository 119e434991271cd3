//! Model archives that a cloud platform places on the server's disk.

use std::fmt;

use galatea_gate::access::{AccessPass, api};

/// Reads the layout of model archives.
pub trait ModelArchiveClassifier: Send + Sync + fmt::Debug {
    /// Returns the layout of an archive's directory. The path is absolute and known to be in a
    /// permitted directory. May block for disk I/O.
    fn layout(&self, pass: AccessPass<api::ModelRepository>, path: &str) -> ModelArchiveKind;
}

/// The layout of an archive's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelArchiveKind {
    /// A model: the directory contains a configuration.
    Model,
    /// A repository. The name is the directory name of its ensemble, or else of its last model; it
    /// is empty if the repository has no models.
    Repository(String),
}
