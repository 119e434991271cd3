//! Tests of repository registration and of the names that it maps to directories. A version's
//! number identifies its directory.

use crate::testing::ScratchDirectory;
use crate::{LookupResult, ModelRepositories, ScanOptions, ScanProblem};

/// Creates the repositories `empty`, `zero` with `m0/1`, and `one` with `m0/2` and `m1/3`.
fn scratch() -> ScratchDirectory {
    let scratch = ScratchDirectory::new();
    std::fs::create_dir(scratch.path().join("empty")).unwrap();
    for path in ["zero/m0/1", "one/m0/2", "one/m1/3"] {
        std::fs::create_dir_all(scratch.path().join(path)).unwrap();
    }
    scratch
}

struct World {
    scratch: ScratchDirectory,
    repository: ModelRepositories,
}

impl World {
    fn new() -> Self {
        let scratch = scratch();
        let repository = ModelRepositories::open([scratch.path().join("empty")]).unwrap();
        Self { scratch, repository }
    }

    fn register(&self, path: &str, names: &[(&str, &str)]) -> Result<(), String> {
        let names: Vec<(String, String)> = names
            .iter()
            .map(|(directory, name)| ((*directory).to_owned(), (*name).to_owned()))
            .collect();
        let done = self.repository.register(self.scratch.path().join(path), &names);
        done.map_err(|error| self.relative(&error.to_string()))
    }

    fn unregister(&self, path: &str) -> Result<(), String> {
        let done = self.repository.unregister(self.scratch.path().join(path));
        done.map_err(|error| self.relative(&error.to_string()))
    }

    fn relative(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.scratch.path().display()), "")
    }

    /// The version of the model with this name: 0 if no such model exists, -1 if there are several.
    fn find(&self, name: &str) -> i64 {
        match self.repository.find(name, &ScanOptions::default()) {
            LookupResult::Missing => 0,
            LookupResult::Problem(ScanProblem::Duplicate { .. }) => -1,
            LookupResult::Problem(problem) => panic!("{problem}"),
            LookupResult::Models(sources) => {
                assert_eq!(sources[0].name, name);
                sources[0].versions[0].number
            }
        }
    }

    /// The listed names, with a star for duplicates.
    fn names(&self) -> Vec<String> {
        let names = self.repository.list_model_names().into_iter();
        names
            .map(|one| format!("{}{}", one.name, if one.is_duplicate { "*" } else { "" }))
            .collect()
    }

    fn check(&self, models: &[(&str, i64)], names: &[&str]) {
        for (name, version) in models {
            assert_eq!(self.find(name), *version, "{name}");
        }
        assert_eq!(self.names(), names);
        let scan = self.repository.scan(&ScanOptions::default());
        let scanned: Vec<String> = scan.models.into_iter().map(|model| model.name).collect();
        let unique = names.iter().filter(|name| !name.ends_with('*'));
        assert!(scanned.iter().eq(unique), "{scanned:?}");
    }
}

#[test]
fn a_repository_is_searched_while_it_is_registered() {
    let world = World::new();
    world.check(&[("m0", 0)], &[]);
    world.register("zero", &[]).unwrap();
    world.check(&[("m0", 1), ("m1", 0)], &["m0"]);
    world.unregister("zero").unwrap();
    world.check(&[("m0", 0)], &[]);
    world.register("one", &[]).unwrap();
    world.check(&[("m0", 2), ("m1", 3)], &["m0", "m1"]);
}

#[test]
fn a_lookup_tells_a_duplicate_name() {
    let world = World::new();
    world.register("zero", &[]).unwrap();
    world.register("one", &[]).unwrap();
    world.check(&[("m0", -1), ("m1", 3)], &["m0*", "m1"]);
    world.unregister("one").unwrap();
    world.check(&[("m0", 1), ("m1", 0)], &["m0"]);
}

#[test]
fn a_mapped_name_replaces_the_name_of_its_directory() {
    let world = World::new();
    world.register("zero", &[("m0", "n0"), ("m0", "n1")]).unwrap();
    world.check(&[("m0", 0), ("n0", 1), ("n1", 1)], &["n0", "n1"]);
    world.unregister("zero").unwrap();
    world.check(&[("n0", 0)], &[]);
    world.register("zero", &[]).unwrap();
    world.check(&[("m0", 1), ("n0", 0)], &["m0"]);
}

#[test]
fn a_mapped_name_takes_precedence_over_directories() {
    let world = World::new();
    world.register("one", &[("m0", "m1")]).unwrap();
    world.check(&[("m0", 0), ("m1", 2)], &["m1"]);
    world.unregister("one").unwrap();
    // An explicit mapping to its own name resolves the ambiguity.
    world.register("zero", &[("m0", "m0")]).unwrap();
    world.register("one", &[]).unwrap();
    world.check(&[("m0", 1), ("m1", 3)], &["m0", "m1"]);
}

#[test]
fn a_mapped_name_without_its_directory_is_no_model() {
    let world = World::new();
    world.register("zero", &[("nothing", "m0")]).unwrap();
    world.register("one", &[]).unwrap();
    world.check(&[("m0", 0), ("m1", 3), ("nothing", 0)], &["m1"]);
}

#[test]
fn refused_registrations_change_nothing_and_say_why() {
    let world = World::new();
    world.register("zero", &[("m0", "n0")]).unwrap();
    let refused = |path: &str, names: &[(&str, &str)], reason: &str| {
        assert_eq!(world.register(path, names).unwrap_err(), reason);
    };
    refused("empty", &[], "model repository 'empty' has already been registered");
    refused("zero", &[], "model repository 'zero' has already been registered");
    refused("nowhere", &[], "failed to register 'nowhere', repository not found");
    let taken = "failed to register 'n0', there is a conflicting mapping for 'n0'";
    refused("one", &[("m1", "new"), ("m0", "n0")], taken);
    let twice = "failed to register 'n9', there is a conflicting mapping for 'n9'";
    refused("one", &[("m0", "n9"), ("m1", "n9")], twice);
    for (directory, name) in [("../zero/m0", "x"), ("m0", "a/b"), ("", "x"), ("m0", "")] {
        let error = world.register("one", &[(directory, name)]).unwrap_err();
        assert!(error.starts_with("failed to register 'one', invalid model name"), "{error}");
    }
    let unknown = "failed to unregister 'one', repository not found";
    assert_eq!(world.unregister("one").unwrap_err(), unknown);
    world.check(&[("n0", 1), ("new", 0)], &["n0"]);
    world.unregister("empty").unwrap();
    assert!(world.unregister("empty").is_err());
    let cloud = world.repository.register("s3://bucket", &[]).unwrap_err().to_string();
    let expected = "failed to register 's3://bucket', repository not found: ";
    assert!(cloud.starts_with(expected), "{cloud}");
}

#[test]
fn with_namespaces_each_repository_has_its_own_models() {
    let scratch = scratch();
    scratch.file("zero/a::b/1/f", "");
    scratch.file("one/:c/1/f", "");
    let root = |path: &str| scratch.path().join(path);
    let repository =
        ModelRepositories::open([root("one"), root("zero")]).unwrap().with_namespaces();
    let id = |namespace: &str, name: &str| format!("{}::{name}", root(namespace).display());
    let scan = repository.scan(&ScanOptions::default());
    let found: Vec<String> = scan
        .models
        .iter()
        .map(|model| format!("{}::{}", model.namespace.as_deref().unwrap(), model.name))
        .collect();
    assert_eq!(found, [id("one", "m0"), id("one", "m1"), id("zero", "m0")]);
    let problems: Vec<String> = scan.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[1].contains(&id("zero", "a\\:\\:b")), "{problems:?}");
    let LookupResult::Models(sources) = repository.find("m0", &ScanOptions::default()) else {
        panic!("both are found");
    };
    let versions: Vec<i64> = sources.iter().map(|source| source.versions[0].number).collect();
    assert_eq!(versions, [2, 1]);
    for name in ["a::b", ":c"] {
        let found = repository.find(name, &ScanOptions::default());
        assert!(matches!(found, LookupResult::Problem(_)), "{name}");
        let names = [(String::from("m0"), String::from(name))];
        assert!(repository.register(root("empty"), &names).is_err(), "{name}");
    }
    let listed = repository.list_model_names();
    assert!(listed.iter().all(|one| !one.is_duplicate));
    assert_eq!(listed.iter().filter(|one| one.name == "m0").count(), 2);
}
