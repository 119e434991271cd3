//! A plug-in's library: its location and functions.

mod elf;
pub(crate) mod fingerprint;
mod open;
pub(crate) mod search;
mod soname;
pub(crate) mod strategy;

pub(crate) use open::{BackendEntryPoints, LibraryOpener, function};
