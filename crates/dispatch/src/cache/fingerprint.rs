//! Fingerprints, which distinguish one model version's responses from those of other versions.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::OsStrExt;

use blake3::Hasher;
use galatea_backend::{BackendFingerprint, FileFingerprint, ModelFiles};
use galatea_config::ModelSpec;
use galatea_stdx::Lock;

use super::hashing::{add_bytes, add_count, add_text};

/// A hash of everything except the request that affects a version's responses: its model's id, its
/// number, configuration and files, its backend, the versions that it executes as steps, and the
/// number of times that the server has loaded it. A model that calls other models during execution
/// depends on those too, but the server can't know them.
///
/// A cache may outlive the server process, so the hash stays the same across runs if all of these
/// facts stay the same. Within a run, a reloaded version gets a different hash.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionFingerprint(pub(super) [u8; 32]);

/// The fingerprints of a version's files, taken before the files are read.
pub(crate) struct FilesFingerprint {
    version: i64,
    /// The fingerprints; `None` if they can't be determined.
    files: Option<Vec<FileFingerprint>>,
}

impl FilesFingerprint {
    pub(crate) fn of(files: &dyn ModelFiles) -> Self {
        Self { version: files.version(), files: files.fingerprints() }
    }
}

/// The facts used to compute a version's fingerprint.
pub(crate) struct FingerprintInputs<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) files: FilesFingerprint,
    /// The backend's fingerprint; `None` if the backend can't be recognized in another run.
    pub(crate) backend: Option<BackendFingerprint>,
    /// The fingerprints of the composing versions.
    pub(crate) composing: Vec<Option<VersionFingerprint>>,
}

/// Computes fingerprints, and counts the loads of each version for that purpose.
#[derive(Debug, Default)]
pub(crate) struct VersionFingerprints {
    load_counts: Lock<BTreeMap<(String, i64), u64>>,
}

impl VersionFingerprints {
    /// The fingerprint for a version that is being loaded.
    pub(crate) fn next(&self, id: &str, inputs: &FingerprintInputs<'_>) -> VersionFingerprint {
        let FingerprintInputs { spec, files, backend, composing } = inputs;
        let mut hasher = Hasher::new();
        add_text(&mut hasher, env!("CARGO_PKG_VERSION"));
        add_text(&mut hasher, id);
        hasher.update(&files.version.to_le_bytes());
        add_text(&mut hasher, &spec.to_json());
        hasher.update(&self.count_load(id, files.version).to_le_bytes());
        match &files.files {
            Some(files) => add_files(&mut hasher, files),
            None => add_unique(&mut hasher),
        }
        match backend {
            Some(backend) => add_backend(&mut hasher, backend),
            None => add_unique(&mut hasher),
        }
        for version in composing {
            match version {
                Some(fingerprint) => add_bytes(&mut hasher, &fingerprint.0),
                None => add_unique(&mut hasher),
            }
        }
        VersionFingerprint(*hasher.finalize().as_bytes())
    }

    fn count_load(&self, id: &str, version: i64) -> u64 {
        let mut counts = self.load_counts.lock("count a load");
        let count = counts.entry((id.to_owned(), version)).or_default();
        *count += 1;
        *count
    }
}

fn add_backend(hasher: &mut Hasher, backend: &BackendFingerprint) {
    add_text(hasher, &backend.version);
    add_count(hasher, backend.settings.len());
    for (key, value) in &backend.settings {
        add_text(hasher, key);
        add_text(hasher, value);
    }
    add_files(hasher, &backend.files);
}

fn add_files(hasher: &mut Hasher, files: &[FileFingerprint]) {
    add_count(hasher, files.len());
    for file in files {
        add_bytes(hasher, file.path().as_os_str().as_bytes());
        hasher.update(&file.byte_size().to_le_bytes());
        hasher.update(&file.modified_ns().to_le_bytes());
    }
}

/// Adds unique bytes. Hash-table seeds are the only system randomness that the standard library
/// provides.
fn add_unique(hasher: &mut Hasher) {
    hasher.update(&RandomState::new().hash_one("origin").to_le_bytes());
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use galatea_config::SupportedFeatures;

    use super::*;
    use crate::testing::{ECHO, resolved_draft};

    fn spec(text: &str) -> ModelSpec {
        resolved_draft(text).into_validated_spec(&SupportedFeatures::default()).unwrap()
    }

    /// A file that was modified `changed_ns` nanoseconds after a fixed time.
    fn file(path: &str, changed_ns: i64) -> FileFingerprint {
        FileFingerprint::new(PathBuf::from(path), 3, 1_000_000_000_000_000_000 + changed_ns)
            .unwrap()
    }

    fn inputs(spec: &ModelSpec, version: i64, changed_ns: i64) -> FingerprintInputs<'_> {
        let files = FilesFingerprint { version, files: Some(vec![file("1/model", changed_ns)]) };
        let backend = Some(BackendFingerprint::from_version("1"));
        FingerprintInputs { spec, files, backend, composing: Vec::new() }
    }

    fn first(inputs: &FingerprintInputs<'_>) -> VersionFingerprint {
        VersionFingerprints::default().next("echo", inputs)
    }

    #[test]
    fn different_inputs_have_different_fingerprints() {
        let (echo, other) = (spec(ECHO), spec(&ECHO.replace("8", "4")));
        let same = first(&inputs(&echo, 1, 5));
        assert_eq!(same, first(&inputs(&echo, 1, 5)), "another run of the server");
        assert_ne!(same, first(&inputs(&echo, 2, 5)));
        assert_ne!(same, first(&inputs(&echo, 1, 6)));
        assert_ne!(same, first(&inputs(&other, 1, 5)));
        let elsewhere = VersionFingerprints::default().next("/a::echo", &inputs(&echo, 1, 5));
        assert_ne!(same, elsewhere, "one of the same name");
        let files = FilesFingerprint { version: 1, files: None };
        let unknown = FingerprintInputs { files, ..inputs(&echo, 1, 5) };
        assert_ne!(first(&unknown), first(&unknown));
    }

    #[test]
    fn a_changed_backend_changes_the_fingerprint() {
        let echo = spec(ECHO);
        let with = |backend| first(&FingerprintInputs { backend, ..inputs(&echo, 1, 5) });
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
        assert_ne!(with(None), with(None), "an unknown backend");
    }

    #[test]
    fn each_load_within_a_run_has_another_fingerprint() {
        let (fingerprints, echo) = (VersionFingerprints::default(), spec(ECHO));
        let loaded = [(); 3].map(|()| fingerprints.next("echo", &inputs(&echo, 1, 5)));
        assert!(loaded[0] != loaded[1] && loaded[1] != loaded[2] && loaded[0] != loaded[2]);
        let again = VersionFingerprints::default();
        assert_eq!(loaded, [(); 3].map(|()| again.next("echo", &inputs(&echo, 1, 5))));
    }
}
