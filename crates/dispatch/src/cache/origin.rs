//! Which model it is that answers.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use blake3::Hasher;
use galatea_backend::{BackendFingerprint, FileFingerprint, ModelFiles};
use galatea_config::ModelSpec;

use super::key::{bytes, count, text};
use crate::ComposingVersions;

/// A hash of what a model's answers depend on beside the request: its id, version,
/// configuration and files, its backend, the models that it needs, and how often the
/// server has loaded it. A model that calls others while it executes depends on those
/// too, but nobody knows beforehand on which.
///
/// It is the same in the next run of the server if all these are, because a cache may
/// outlive a run; but within a run nothing that was loaded anew has the answers of what
/// was there before.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin(pub(super) [u8; 32]);

/// What a version's files look like before they are read.
pub(crate) struct Marks {
    version: i64,
    files: Option<Vec<FileFingerprint>>,
}

impl Marks {
    pub(crate) fn of(files: &dyn ModelFiles) -> Self {
        Self { version: files.version(), files: files.fingerprints() }
    }
}

/// What a version is made of.
pub(crate) struct Ingredients<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) marks: Marks,
    /// `None` if the backend can't be told from what it was in another run.
    pub(crate) backend: Option<BackendFingerprint>,
    pub(crate) composing: Option<&'a dyn ComposingVersions>,
}

/// Counts the loads of each version.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    loads: Mutex<BTreeMap<(String, i64), u64>>,
}

impl Origins {
    /// The origin of a version that is being loaded.
    pub(crate) fn next(&self, id: &str, made_of: &Ingredients<'_>) -> Origin {
        let Ingredients { spec, marks, backend, composing } = made_of;
        let mut hasher = Hasher::new();
        text(&mut hasher, env!("CARGO_PKG_VERSION"));
        text(&mut hasher, id);
        hasher.update(&marks.version.to_le_bytes());
        text(&mut hasher, &spec.to_json());
        hasher.update(&self.count(id, marks.version).to_le_bytes());
        match &marks.files {
            Some(files) => marked(&mut hasher, files),
            None => unlike_any_other(&mut hasher),
        }
        match backend {
            Some(backend) => fingerprint(&mut hasher, backend),
            None => unlike_any_other(&mut hasher),
        }
        for needed in composing.iter().flat_map(|composing| composing.versions()) {
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

fn fingerprint(hasher: &mut Hasher, backend: &BackendFingerprint) {
    text(hasher, &backend.version);
    count(hasher, backend.settings.len());
    for (key, value) in &backend.settings {
        text(hasher, key);
        text(hasher, value);
    }
    marked(hasher, &backend.files);
}

fn marked(hasher: &mut Hasher, files: &[FileFingerprint]) {
    count(hasher, files.len());
    for mark in files {
        bytes(hasher, mark.path().as_os_str().as_bytes());
        hasher.update(&mark.byte_size().to_le_bytes());
        hasher.update(&mark.modified_ns().to_le_bytes());
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

    /// A file that changed so many nanoseconds after some time.
    fn file(path: &str, changed_ns: i64) -> FileFingerprint {
        FileFingerprint::new(PathBuf::from(path), 3, 1_000_000_000_000_000_000 + changed_ns)
            .unwrap()
    }

    fn made_of(spec: &ModelSpec, version: i64, changed_ns: i64) -> Ingredients<'_> {
        let marks = Marks { version, files: Some(vec![file("1/model", changed_ns)]) };
        let backend = Some(BackendFingerprint::of_version("1"));
        Ingredients { spec, marks, backend, composing: None }
    }

    fn first(made_of: &Ingredients<'_>) -> Origin {
        Origins::default().next("echo", made_of)
    }

    #[test]
    fn what_a_model_is_made_of_tells_it_from_others() {
        let (echo, other) = (spec(ECHO), spec(&ECHO.replace("8", "4")));
        let same = first(&made_of(&echo, 1, 5));
        assert_eq!(same, first(&made_of(&echo, 1, 5)), "another run of the server");
        assert_ne!(same, first(&made_of(&echo, 2, 5)));
        assert_ne!(same, first(&made_of(&echo, 1, 6)));
        assert_ne!(same, first(&made_of(&other, 1, 5)));
        let elsewhere = Origins::default().next("/a::echo", &made_of(&echo, 1, 5));
        assert_ne!(same, elsewhere, "one of the same name");
        let files = Marks { version: 1, files: None };
        let unknown = Ingredients { marks: files, ..made_of(&echo, 1, 5) };
        assert_ne!(first(&unknown), first(&unknown));
    }

    #[test]
    fn a_backend_that_changed_makes_another_model() {
        let echo = spec(ECHO);
        let with = |backend| first(&Ingredients { backend, ..made_of(&echo, 1, 5) });
        let own = |pairs: &[(&str, &str)], changed_ns| BackendFingerprint {
            version: String::from("1"),
            settings: pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            files: vec![file("/backends/lib.so", changed_ns)],
        };
        let same = with(Some(own(&[("a", "b")], 1)));
        assert_eq!(same, with(Some(own(&[("a", "b")], 1))), "another run of the server");
        let others = [
            own(&[], 1),
            own(&[("a", "c")], 1),
            own(&[("a", "b"), ("c", "")], 1),
            own(&[("a", "b")], 2),
            BackendFingerprint { files: Vec::new(), ..own(&[("a", "b")], 1) },
            BackendFingerprint { version: String::from("2"), ..own(&[("a", "b")], 1) },
        ];
        for other in others {
            assert_ne!(same, with(Some(other.clone())), "{other:?}");
        }
        assert_ne!(with(None), with(None), "nobody knows");
    }

    #[test]
    fn a_model_that_is_loaded_again_is_another() {
        let (origins, echo) = (Origins::default(), spec(ECHO));
        let loaded = [(); 3].map(|()| origins.next("echo", &made_of(&echo, 1, 5)));
        assert!(loaded[0] != loaded[1] && loaded[1] != loaded[2] && loaded[0] != loaded[2]);
        let again = Origins::default();
        assert_eq!(loaded, [(); 3].map(|()| again.next("echo", &made_of(&echo, 1, 5))));
    }
}
