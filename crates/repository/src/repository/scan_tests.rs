//! Tests that scan small trees, described as text.

use std::fmt::Write;
use std::os::unix::fs::symlink;

use super::*;
use crate::SymlinkPolicy;
use crate::testing::ScratchDirectory;

/// Formats the result of a scan as lines.
fn describe(scan: &ScanResult) -> String {
    let mut text = String::new();
    for model in &scan.models {
        let config = model.config.as_ref().map_or("no config", |file| file.text.as_str());
        writeln!(text, "{}: {config}", model.name).unwrap();
        for version in &model.versions {
            writeln!(text, "  {} {:?}", version.number, version.files).unwrap();
        }
        model.notes.iter().for_each(|note| writeln!(text, "  note: {note}").unwrap());
    }
    for problem in &scan.problems {
        writeln!(text, "problem: {problem}").unwrap();
    }
    text
}

fn check_with(scratch: &ScratchDirectory, roots: &[&str], options: &ScanOptions, expected: &str) {
    let paths = roots.iter().map(|root| scratch.path().join(root));
    let scan = ModelRepositories::open(paths).unwrap().scan(options);
    let found = describe(&scan).replace(&scratch.path().display().to_string(), "@");
    assert_eq!(found, expected);
}

fn check(scratch: &ScratchDirectory, roots: &[&str], expected: &str) {
    check_with(scratch, roots, &ScanOptions::default(), expected);
}

#[test]
// row: MR-01
fn models_with_their_configurations_versions_and_files() {
    let scratch = ScratchDirectory::new();
    scratch.file("r/README", "not a model");
    scratch.file("r/full/config.pbtxt", "max_batch_size: 8");
    scratch.file("r/full/labels.txt", "");
    scratch.file("r/full/configs/x.pbtxt", "");
    scratch.file("r/full/warmup/data", "");
    scratch.file("r/full/initial_state/data", "");
    scratch.file("r/full/10/model.onnx", "");
    scratch.file("r/full/9/model.onnx", "");
    scratch.file("r/full/9/extra", "");
    scratch.file("r/empty/1/model.py", "");
    std::fs::create_dir(scratch.path().join("r/bare")).unwrap();
    let expected = "\
bare: no config
empty: no config
  1 [\"model.py\"]
full: max_batch_size: 8
  9 [\"extra\", \"model.onnx\"]
  10 [\"model.onnx\"]
";
    check(&scratch, &["r"], expected);
}

#[test]
// row: MR-02
fn only_plain_numbers_are_versions() {
    let scratch = ScratchDirectory::new();
    for version in ["0", "1", "01", "00", "1a", "-1", "+1", " 1", "9999999999999999999"] {
        scratch.file(&format!("r/m/{version}/f"), "");
    }
    scratch.file("r/m/2", "a file, not a directory");
    let expected = "\
m: no config
  0 [\"f\"]
  1 [\"f\"]
  note: ignore version directory ' 1' of model 'm', which is not a number
  note: ignore version directory '+1' of model 'm', which is not a number
  note: ignore version directory '-1' of model 'm', which is not a number
  note: ignore version directory '00' of model 'm', which has leading zeros
  note: ignore version directory '01' of model 'm', which has leading zeros
  note: ignore version directory '1a' of model 'm', which is not a number
  note: ignore version directory '9999999999999999999' of model 'm', which is too large a number
";
    check(&scratch, &["r"], expected);
}

#[test]
fn a_model_in_two_repositories_is_in_neither() {
    let scratch = ScratchDirectory::new();
    scratch.file("a/twice/1/f", "");
    scratch.file("a/once/1/f", "");
    scratch.file("b/twice/1/f", "");
    let expected = "\
once: no config
  1 [\"f\"]
problem: failed to poll model 'twice': not unique across all model repositories
";
    check(&scratch, &["b", "a"], expected);
    check(&scratch, &["a", "a"], "once: no config\n  1 [\"f\"]\ntwice: no config\n  1 [\"f\"]\n");
}

#[test]
fn a_custom_configuration_wins_where_it_exists() {
    let scratch = ScratchDirectory::new();
    scratch.file("r/has/config.pbtxt", "default");
    scratch.file("r/has/configs/h100.pbtxt", "custom");
    scratch.file("r/lacks/config.pbtxt", "default");
    let options = ScanOptions { config_name: Some("h100".to_owned()), ..ScanOptions::default() };
    check_with(&scratch, &["r"], &options, "has: custom\nlacks: default\n");
}

#[test]
fn cve_2026_47480_links_that_loop_or_break_are_problems_of_their_model() {
    let scratch = ScratchDirectory::new();
    scratch.file("r/good/1/f", "");
    scratch.file("outside/config.pbtxt", "linked");
    for model in ["loop", "broken", "leaves", "harmless"] {
        std::fs::create_dir(scratch.path().join("r").join(model)).unwrap();
    }
    let at = |path: &str| scratch.path().join("r").join(path);
    symlink("1", at("loop/1")).unwrap();
    symlink("nothing", at("broken/1")).unwrap();
    symlink("../../outside/config.pbtxt", at("leaves/config.pbtxt")).unwrap();
    symlink("nothing", at("harmless/notes")).unwrap();
    symlink("self", at("self")).unwrap();
    let expected = "\
good: no config
  1 [\"f\"]
harmless: no config
leaves: linked
problem: failed to poll model 'broken': can't read '@/r/broken/1': No such file or directory (os error 2)
problem: failed to poll model 'loop': can't read '@/r/loop/1': Too many levels of symbolic links (os error 40)
problem: failed to poll model 'self': can't open '@/r/self': Too many levels of symbolic links (os error 40)
";
    check(&scratch, &["r"], expected);
}

#[test]
fn a_repository_that_is_replaced_is_read_anew() {
    let scratch = ScratchDirectory::new();
    scratch.file("one/a/1/f", "");
    scratch.file("two/a/2/g", "");
    scratch.file("two/b/1/f", "");
    let link = scratch.path().join("current");
    symlink("one", &link).unwrap();
    let repository = ModelRepositories::open([&link]).unwrap();
    let versions = |name: &str| match repository.find(name, &ScanOptions::default()) {
        LookupResult::Models(models) => {
            models[0].versions.iter().map(|version| version.number).collect::<Vec<_>>()
        }
        _ => Vec::new(),
    };
    assert_eq!((versions("a"), versions("b")), (vec![1], vec![]));
    symlink("two", scratch.path().join("next")).unwrap();
    std::fs::rename(scratch.path().join("next"), &link).unwrap();
    assert_eq!((versions("a"), versions("b")), (vec![2], vec![1]));
    assert_eq!(repository.scan(&ScanOptions::default()).models.len(), 2);
    assert_eq!(repository.list_model_names().len(), 2);
    std::fs::remove_file(&link).unwrap();
    assert!(versions("a").is_empty(), "it is gone");
    assert_eq!(repository.scan(&ScanOptions::default()).problems.len(), 1);
}

#[test]
fn no_link_is_followed_if_links_are_forbidden() {
    let scratch = ScratchDirectory::new();
    scratch.file("r/good/1/f", "");
    scratch.file("outside/1/f", "");
    symlink("../outside", scratch.path().join("r/linked")).unwrap();
    std::fs::create_dir(scratch.path().join("r/inner")).unwrap();
    symlink("../good/1", scratch.path().join("r/inner/1")).unwrap();
    symlink("r", scratch.path().join("root")).unwrap();
    // The link is in the path that the operator specified, not in the repository.
    let repository = ModelRepositories::open([scratch.path().join("root")]).unwrap();
    let options = ScanOptions { symlinks: SymlinkPolicy::Forbidden, ..ScanOptions::default() };
    let scan = repository.scan(&options);
    let names: Vec<&str> = scan.models.iter().map(|model| model.name.as_str()).collect();
    assert_eq!((names, scan.problems.len()), (vec!["good"], 2), "{:?}", scan.problems);
}

#[test]
fn a_model_may_be_a_link_and_links_may_stay_in_the_repository() {
    let scratch = ScratchDirectory::new();
    scratch.file("elsewhere/1/f", "");
    scratch.file("r/a/1/f", "");
    scratch.file("r/b/config.pbtxt", "b");
    symlink("../elsewhere", scratch.path().join("r/linked")).unwrap();
    symlink("../a/1", scratch.path().join("r/b/7")).unwrap();
    let expected = "\
a: no config
  1 [\"f\"]
b: b
  7 [\"f\"]
linked: no config
  1 [\"f\"]
";
    check(&scratch, &["r"], expected);
}

#[test]
fn a_directory_with_an_invalid_name_is_listed_as_a_problem() {
    let scratch = ScratchDirectory::new();
    scratch.file("r/a\nE1121 forged/1/f", "");
    let repository = ModelRepositories::open([scratch.path().join("r")]).unwrap();
    let listed =
        ListedModel { namespace: None, name: "a\\nE1121 forged".to_owned(), is_duplicate: false };
    assert_eq!(repository.list_model_names(), [listed]);
    let expected = "problem: failed to poll model 'a\\nE1121 forged': \
                    invalid model name 'a\\nE1121 forged': it contains a control character\n";
    check(&scratch, &["r"], expected);
}

#[test]
fn repositories_that_are_not_local_directories_are_refused() {
    let scratch = ScratchDirectory::new();
    scratch.file("file", "");
    let open = |path: &str| {
        let error = ModelRepositories::open([path]).unwrap_err().to_string();
        error.replace(&scratch.path().display().to_string(), "@")
    };
    assert_eq!(
        open("s3://bucket/models"),
        "model repository 's3://bucket/models' is in an object store, which can't be opened here"
    );
    let at = |name: &str| scratch.path().join(name).display().to_string();
    assert_eq!(open(&at("file")), "repository path is not a valid directory");
    assert_eq!(open(&at("nothing")), "failed to stat file @/nothing");
}

#[test]
fn models_of_a_repository_that_can_not_be_read_are_not_missing() {
    let scratch = ScratchDirectory::new();
    scratch.file("models/m/config.pbtxt", "");
    let path = scratch.path().join("models");
    let repository = ModelRepositories::open([&path]).unwrap();
    let options = ScanOptions::default();
    assert!(matches!(repository.find("other", &options), LookupResult::Missing));
    std::fs::remove_dir_all(&path).unwrap();
    let found = repository.find("m", &options);
    let LookupResult::Problem(problem @ ScanProblem::Repository { .. }) = found else {
        panic!("{found:?}");
    };
    assert!(problem.to_string().contains("No such file"), "{problem}");
}
