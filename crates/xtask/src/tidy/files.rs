//! The files that the checks read.

use std::fs;
use std::path::{Path, PathBuf};

use super::mask::{Language, MaskedSource, mask, without_tests};
use crate::workspace;

/// Folders that contain none of our files, or files written by others.
const SKIPPED: [&str; 5] = [".git", ".cache", "target", "goldens", "__pycache__"];

/// Documents that keep the words of their time, or list them.
const HISTORY: [&str; 3] = ["CHANGELOG.md", "bench/RESULTS.md", "docs/glossary.md"];

/// A text file in the repository.
#[derive(Clone, Debug)]
pub(super) struct File {
    /// The path from the repository's root.
    pub(super) path: String,
    /// The file's crate, or its folder at the root.
    pub(super) area: String,
    /// The unchanged text.
    pub(super) text: String,
    /// The text without literals and comments.
    pub(super) masked: MaskedSource,
}

impl File {
    /// Makes a file with this text.
    pub(super) fn new(path: &str, text: &str) -> Self {
        let masked = mask(language(path), text);
        Self { path: path.to_owned(), area: area(path), text: text.to_owned(), masked }
    }

    /// Returns true if the file has this extension.
    pub(super) fn is(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|is| is == extension)
    }

    /// Returns true if the file keeps the words of its time.
    pub(super) fn is_history(&self) -> bool {
        HISTORY.contains(&self.path.as_str())
    }

    /// Returns true if the file is a Rust source for tests only.
    pub(super) fn is_test(&self) -> bool {
        self.path.split('/').any(|part| {
            let stem = part.strip_suffix(".rs").unwrap_or(part);
            matches!(stem, "tests" | "testing" | "benches" | "examples")
                || stem.ends_with("_tests")
                || stem.ends_with("_test")
        })
    }

    /// The code without comments, literals and tests.
    pub(super) fn production_code(&self) -> String {
        without_tests(&self.masked.code)
    }
}

fn language(path: &str) -> Language {
    let extension = Path::new(path).extension().and_then(|extension| extension.to_str());
    match extension.unwrap_or_default() {
        "rs" => Language::Rust,
        "c" | "h" => Language::C,
        "py" => Language::Python,
        "toml" | "mutants" => Language::Hash,
        _ => Language::Text,
    }
}

/// `crates/http/src/lib.rs` is in `http`, `docs/models.md` in `docs`.
fn area(path: &str) -> String {
    let mut parts = path.split('/');
    match (parts.next(), parts.next()) {
        (Some("crates"), Some(name)) => name.to_owned(),
        (Some(folder), Some(_)) => folder.to_owned(),
        _ => String::from("root"),
    }
}

/// All text files in the repository, ordered by path.
pub(super) fn all() -> Result<Vec<File>, String> {
    let root = workspace::root();
    let mut paths = Vec::new();
    collect(&root, &mut paths)?;
    paths.sort();
    paths.iter().map(|path| read(&root, path)).collect()
}

fn read(root: &Path, path: &Path) -> Result<File, String> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("can't read '{}': {error}", path.display()))?;
    let path = path.strip_prefix(root).unwrap_or(path);
    Ok(File::new(&path.to_string_lossy(), &text))
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<(), String> {
    const EXTENSIONS: [&str; 7] = ["rs", "py", "md", "c", "h", "toml", "mutants"];
    let unreadable = |error| format!("can't list '{}': {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let kind = entry.file_type().map_err(unreadable)?;
        let path = entry.path();
        let name = entry.file_name();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if kind.is_dir() && !SKIPPED.iter().any(|skipped| name == *skipped) {
            collect(&path, paths)?;
        } else if kind.is_file() && extension.is_some_and(|found| EXTENSIONS.contains(&found)) {
            paths.push(path);
        }
    }
    Ok(())
}
