//! The programs that tests run.
//!
//! Everything is built as one workspace, along with the tests' dependencies: a package built on its
//! own would enable different features of its libraries and compile them again.

use std::path::PathBuf;

use crate::process::{cargo, run};
use crate::workspace;

/// Builds everything including the tests, so that later steps don't wait for a compiler.
pub(crate) fn everything() -> Result<(), String> {
    run(cargo().args(["build", "--workspace", "--locked"]).args([
        "--lib",
        "--bins",
        "--examples",
        "--tests",
    ]))
}

/// The build folder with the workspace's programs and libraries.
pub(crate) struct BuildFolder(PathBuf);

/// Builds all programs and libraries.
pub(crate) fn programs() -> Result<BuildFolder, String> {
    // Examples use the tests' features, and are few.
    run(cargo().args(["build", "--workspace", "--locked", "--lib", "--bins", "--examples"]))?;
    Ok(BuildFolder(workspace::target().join("debug")))
}

impl BuildFolder {
    /// The server.
    pub(crate) fn server(&self) -> PathBuf {
        self.0.join("galatea")
    }

    /// The server as a library for C programs.
    pub(crate) fn c_library(&self) -> PathBuf {
        self.0.join("libtritonserver.so")
    }

    /// The server as a Python module.
    pub(crate) fn extension(&self) -> PathBuf {
        self.0.join("lib_galatea.so")
    }

    /// The load generator.
    pub(crate) fn load_generator(&self) -> PathBuf {
        self.0.join("galatea-load")
    }

    /// The scheduler simulator.
    pub(crate) fn simulator(&self) -> PathBuf {
        self.0.join("galatea-sim")
    }
}
