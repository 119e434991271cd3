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

/// Builds all programs and libraries; returns the path of one.
fn built(name: &str) -> Result<PathBuf, String> {
    // Examples have the features of tests, and are few.
    run(cargo().args(["build", "--workspace", "--locked", "--lib", "--bins", "--examples"]))?;
    Ok(workspace::program("debug", name))
}

/// The server.
pub(crate) fn server() -> Result<PathBuf, String> {
    built("galatea")
}

/// The server as a library for programs in C.
pub(crate) fn c_library() -> Result<PathBuf, String> {
    built("libtritonserver.so")
}

/// The server as a module of Python.
pub(crate) fn extension() -> Result<PathBuf, String> {
    built("lib_galatea.so")
}

/// The generator of load.
pub(crate) fn load_generator() -> Result<PathBuf, String> {
    built("galatea-load")
}

/// The simulator of schedulers.
pub(crate) fn simulator() -> Result<PathBuf, String> {
    built("galatea-sim")
}
