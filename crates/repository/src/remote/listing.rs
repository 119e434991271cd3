//! Assigns objects to models.
//!
//! A store has no directories: `m/1/model.onnx` is a name. Names become file paths here, so each
//! name is checked. Otherwise, a client that can write to the bucket could write anywhere on this
//! machine.

use std::collections::{BTreeMap, BTreeSet};

use galatea_gate::text::format_bounded;

use super::{ObjectVersion, RemoteObject};
use crate::name::MODEL_NAME_BYTES_MAX;
use crate::version::version_number;

/// The maximum length of an object's path within a model's directory, in bytes, as in S3.
const BUCKET_PATH_BYTES_MAX: usize = 1024;
/// The maximum number of directories in an object's path, each of which is created.
const BUCKET_PATH_DEPTH_MAX: usize = 32;
/// The maximum size of a model in a bucket: a tebibyte, more than any machine's memory. Free disk
/// space is checked separately.
const BUCKET_MODEL_BYTES_MAX: u64 = 1 << 40;

/// The objects of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelListing {
    /// The model's files, by path within its directory.
    pub(crate) files: BTreeMap<String, ObjectVersion>,
    /// The model's directories, each after its parent.
    pub(crate) directories: BTreeSet<String>,
}

/// Groups the objects of a repository by model. Objects directly in the repository are ignored,
/// like files in a local repository. An invalid object name invalidates only its own model.
pub(crate) fn by_model(
    objects: Vec<RemoteObject>,
) -> BTreeMap<String, Result<ModelListing, String>> {
    let mut models: BTreeMap<String, Vec<(String, ObjectVersion)>> = BTreeMap::new();
    for object in objects {
        if let Some((model, path)) = object.path.split_once('/') {
            models.entry(model.to_owned()).or_default().push((path.to_owned(), object.state));
        }
    }
    models.into_iter().map(|(name, objects)| (name, ModelListing::new(objects))).collect()
}

impl ModelListing {
    /// Builds the listing of these objects, by path within the model's directory.
    fn new(objects: Vec<(String, ObjectVersion)>) -> Result<Self, String> {
        let mut listing = Self::default();
        for (path, state) in objects {
            check_path(&path)?;
            listing.directories.extend(folders_of(&path).map(str::to_owned));
            listing.files.insert(path, state);
        }
        listing.take_out_markers()?;
        let bytes = listing.files.values().try_fold(0_u64, |sum, file| {
            sum.checked_add(file.byte_size).filter(|sum| *sum <= BUCKET_MODEL_BYTES_MAX)
        });
        match bytes {
            Some(_) => Ok(listing),
            None => Err(format!("it has more than {} bytes", BUCKET_MODEL_BYTES_MAX)),
        }
    }

    /// Removes markers: empty objects named like directories, created by tools that present buckets
    /// as directories.
    fn take_out_markers(&mut self) -> Result<(), String> {
        let (files, directories) = (&self.files, &mut self.directories);
        let is_marker = |path: &String, state: &ObjectVersion| {
            let is_version = !path.contains('/') && version_number(path).is_ok();
            state.byte_size == 0 && is_version
        };
        let versions = files.iter().filter(|(path, state)| is_marker(path, state));
        directories.extend(versions.map(|(path, _)| path.clone()));
        for path in directories.iter() {
            if self.files.remove(path).is_some_and(|state| state.byte_size > 0) {
                let path = format_bounded(path.escape_debug(), BUCKET_PATH_BYTES_MAX);
                return Err(format!("'{path}' is an object and the folder of another one"));
            }
        }
        Ok(())
    }

    /// The sizes of a version's files, in bytes.
    pub(crate) fn version_bytes(&self, version: i64) -> u64 {
        let folder = format!("{version}/");
        let files = self.files.iter().filter(|(path, _)| path.starts_with(&folder));
        files.fold(0, |sum: u64, (_, file)| sum.saturating_add(file.byte_size))
    }

    /// The sorted names of a directory's immediate entries.
    pub(crate) fn names_in(&self, directory: &str) -> Vec<String> {
        let inside = |path: &String| {
            let name = path.strip_prefix(directory)?.strip_prefix('/')?;
            (!name.contains('/')).then(|| name.to_owned())
        };
        let mut names: Vec<String> =
            self.files.keys().chain(&self.directories).filter_map(inside).collect();
        names.sort_unstable();
        names
    }
}

/// Returns true if a file is in a version's directory.
pub(crate) fn is_in_version(path: &str) -> bool {
    path.split_once('/').is_some_and(|(first, _)| version_number(first).is_ok())
}

/// The directories that contain a file, from the topmost down.
fn folders_of(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(|(end, _)| path.get(..end))
}

/// Refuses a path that leads out of the model's directory or is not a valid file path.
fn check_path(path: &str) -> Result<(), String> {
    let refused = |reason: &str| {
        let shown = format_bounded(path.escape_debug(), BUCKET_PATH_BYTES_MAX);
        Err(format!("object '{shown}' can't be a file: {reason}"))
    };
    if path.len() > BUCKET_PATH_BYTES_MAX {
        return refused("its path is longer than 1024 bytes");
    }
    if path.contains(char::is_control) {
        return refused("its path contains a control character");
    }
    if path.split('/').count() > BUCKET_PATH_DEPTH_MAX {
        return refused("it is in more than 32 folders");
    }
    for segment in path.split('/') {
        match segment {
            "" => return refused("its path has an empty part"),
            "." | ".." => return refused("its path leads elsewhere"),
            long if long.len() > MODEL_NAME_BYTES_MAX => {
                return refused("a part of its path is longer than 255 bytes");
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(path: &str, byte_size: u64) -> RemoteObject {
        let state = ObjectVersion { byte_size, ..ObjectVersion::default() };
        RemoteObject { path: path.to_owned(), state }
    }

    fn one(paths: &[(&str, u64)]) -> Result<ModelListing, String> {
        let objects = paths.iter().map(|(path, size)| object(&format!("m/{path}"), *size));
        by_model(objects.collect()).remove("m").unwrap()
    }

    #[test]
    fn objects_are_files_of_their_models() {
        let paths = ["README", "a/config.pbtxt", "a/1/deep/weights", "b/1/model"];
        let models = by_model(paths.iter().map(|path| object(path, 3)).collect());
        assert_eq!(models.keys().collect::<Vec<_>>(), ["a", "b"]);
        let a = models["a"].as_ref().unwrap();
        assert_eq!(a.files.keys().collect::<Vec<_>>(), ["1/deep/weights", "config.pbtxt"]);
        assert_eq!(a.directories.iter().collect::<Vec<_>>(), ["1", "1/deep"]);
        assert_eq!(
            (a.names_in("1"), a.names_in("1/deep")),
            (vec!["deep".into()], vec!["weights".into()])
        );
    }

    #[test]
    fn a_version_has_the_bytes_of_its_files() {
        let files = [("1/model", 3), ("1/deep/weights", 4), ("10/model", 50), ("config.pbtxt", 9)];
        let listing = one(&files).unwrap();
        assert_eq!([1, 2, 10].map(|version| listing.version_bytes(version)), [7, 0, 50]);
    }

    #[test]
    fn no_object_leads_out_of_its_directory() {
        let long = "x".repeat(256);
        let deep = "d/".repeat(40) + "x";
        for path in [
            "../x",
            "1/../../x",
            "/etc/passwd",
            "1//x",
            "",
            ".",
            "1/./x",
            "a\0b",
            "a\nb",
            "1/",
            &long,
            &deep,
        ] {
            let error = one(&[("1/model", 1), (path, 1)]).unwrap_err();
            assert!(error.contains("can't be a file"), "{path:?}: {error}");
            assert!(error.len() < 2000);
        }
    }

    #[test]
    fn markers_of_directories_are_no_files() {
        let listing =
            one(&[("1", 0), ("1/model", 4), ("2", 0), ("data", 0), ("data/x", 1)]).unwrap();
        assert_eq!(listing.files.keys().collect::<Vec<_>>(), ["1/model", "data/x"]);
        assert_eq!(listing.directories.iter().collect::<Vec<_>>(), ["1", "2", "data"]);
        assert!(one(&[("empty.txt", 0)]).unwrap().files.contains_key("empty.txt"));
        let error = one(&[("data", 1), ("data/x", 1)]).unwrap_err();
        assert_eq!(error, "'data' is an object and the folder of another one");
    }

    #[test]
    fn a_model_has_a_limit_in_bytes() {
        assert!(one(&[("1/a", BUCKET_MODEL_BYTES_MAX)]).is_ok());
        assert!(one(&[("1/a", BUCKET_MODEL_BYTES_MAX), ("1/b", 1)]).is_err());
        assert!(one(&[("1/a", u64::MAX), ("1/b", u64::MAX)]).is_err());
    }
}
