//! A repository of links to models elsewhere, for files outside any repository.

use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::source::CONFIG_FILE;
use crate::temporary::{TemporaryDirectories, TemporaryDirectory};

/// A repository whose models are links. It is in a directory that only this user can enter.
/// Dropping this value removes the directory, but not the targets of the links.
#[derive(Debug)]
pub struct SymlinkRepository {
    directory: TemporaryDirectory,
}

impl SymlinkRepository {
    /// Creates an empty repository in a new directory in `parent`.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory can't be made.
    pub fn create(parent: &Path) -> io::Result<Self> {
        let directory = TemporaryDirectories::new(parent.to_owned()).create()?;
        Ok(Self { directory })
    }

    /// The repository's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.directory.path
    }

    /// Adds a model that has a directory of its own, with its versions.
    ///
    /// # Errors
    ///
    /// Returns an error if the link can't be made.
    pub fn add_model(&self, name: &str, directory: &Path) -> io::Result<()> {
        symlink(std::path::absolute(directory)?, self.path().join(name))
    }

    /// Adds a model whose only version is a directory.
    ///
    /// # Errors
    ///
    /// Returns an error if files or links can't be made.
    pub fn add_single_version_model(
        &self,
        name: &str,
        directory: &Path,
        config: &str,
    ) -> io::Result<()> {
        let model = self.path().join(name);
        std::fs::create_dir(&model)?;
        std::fs::write(model.join(CONFIG_FILE), config)?;
        symlink(std::path::absolute(directory)?, model.join("1"))
    }

    /// Adds a model whose only version is one file, named as its backend expects, with a
    /// configuration if it needs one.
    ///
    /// # Errors
    ///
    /// Returns an error if directories or the link can't be made.
    pub fn add_single_file_model(
        &self,
        name: &str,
        file: &Path,
        known_as: &str,
        config: Option<&str>,
    ) -> io::Result<()> {
        let model = self.path().join(name);
        let version = model.join("1");
        std::fs::create_dir_all(&version)?;
        if let Some(config) = config {
            std::fs::write(model.join(CONFIG_FILE), config)?;
        }
        symlink(std::path::absolute(file)?, version.join(known_as))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ScratchDirectory;
    use crate::{ModelRepositories, ScanOptions};

    #[test]
    fn models_are_found_behind_links_and_stay_when_the_repository_goes() {
        let scratch = ScratchDirectory::new();
        scratch.file("files/a.onnx", "a");
        scratch.file("folder/net.onnx", "b");
        scratch.file("model/3/model.onnx", "c");
        let linked = SymlinkRepository::create(scratch.path()).unwrap();
        linked
            .add_single_file_model("a", &scratch.path().join("files/a.onnx"), "model.onnx", None)
            .unwrap();
        linked
            .add_single_version_model("b", &scratch.path().join("folder"), "platform: \"x\"")
            .unwrap();
        linked.add_model("c", &scratch.path().join("model")).unwrap();
        let scan = ModelRepositories::open([linked.path()]).unwrap().scan(&ScanOptions::default());
        let found: Vec<_> = scan
            .models
            .iter()
            .map(|model| {
                let version = &model.versions[0];
                let has_config = model.config.is_some();
                (model.name.as_str(), version.number, version.files.join(" "), has_config)
            })
            .collect();
        let expected = [
            ("a", 1, String::from("model.onnx"), false),
            ("b", 1, String::from("net.onnx"), true),
            ("c", 3, String::from("model.onnx"), false),
        ];
        assert_eq!(found, expected);
        let path = linked.path().to_owned();
        drop(linked);
        assert!(!path.exists());
        assert!(scratch.path().join("folder/net.onnx").exists());
        assert!(scratch.path().join("model/3/model.onnx").exists());
    }
}
