//! Archives of models, which a cloud puts on the server's disk.

use std::fmt;

use galatea_gate::access::{Pass, api};

/// Reads how archives are laid out.
pub trait ModelArchives: Send + Sync + fmt::Debug {
    /// What is in the directory of an archive. The path is absolute, and was checked against
    /// the places where archives may be. Takes as long as disks do.
    fn layout(&self, pass: Pass<api::ModelRepository>, path: &str) -> ArchiveLayout;
}

/// What the directory of an archive is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveLayout {
    /// A model: it has a configuration.
    Model,
    /// A repository. The name is that of the directory of its ensemble, or else of its last
    /// model; it is empty if there is none.
    Repository(String),
}
