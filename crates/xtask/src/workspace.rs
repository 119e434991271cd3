//! The places of things.

use std::path::{Path, PathBuf};

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// The folder in which tasks keep what they fetch and make.
pub(crate) fn cache() -> PathBuf {
    root().join(".cache")
}

/// The program that cargo built in a profile.
pub(crate) fn program(profile: &str, name: &str) -> PathBuf {
    target().join(profile).join(name)
}

/// Cargo's build directory: this program runs out of it.
pub(crate) fn target() -> PathBuf {
    let built = std::env::current_exe().ok();
    let profile = built.as_deref().and_then(Path::parent);
    let target = profile.and_then(Path::parent).map(Path::to_path_buf);
    target.unwrap_or_else(|| root().join("target"))
}
