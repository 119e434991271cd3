//! Archives of models, which a cloud puts on the server's disk.

use std::fmt;

use galatea_gate::access::{Pass, api};

/// Reads how archives are laid out.
pub trait ModelArchives: Send + Sync + fmt::Debug {
    /// The contents of an archive's directory. The path is absolute, and was checked against
    /// the places where archives may be. Takes as long as disks do.
    fn layout(&self, pass: Pass<api::ModelRepository>, path: &str) -> ArchiveLayout;
}

/// The layout of an archive's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveLayout {
    /// A model: it has a configuration.
    Model,
    /// A repository. The name is that of the directory of its ensemble, or else of its last
    /// model; it is empty if there is none.
    Repository(String),
}
