//! `galatea new python NAME`: creates a starter model, its test, and a README for both.
//!
//! The model is written into a directory that does not exist yet, so nothing is overwritten.
//! If a file can't be written, the directory is removed again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::console::ReportFormat;

/// The default directory for new models, used without `--directory`.
pub const DEFAULT_DIRECTORY: &str = "models";

/// The maximum length of a name, in bytes.
const NAME_BYTES_MAX: usize = 64;

const MODEL: &str = include_str!("template/model.py");
const TEST: &str = include_str!("template/test_model.py");
const PAGE: &str = include_str!("template/README.md");

/// The template placeholders for the model's name, its repository and its test.
const NAME: &str = "MODEL_NAME";
const REPOSITORY: &str = "MODEL_REPOSITORY";
const TEST_FILE: &str = "TEST_FILE";

/// A model to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewModel {
    name: String,
    repository: PathBuf,
}

impl NewModel {
    /// Describes a model in a repository.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is unsuitable for a model.
    pub fn new(name: &str, repository: &str) -> Result<Self, String> {
        let is_first = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let is_next = |byte: u8| is_first(&byte) || byte == b'-' || byte == b'.';
        let fits = name.len() <= NAME_BYTES_MAX
            && name.as_bytes().first().is_some_and(is_first)
            && name.bytes().all(is_next);
        if !fits {
            return Err(format!(
                "'{name}' is no name for a model: a name has letters, digits, '_', '-' and '.', \
                 begins with a letter, a digit or '_', and is at most {NAME_BYTES_MAX} \
                 characters long"
            ));
        }
        if repository.is_empty() {
            return Err(String::from("the directory for the model has an empty name"));
        }
        Ok(Self { name: name.to_owned(), repository: repository.into() })
    }

    /// Writes the model and returns a description of how to use it.
    ///
    /// # Errors
    ///
    /// Returns an error if the model already exists or a file can't be written.
    pub fn write(&self, format: ReportFormat) -> Result<String, String> {
        let folder = self.repository.join(&self.name);
        let failed = |path: &Path, error: &io::Error| format!("'{}': {error}", path.display());
        fs::create_dir_all(&self.repository).map_err(|error| failed(&self.repository, &error))?;
        fs::create_dir(&folder).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!("'{}' exists already, and nothing is overwritten", folder.display())
            }
            _ => failed(&folder, &error),
        })?;
        if let Err((path, error)) = self.write_files(&folder) {
            // Removing the directory is safe because it is new.
            let _ = fs::remove_dir_all(&folder);
            return Err(failed(&path, &error));
        }
        if format == ReportFormat::Json {
            let (folder, test) = (folder.display(), self.test_file());
            let files = ["1/model.py", &test, "README.md"].map(|file| format!("{folder}/{file}"));
            return Ok(json!({
                "name": self.name,
                "repository": self.repository.display().to_string(),
                "files": files,
            })
            .to_string());
        }
        Ok(self.fill(
            "wrote the model 'MODEL_NAME' to MODEL_REPOSITORY/MODEL_NAME\n\
             test it:  python3 -B -m pytest MODEL_REPOSITORY/MODEL_NAME\n\
             serve it: galatea --model-repository MODEL_REPOSITORY",
        ))
    }

    fn write_files(&self, folder: &Path) -> Result<(), (PathBuf, io::Error)> {
        let version = folder.join("1");
        fs::create_dir(&version).map_err(|error| (version.clone(), error))?;
        let files = [
            (version.join("model.py"), MODEL),
            (folder.join(self.test_file()), TEST),
            (folder.join("README.md"), PAGE),
        ];
        for (path, template) in files {
            fs::write(&path, self.fill(template)).map_err(|error| (path, error))?;
        }
        Ok(())
    }

    /// The name of the test file: pytest requires a distinct name for each model's test.
    fn test_file(&self) -> String {
        let letters = self.name.chars();
        let name: String =
            letters.map(|one| if one.is_ascii_alphanumeric() { one } else { '_' }).collect();
        format!("test_{name}.py")
    }

    fn fill(&self, template: &str) -> String {
        // The repository is replaced last, because its path may contain the other placeholders.
        template
            .replace(TEST_FILE, &self.test_file())
            .replace(NAME, &self.name)
            .replace(REPOSITORY, &self.repository.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for name in ["a", "text_2", "_x", "1st", "a-b.c", &"n".repeat(64)] {
            assert!(NewModel::new(name, "models").is_ok(), "{name}");
        }
        for name in ["", ".", "..", ".a", "-a", "a/b", "a b", "ä", "a\n", &"n".repeat(65)] {
            let refusal = NewModel::new(name, "models").unwrap_err();
            assert!(refusal.starts_with(&format!("'{name}' is no name for a model: ")));
        }
        assert!(NewModel::new("a", "").is_err());
    }

    #[test]
    fn templates_are_filled() {
        let model = NewModel::new("a-b.c", "/r/MODEL_NAME").unwrap();
        assert_eq!(model.fill("TEST_FILE MODEL_NAME"), "test_a_b_c.py a-b.c");
        assert_eq!(model.fill("MODEL_REPOSITORY/MODEL_NAME"), "/r/MODEL_NAME/a-b.c");
    }
}
