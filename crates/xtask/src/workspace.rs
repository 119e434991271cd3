//! Paths in the workspace.

use std::path::{Path, PathBuf};

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// The folder in which tasks keep the files that they fetch and build.
pub(crate) fn cache() -> PathBuf {
    root().join(".cache")
}

/// The path of a program that cargo built in a profile.
pub(crate) fn program(profile: &str, name: &str) -> PathBuf {
    target().join(profile).join(name)
}

/// Cargo's build directory, which contains this program.
pub(crate) fn target() -> PathBuf {
    let built = std::env::current_exe().ok();
    let profile = built.as_deref().and_then(Path::parent);
    let target = profile.and_then(Path::parent).map(Path::to_path_buf);
    target.unwrap_or_else(|| root().join("target"))
}

/// The path next to a folder at which the folder is built, so that it appears complete or not at
/// all. Unlike with `Path::with_extension`, a version at the end of the name stays intact.
pub(crate) fn beside(folder: &Path, ending: &str) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_stay_whole() {
        let folder = Path::new("releases/galatea-0.1.0");
        assert_eq!(beside(folder, "part"), Path::new("releases/galatea-0.1.0.part"));
        assert_ne!(beside(folder, "part"), folder.with_extension("part"));
    }
}
