//! Seeds that change with the sources under test.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::workspace;

/// The folders of the schedulers and their simulator.
const SCHEDULERS: [&str; 2] = ["crates/policy", "crates/sim"];

/// The first seed for the scheduler sources. Room for 65,536 seeds follows.
pub(crate) fn of_schedulers() -> Result<u64, String> {
    let mut files = Vec::new();
    for folder in SCHEDULERS {
        add_files(&workspace::root().join(folder), &mut files)?;
    }
    files.sort_unstable();
    let read = |path: &PathBuf| {
        fs::read(path).map_err(|error| format!("can't read {}: {error}", path.display()))
    };
    Ok(of_contents(&files.iter().map(read).collect::<Result<Vec<_>, _>>()?))
}

fn of_contents(files: &[Vec<u8>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    hasher.finish() >> 32 << 16
}

fn add_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let failed = |error| format!("can't list {}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            add_files(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_chooses_other_seeds() {
        let seed = |files: [&str; 2]| of_contents(&files.map(|file| file.as_bytes().to_vec()));
        assert_eq!(seed(["a", "b"]), seed(["a", "b"]));
        assert_ne!(seed(["a", "b"]), seed(["a", "c"]));
    }

    #[test]
    fn the_schedulers_have_seeds_of_their_own() {
        assert_ne!(of_schedulers().unwrap(), of_contents(&[]));
        assert_eq!(of_schedulers(), of_schedulers());
    }
}
