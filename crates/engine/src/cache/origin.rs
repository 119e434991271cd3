//! Which model it is that answers.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use blake3::Hasher;
use galatea_backend::{FileMark, ModelFiles};
use galatea_config::ModelSpec;

use super::key::{bytes, count, text};
use crate::composing::PinnedModels;

/// A hash of what a model's answers depend on beside the request: its id, version,
/// configuration and files, the models that it needs, and how often the server has
/// loaded it.
///
/// It is the same in the next run of the server if the files are, because a cache may
/// outlive a run; but within a run nothing that was loaded anew has the answers of what
/// was there before.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin(pub(super) [u8; 32]);

/// What a version's files look like before they are read.
pub(crate) struct Marks {
    version: i64,
    files: Option<Vec<FileMark>>,
}

impl Marks {
    pub(crate) fn of(files: &dyn ModelFiles) -> Self {
        Self { version: files.version(), files: files.marks() }
    }
}

/// Counts the loads of each version.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    loads: Mutex<BTreeMap<(String, i64), u64>>,
}

impl Origins {
    /// The origin of a version that is being loaded.
    pub(crate) fn next(
        &self,
        id: &str,
        spec: &ModelSpec,
        marks: Marks,
        composing: Option<&PinnedModels>,
    ) -> Origin {
        let mut hasher = Hasher::new();
        text(&mut hasher, env!("CARGO_PKG_VERSION"));
        text(&mut hasher, id);
        hasher.update(&marks.version.to_le_bytes());
        text(&mut hasher, &spec.to_json());
        hasher.update(&self.count(id, marks.version).to_le_bytes());
        match &marks.files {
            Some(files) => {
                count(&mut hasher, files.len());
                for mark in files {
                    bytes(&mut hasher, mark.path.as_os_str().as_bytes());
                    hasher.update(&mark.byte_size.to_le_bytes());
                    hasher.update(&mark.modified_ns.to_le_bytes());
                }
            }
            None => unlike_any_other(&mut hasher),
        }
        for needed in composing.into_iter().flat_map(PinnedModels::all) {
            match &needed.origin {
                Some(origin) => bytes(&mut hasher, &origin.0),
                None => unlike_any_other(&mut hasher),
            }
        }
        Origin(*hasher.finalize().as_bytes())
    }

    fn count(&self, id: &str, version: i64) -> u64 {
        let mut loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        let count = loads.entry((id.to_owned(), version)).or_default();
        *count += 1;
        *count
    }
}

/// Of all that the standard library offers, what its tables are seeded with is what
/// comes from the system's randomness.
fn unlike_any_other(hasher: &mut Hasher) {
    hasher.update(&RandomState::new().hash_one("origin").to_le_bytes());
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use galatea_config::Support;

    use super::*;
    use crate::testing::{ECHO, draft};

    fn spec(text: &str) -> ModelSpec {
        draft(text).finish(&Support::default()).unwrap()
    }

    fn marks(version: i64, modified_ns: i64) -> Marks {
        let mark = FileMark { path: PathBuf::from("1/model"), byte_size: 3, modified_ns };
        Marks { version, files: Some(vec![mark]) }
    }

    #[test]
    fn what_a_model_is_made_of_tells_it_from_others() {
        let (echo, other) = (spec(ECHO), spec(&ECHO.replace("8", "4")));
        let first = |spec: &ModelSpec, marks| Origins::default().next("echo", spec, marks, None);
        let same = first(&echo, marks(1, 5));
        assert_eq!(same, first(&echo, marks(1, 5)), "another run of the server");
        assert_ne!(same, first(&echo, marks(2, 5)));
        assert_ne!(same, first(&echo, marks(1, 6)));
        assert_ne!(same, first(&other, marks(1, 5)));
        let elsewhere = Origins::default().next("/a::echo", &echo, marks(1, 5), None);
        assert_ne!(same, elsewhere, "one of the same name");
        let unknown = || Marks { version: 1, files: None };
        assert_ne!(first(&echo, unknown()), first(&echo, unknown()));
    }

    #[test]
    fn a_model_that_is_loaded_again_is_another() {
        let (origins, echo) = (Origins::default(), spec(ECHO));
        let loaded = [(); 3].map(|()| origins.next("echo", &echo, marks(1, 5), None));
        assert!(loaded[0] != loaded[1] && loaded[1] != loaded[2] && loaded[0] != loaded[2]);
        let again = Origins::default();
        assert_eq!(loaded, [(); 3].map(|()| again.next("echo", &echo, marks(1, 5), None)));
    }
}
