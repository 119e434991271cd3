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

/// The place beside a folder in which it is made, so that it appears complete or not at all. A
/// version at the end of its name stays whole, unlike with `Path::with_extension`.
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
