//! The programs that tests run.
//!
//! Everything is built as one workspace with what its tests need: a package that is built
//! alone has other features of its libraries, and would compile these once more.

use std::path::PathBuf;

use crate::process::{cargo, run};
use crate::workspace;

/// Builds the tests too, so that later steps wait for no compiler.
pub(crate) fn everything() -> Result<(), String> {
    run(cargo().args(["build", "--workspace", "--locked"]).args([
        "--lib",
        "--bins",
        "--examples",
        "--tests",
    ]))
}

/// The folder of the workspace's programs and libraries.
pub(crate) struct BuildFolder(PathBuf);

/// Builds all programs and libraries.
pub(crate) fn programs() -> Result<BuildFolder, String> {
    // Examples have the features of tests, and are few.
    run(cargo().args(["build", "--workspace", "--locked", "--lib", "--bins", "--examples"]))?;
    Ok(BuildFolder(workspace::target().join("debug")))
}

impl BuildFolder {
    /// The server.
    pub(crate) fn server(&self) -> PathBuf {
        self.0.join("galatea")
    }

    /// The server as a library for programs in C.
    pub(crate) fn c_library(&self) -> PathBuf {
        self.0.join("libtritonserver.so")
    }

    /// The server as a module of Python.
    pub(crate) fn extension(&self) -> PathBuf {
        self.0.join("lib_galatea.so")
    }

    /// The generator of load.
    pub(crate) fn load_generator(&self) -> PathBuf {
        self.0.join("galatea-load")
    }

    /// The simulator of schedulers.
    pub(crate) fn simulator(&self) -> PathBuf {
        self.0.join("galatea-sim")
    }
}
