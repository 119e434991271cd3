//! Tests of repositories in an in-memory store that counts requests.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use galatea_backend::ModelFiles;
use galatea_stdx::Lock;

use super::ahead::BUCKET_AHEAD_BYTES_MAX;
use super::{
    InFlightDownloads, ObjectDownload, ObjectVersion, RemoteConnector, RemoteError, RemoteObject,
    RemoteRepository, RemoteStore,
};
use crate::testing::ScratchDirectory;
use crate::{LookupResult, ModelRepositories, ScanOptions, ScanResult, ScannedModel};

#[derive(Debug, Default)]
struct Memory {
    objects: BTreeMap<String, (String, i64)>,
    /// Objects that are overwritten once, between the listing and the copy.
    written_meanwhile: BTreeMap<String, String>,
    /// The sizes that listings show for these objects.
    byte_sizes: BTreeMap<String, u64>,
    /// Copies fail if their path contains this string.
    broken: Option<String>,
    /// The number of free bytes for copies, if known.
    free_bytes: Option<u64>,
    downloads: Vec<String>,
    lists: usize,
}

#[derive(Clone, Debug, Default)]
struct FakeStore(Arc<Lock<Memory>>);

impl FakeStore {
    fn put(&self, path: &str, text: &str) {
        let mut memory = self.0.lock("write an object");
        memory.objects.insert(path.to_owned(), (text.to_owned(), 1_000_000_000));
    }

    fn remove(&self, path: &str) {
        self.0.lock("remove an object").objects.remove(path).unwrap();
    }

    fn downloads(&self) -> Vec<String> {
        let mut taken = std::mem::take(&mut self.0.lock("take the list").downloads);
        taken.sort_unstable();
        taken
    }
}

impl RemoteStore for FakeStore {
    fn list(&self, folder: &str, count_max: usize) -> Result<Vec<RemoteObject>, RemoteError> {
        let mut memory = self.0.lock("list objects");
        memory.lists += 1;
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let inside = memory.objects.iter().filter(|(path, _)| path.starts_with(&prefix));
        if let Some((path, _)) = inside.clone().find(|(path, _)| path.contains("//")) {
            return Err(RemoteError::Name(format!("'{path}' is no path")));
        }
        let listed: Vec<RemoteObject> = inside
            .map(|(path, (text, modified_ns))| RemoteObject {
                path: path.clone(),
                state: ObjectVersion {
                    byte_size: memory.byte_sizes.get(path).copied().unwrap_or(text.len() as u64),
                    etag: Some(text.clone()),
                    modified_ns: *modified_ns,
                },
            })
            .collect();
        if listed.len() > count_max {
            return Err(RemoteError::Failed(String::from("too many objects")));
        }
        Ok(listed)
    }

    fn folders(&self) -> Result<Vec<String>, RemoteError> {
        let memory = self.0.lock("list folders");
        let first = |path: &String| Some(path.split_once('/')?.0.to_owned());
        let mut folders: Vec<String> = memory.objects.keys().filter_map(first).collect();
        folders.dedup();
        Ok(folders)
    }

    fn begin(&self, downloads: Vec<ObjectDownload>) -> InFlightDownloads {
        let mut memory = self.0.lock("copy objects");
        let mut copy = |download: &ObjectDownload| {
            let path = &download.object.path;
            if let Some(text) = memory.written_meanwhile.remove(path) {
                memory.objects.insert(path.clone(), (text, 1_000_000_000));
            }
            let (text, _) = memory.objects.get(path).cloned().unwrap_or_default();
            if download.object.state.etag.as_deref() != Some(&text) {
                return Err(RemoteError::Changed { path: path.clone() });
            }
            if memory.broken.as_ref() == Some(path) {
                return Err(RemoteError::Failed(format!("'{path}' is broken")));
            }
            std::fs::write(&download.file, text).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
            std::fs::File::open(&download.file).unwrap().set_modified(time).unwrap();
            memory.downloads.push(path.clone());
            Ok(())
        };
        let results = downloads.iter().map(&mut copy).collect();
        Box::new(|| results)
    }

    fn free_bytes(&self, _directory: &Path) -> Option<u64> {
        self.0.lock("ask for the room").free_bytes
    }
}

#[derive(Debug)]
struct FakeConnector(FakeStore, std::path::PathBuf);

impl RemoteConnector for FakeConnector {
    fn connect(&self, url: &str) -> Result<RemoteRepository, RemoteError> {
        if url != "s3://bucket/models" {
            return Err(RemoteError::Failed(format!("no such bucket: {url}")));
        }
        Ok(RemoteRepository { store: Arc::new(self.0.clone()), copies: self.1.clone() })
    }
}

struct World {
    scratch: ScratchDirectory,
    store: FakeStore,
    repository: ModelRepositories,
}

impl World {
    fn new(objects: &[(&str, &str)]) -> Self {
        let (scratch, store) = (ScratchDirectory::new(), FakeStore::default());
        objects.iter().for_each(|(path, text)| store.put(path, text));
        let connector = Arc::new(FakeConnector(store.clone(), scratch.path().to_owned()));
        let repository =
            ModelRepositories::open_with(["s3://bucket/models"], Some(connector)).unwrap();
        Self { scratch, store, repository }
    }

    fn scan(&self) -> ScanResult {
        self.repository.scan(&ScanOptions::default())
    }

    fn model(&self) -> ScannedModel {
        let ScanResult { mut models, problems } = self.scan();
        assert!(problems.is_empty(), "{problems:?}");
        models.remove(0)
    }

    fn copies(&self) -> usize {
        std::fs::read_dir(self.scratch.path()).unwrap().count()
    }
}

const MODEL: [(&str, &str); 4] = [
    ("m/config.pbtxt", "backend: \"b\""),
    ("m/labels.txt", "cat"),
    ("m/1/model.onnx", "one"),
    ("m/2/deep/weights", "two"),
];

#[test]
fn only_what_a_definition_needs_is_copied_before_a_load() {
    let world = World::new(&MODEL);
    assert_eq!(world.repository.list_model_names()[0].name, "m");
    assert!(world.store.downloads().is_empty(), "names need no files");
    let model = world.model();
    assert_eq!(world.store.downloads(), ["m/config.pbtxt", "m/labels.txt"]);
    let config = model.config.unwrap();
    assert_eq!(config.text, "backend: \"b\"");
    assert_eq!(config.path.to_str(), Some("s3://bucket/models/m/config.pbtxt"));
    assert_eq!(model.directory.real_path().to_str(), Some("s3://bucket/models/m"));
    let versions: Vec<_> = model.versions.iter().map(|one| (one.number, &one.files)).collect();
    assert_eq!(versions, [(1, &vec!["model.onnx".to_owned()]), (2, &vec!["deep".to_owned()])]);

    let (one, two) = (model.directory.version_directory(1), model.directory.version_directory(2));
    one.fetch().unwrap();
    assert_eq!(world.store.downloads(), ["m/1/model.onnx", "m/2/deep/weights"]);
    two.fetch().unwrap();
    assert!(world.store.downloads().is_empty(), "versions share the copy");
    assert_eq!(std::fs::read(one.resolve("model.onnx").unwrap()).unwrap(), b"one");
    assert_eq!(std::fs::read(two.resolve("deep/weights").unwrap()).unwrap(), b"two");
    let mode = std::fs::metadata(one.model_path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_copy_lives_as_long_as_its_last_user() {
    let world = World::new(&MODEL);
    let model = world.model();
    let version = model.directory.version_directory(1);
    version.fetch().unwrap();
    world.store.downloads();
    let again = world.model();
    assert_eq!(again.directory.path(), model.directory.path(), "nothing changed");
    assert!(world.store.downloads().is_empty());
    drop((model, again));
    assert_eq!(world.copies(), 1);
    drop(version);
    assert_eq!(world.copies(), 0);
}

#[test]
fn only_what_changed_is_copied_again() {
    let world = World::new(&MODEL);
    let before = world.model();
    before.directory.fetch().unwrap();
    world.store.downloads();
    world.store.put("m/2/deep/weights", "new");
    let after = world.model();
    assert_ne!(after.directory.path(), before.directory.path());
    assert!(after.modified.is_newer_than(&before.modified), "within the second too");
    assert!(after.modified.version_is_newer_than(2, &before.modified));
    assert!(!after.modified.version_is_newer_than(1, &before.modified));
    after.directory.fetch().unwrap();
    assert_eq!(world.store.downloads(), ["m/2/deep/weights"]);
    let read = |model: &ScannedModel, path| {
        std::fs::read_to_string(model.directory.path().join(path)).unwrap()
    };
    assert_eq!(
        (read(&before, "2/deep/weights"), read(&after, "2/deep/weights")),
        ("two".into(), "new".into())
    );
    assert_eq!(read(&after, "1/model.onnx"), "one");

    // The model wrote to its file, so the next copy does not share it.
    std::fs::write(after.directory.path().join("labels.txt"), "dog").unwrap();
    world.store.remove("m/2/deep/weights");
    let last = world.model();
    assert!(last.modified.version_is_newer_than(2, &after.modified), "a removal is a change");
    assert_eq!(world.store.downloads(), ["m/labels.txt"]);
    assert_eq!(read(&last, "labels.txt"), "cat");
}

#[test]
fn a_failed_copy_is_told_and_continued() {
    let world = World::new(&MODEL);
    let model = world.model();
    world.store.downloads();
    world.store.0.lock("break").broken = Some("m/2/deep/weights".into());
    let error = model.directory.fetch().unwrap_err().to_string();
    assert!(error.contains("'m/2/deep/weights' is broken"), "{error}");
    assert_eq!(world.store.downloads(), ["m/1/model.onnx"]);
    world.store.0.lock("repair").broken = None;
    model.directory.fetch().unwrap();
    assert_eq!(world.store.downloads(), ["m/2/deep/weights"]);
}

#[test]
fn a_copy_may_begin_before_a_thread_waits_for_it() {
    let world = World::new(&MODEL);
    let model = world.model();
    world.store.downloads();
    let (one, two) = (model.directory.version_directory(1), model.directory.version_directory(2));
    one.fetch_ahead();
    two.fetch_ahead();
    let begun = world.store.downloads();
    assert_eq!(begun, ["m/1/model.onnx", "m/2/deep/weights"], "once, for all versions");
    one.fetch().unwrap();
    two.fetch().unwrap();
    one.fetch_ahead();
    assert!(world.store.downloads().is_empty());
    assert_eq!(std::fs::read(one.resolve("model.onnx").unwrap()).unwrap(), b"one");
}

#[test]
fn what_fails_early_is_told_once_and_tried_again() {
    let world = World::new(&MODEL);
    let model = world.model();
    world.store.0.lock("break").broken = Some("m/2/deep/weights".into());
    let version = model.directory.version_directory(1);
    version.fetch_ahead();
    world.store.downloads();
    world.store.0.lock("repair").broken = None;
    let error = version.fetch().unwrap_err().to_string();
    assert!(error.contains("'m/2/deep/weights' is broken"), "{error}");
    version.fetch().unwrap();
    assert_eq!(world.store.downloads(), ["m/2/deep/weights"]);
}

#[test]
fn copies_begin_early_as_far_as_there_is_room() {
    let world = World::new(&[("a/1/x", "1"), ("b/1/x", "2"), ("c/1/x", "3"), ("d/1/x", "4")]);
    // The listings claim large sizes; a quarter of one exceeds the room for all.
    let room = BUCKET_AHEAD_BYTES_MAX;
    world.store.0.lock("pretend").byte_sizes =
        [("a/1/x", room / 2), ("b/1/x", room / 2 + 1), ("c/1/x", room / 2), ("d/1/x", room + 1)]
            .map(|(path, byte_size)| (path.to_owned(), byte_size))
            .into();
    let ScanResult { models, .. } = world.scan();
    let versions: Vec<_> =
        models.iter().map(|model| model.directory.version_directory(1)).collect();
    drop(models);
    let [a, b, c, d] = versions.try_into().unwrap();
    [&a, &b, &c, &d].into_iter().for_each(ModelFiles::fetch_ahead);
    assert_eq!(world.store.downloads(), ["a/1/x"]);
    a.fetch().unwrap();
    assert_eq!(world.store.downloads(), ["b/1/x"], "it had to wait for the room");
    // A dropped model needs no room.
    drop(b);
    d.fetch().unwrap();
    assert_eq!(world.store.downloads(), ["c/1/x", "d/1/x"], "too large to begin early");
    c.fetch().unwrap();
    assert!(world.store.downloads().is_empty());
}

#[test]
fn without_room_nothing_begins_early_and_what_does_not_fit_is_refused() {
    let world = World::new(&[("a/1/x", "12345678")]);
    let pretend = |free_bytes| {
        world.store.0.lock("pretend").free_bytes = Some(free_bytes);
    };
    pretend(2 * BUCKET_AHEAD_BYTES_MAX - 1);
    let ScanResult { models, .. } = world.scan();
    let version = models.first().unwrap().directory.version_directory(1);
    version.fetch_ahead();
    assert!(world.store.downloads().is_empty(), "the room is for one copy at a time");
    pretend(7);
    let error = version.fetch().unwrap_err().to_string();
    assert!(error.contains("has 7 bytes left, and 8 are needed"), "{error}");
    pretend(8);
    version.fetch().unwrap();
    assert_eq!(world.store.downloads(), ["a/1/x"]);
}

#[test]
fn objects_that_change_meanwhile_never_mix() {
    let world = World::new(&MODEL);
    let meanwhile = |path: &str| {
        let mut memory = world.store.0.lock("prepare a change");
        memory.written_meanwhile.insert(path.to_owned(), "later".to_owned());
    };
    meanwhile("m/config.pbtxt");
    let model = world.model();
    assert_eq!(model.config.as_ref().unwrap().text, "later", "it is listed again");
    meanwhile("m/1/model.onnx");
    let error = model.directory.fetch().unwrap_err().to_string();
    assert!(error.contains("'m/1/model.onnx' changed while it was read"), "{error}");
    world.model().directory.fetch().unwrap();
}

#[test]
fn a_name_that_leads_out_spoils_only_its_model() {
    let world = World::new(&MODEL);
    world.store.put("evil/1/../../x", "x");
    world.store.put("ev\til/1/x", "x");
    let scan = world.scan();
    assert_eq!(scan.models.len(), 1);
    let problems: Vec<String> = scan.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().any(|text| text.contains("its path leads elsewhere")), "{problems:?}");
    let found = world.repository.find("evil", &ScanOptions::default());
    assert!(matches!(found, LookupResult::Problem(_)), "{found:?}");
    let absent = world.repository.find("nothing", &ScanOptions::default());
    assert!(matches!(absent, LookupResult::Missing), "{absent:?}");
    assert!(matches!(world.repository.find("m", &ScanOptions::default()), LookupResult::Models(_)));
}

#[test]
fn a_repository_that_cannot_be_opened_says_why() {
    let world = World::new(&MODEL);
    let error = world.repository.register("s3://other", &[]).unwrap_err().to_string();
    let expected =
        "failed to register 's3://other', repository not found: no such bucket: s3://other";
    assert_eq!(error, expected);
}

#[test]
fn a_name_that_is_no_path_concerns_its_model_alone() {
    let world = World::new(&[("a/1/m", "x"), ("b//1/m", "x"), ("c/1/m", "x")]);
    let ScanResult { models, problems } = world.scan();
    let found: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    assert_eq!(found, ["a", "c"]);
    assert!(format!("{problems:?}").contains("'b//1/m' is no path"), "{problems:?}");
    world.store.remove("b//1/m");
    let before = world.store.0.lock("count").lists;
    assert!(world.scan().problems.is_empty());
    assert_eq!(world.store.0.lock("count").lists, before + 1, "one list is enough again");
}
