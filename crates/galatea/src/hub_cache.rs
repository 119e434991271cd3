//! Tokenizers in the local cache of Hugging Face's libraries.
//!
//! The cache has a directory for each repository, `models--ORGANIZATION--NAME`. Its file
//! `refs/main` contains the revision of the main branch, whose files are in `snapshots/REVISION`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The maximum length of an identifier.
const ID_LENGTH_MAX: usize = 96;

/// The maximum length of a revision.
const REVISION_LENGTH_MAX: usize = 96;

/// The branch whose revision is used, and the revision's name without a file that states it.
const BRANCH: &str = "main";

/// Returns the directory of a tokenizer: a directory, or an identifier at Hugging Face whose files
/// are in the cache. Nothing is downloaded.
///
/// # Errors
///
/// Returns the reason why a name that isn't a directory can't be resolved.
pub(crate) fn tokenizer_folder(name: &Path, cache: Option<&Path>) -> Result<PathBuf, String> {
    let id = name.to_str().filter(|id| is_identifier(id));
    let Some(id) = id.filter(|_| !name.exists()) else { return Ok(name.to_owned()) };
    let absent = |place: String| {
        format!(
            "'{id}' is neither a directory nor in the cache of Hugging Face: {place}. Nothing is downloaded"
        )
    };
    let Some(cache) = cache else {
        return Err(absent(String::from("HF_HOME and HOME aren't set")));
    };
    let repository = cache.join(format!("models--{}", id.replace('/', "--")));
    let snapshot = repository.join("snapshots").join(revision(&repository)?);
    if snapshot.is_dir() {
        return Ok(snapshot);
    }
    Err(absent(format!("there is no directory '{}'", snapshot.display())))
}

/// True for an identifier at Hugging Face: a name, or an organization, a slash and a name.
fn is_identifier(id: &str) -> bool {
    let is_name = |name: &str| {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        !name.is_empty()
            && name.chars().all(is_letter)
            && !name.starts_with(['.', '-'])
            && !name.ends_with(['.', '-'])
    };
    id.len() <= ID_LENGTH_MAX
        && id.split('/').count() <= 2
        && id.split('/').all(is_name)
        && !id.contains("--")
        && !id.contains("..")
}

/// Reads the revision of the main branch.
fn revision(repository: &Path) -> Result<String, String> {
    let file = repository.join("refs").join(BRANCH);
    if !file.is_file() {
        return Ok(String::from(BRANCH));
    }
    let mut text = String::new();
    let limit = u64::try_from(REVISION_LENGTH_MAX).unwrap_or(u64::MAX);
    let read = File::open(&file).and_then(|file| file.take(limit).read_to_string(&mut text));
    let reason = match read {
        Err(error) => error.to_string(),
        Ok(_) => match text.trim() {
            revision
                if revision.bytes().all(|byte| byte.is_ascii_alphanumeric())
                    && !revision.is_empty() =>
            {
                return Ok(revision.to_owned());
            }
            _ => String::from("it contains no revision"),
        },
    };
    Err(format!("'{}' can't be read: {reason}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn identifiers_lead_nowhere_else() {
        for id in ["gpt2", "org/name", "Qwen/Qwen2.5-0.5B_x"] {
            assert!(is_identifier(id), "{id}");
        }
        let long = "a".repeat(ID_LENGTH_MAX + 1);
        for id in [
            "", "/", "a/", "/a", "a/b/c", "..", "../a", "a/..", "a..b", "a--b", "./a", "~/a",
            "a b", "a\\b", "-a", "a.", "a/.b", "\u{e9}", &long,
        ] {
            assert!(!is_identifier(id), "{id}");
            assert_eq!(tokenizer_folder(Path::new(id), None), Ok(PathBuf::from(id)), "{id}");
        }
    }

    #[test]
    fn the_revision_of_the_main_branch_is_used() {
        let cache = std::env::temp_dir().join(format!("galatea-hub-{}", std::process::id()));
        let repository = cache.join("models--org--name");
        let find = || tokenizer_folder(Path::new("org/name"), Some(&cache));
        let error = find().unwrap_err();
        assert!(error.contains(&*repository.join("snapshots/main").to_string_lossy()), "{error}");
        assert!(error.ends_with("Nothing is downloaded"), "{error}");
        fs::create_dir_all(repository.join("refs")).unwrap();
        fs::create_dir_all(repository.join("snapshots/main")).unwrap();
        assert_eq!(find(), Ok(repository.join("snapshots/main")));
        for (revision, expected) in [
            ("abc123\n", None),
            ("../../../outside", Some("it contains no revision")),
            ("", Some("it contains no revision")),
        ] {
            fs::write(repository.join("refs/main"), revision).unwrap();
            let found = find().unwrap_err();
            assert!(found.contains(expected.unwrap_or("snapshots/abc123")), "{found}");
        }
        fs::write(repository.join("refs/main"), "abc123").unwrap();
        fs::create_dir_all(repository.join("snapshots/abc123")).unwrap();
        assert_eq!(find(), Ok(repository.join("snapshots/abc123")));
        let unset = tokenizer_folder(Path::new("org/name"), None).unwrap_err();
        assert!(unset.contains("HF_HOME and HOME aren't set"), "{unset}");
        // A directory comes first.
        assert_eq!(tokenizer_folder(&cache, None), Ok(cache.clone()));
        fs::remove_dir_all(&cache).unwrap();
    }
}
