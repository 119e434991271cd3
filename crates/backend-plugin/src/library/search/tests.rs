//! Tests the places that are searched for libraries, and the libraries that aren't opened.

use std::os::unix::fs::symlink;

use super::*;
use crate::testing::{Files, Folder};

fn found(folder: &Folder, backend: &str, runtime: &str) -> Result<BackendLibrary, String> {
    found_in(folder, backend, runtime, LibrarySearchScope::All)
}

fn found_in(
    folder: &Folder,
    backend: &str,
    runtime: &str,
    scope: LibrarySearchScope,
) -> Result<BackendLibrary, String> {
    let files = Files::new(&folder.path().join("models/m"), 1);
    let backend_directory = folder.path().join("backends");
    let search = BackendSearch {
        backend,
        runtime,
        backend_directory: &backend_directory,
        files: &files,
        scope,
        model: "m",
    };
    search.run().map_err(|status| status.message().to_owned())
}

fn check(folder: &Folder, backend: &str, runtime: &str, expected: &str) {
    let found = found(folder, backend, runtime).unwrap();
    assert_eq!(found.library, folder.path().join(expected), "{backend} {runtime}");
}

#[test]
// row: BEK-04
fn the_nearest_library_wins() {
    let folder = Folder::new();
    folder.directory("models/m/1");
    folder.file("backends/b/libtriton_b.so");
    check(&folder, "b", "", "backends/b/libtriton_b.so");
    folder.file("models/m/libtriton_b.so");
    check(&folder, "b", "", "models/m/libtriton_b.so");
    folder.file("models/m/1/libtriton_b.so");
    check(&folder, "b", "", "models/m/1/libtriton_b.so");
    folder.file("backends/b/libother.so");
    check(&folder, "b", "libother.so", "backends/b/libother.so");
    let error = found(&folder, "c", "").unwrap_err();
    assert_eq!(
        error,
        "unable to find backend library for backend 'c', try specifying runtime on the model \
         configuration."
    );
    let error = found(&folder, "c", "libx.so").unwrap_err();
    assert!(error.starts_with("unable to find backend library 'libx.so' for model 'm'"));
    let last = folder.path().join("backends/c");
    assert!(error.ends_with(&format!(" '{}' ", last.display())), "{error}");
}

#[test]
fn libraries_from_clients_are_ignored() {
    let folder = Folder::new();
    folder.directory("models/m/1");
    folder.file("models/m/libtriton_b.so");
    folder.file("models/m/1/libtriton_b.so");
    let scope = LibrarySearchScope::BackendDirectory;
    let error = found_in(&folder, "b", "libtriton_b.so", scope).unwrap_err();
    assert!(!error.contains("models"), "{error}");
    folder.file("backends/b/libtriton_b.so");
    let found = found_in(&folder, "b", "", LibrarySearchScope::BackendDirectory).unwrap();
    assert_eq!(found.library, folder.path().join("backends/b/libtriton_b.so"));
}

#[test]
fn nothing_outside_the_directories_is_opened() {
    let folder = Folder::new();
    folder.directory("models/m/1");
    folder.file("elsewhere/libtriton_b.so");
    folder.file("elsewhere/libtriton_c.so");
    for (backend, runtime) in [("../../elsewhere/b", ""), ("..", ""), (".", "")] {
        let error = found(&folder, backend, runtime).unwrap_err();
        assert!(error.starts_with("unable to find backend library for backend '"), "{error}");
    }
    let outside = folder.path().join("elsewhere/libtriton_b.so");
    for runtime in ["../libtriton_b.so", "../elsewhere/b.so", &outside.display().to_string()] {
        let error = found(&folder, "b", runtime).unwrap_err();
        let expected = format!("unable to find backend library '{runtime}' for model 'm', ");
        assert!(error.starts_with(&expected), "{error}");
    }
    folder.directory("backends/b/inside");
    folder.file("backends/b/inside/libtriton_b.so");
    check(&folder, "b", "inside/libtriton_b.so", "backends/b/inside/libtriton_b.so");
    check(
        &folder,
        "b",
        "inside/../inside/libtriton_b.so",
        "backends/b/inside/../inside/libtriton_b.so",
    );
    for (runtime, place) in [
        ("../../elsewhere/libtriton_b.so", "models/m"),
        ("inside/../../../elsewhere/libtriton_b.so", "backends/b"),
        ("..", "models/m/1"),
    ] {
        let expected = format!(
            "backend library name '{runtime}' escapes backend directory '{}', for model 'm', \
             check model config runtime field",
            folder.path().join(place).display()
        );
        assert_eq!(found(&folder, "b", runtime), Err(expected));
    }
    let link = folder.path().join("models/m/1/libtriton_b.so");
    symlink(folder.path().join("elsewhere/libtriton_b.so"), link).unwrap();
    assert!(found(&folder, "b", "").unwrap_err().contains("escapes the directory"));
    // The operator may create links in the backend directory.
    folder.directory("backends/c");
    let link = folder.path().join("backends/c/libtriton_c.so");
    symlink(folder.path().join("elsewhere/libtriton_c.so"), link).unwrap();
    check(&folder, "c", "", "backends/c/libtriton_c.so");
}

#[test]
fn a_backend_is_installed_if_its_directory_has_it() {
    let folder = Folder::new();
    folder.directory("backends/empty");
    folder.file("backends/c/libtriton_c.so");
    folder.file("backends/other/libtriton_c.so");
    folder.file("backends/py/model.py");
    let expected =
        [("c", true), ("py", true), ("other", false), ("empty", false), ("../backends/c", false)];
    for (backend, is) in expected {
        let directory = folder.path().join("backends");
        assert_eq!(is_installed(backend, &directory), is, "{backend}");
    }
}

#[test]
fn a_backend_may_be_written_in_python() {
    let folder = Folder::new();
    folder.directory("models/m/1");
    folder.file("backends/b/model.py");
    let error = found(&folder, "b", "").unwrap_err();
    let places = ["models/m/1", "models/m", "backends/b", "backends/python"];
    let places = places.map(|place| format!("'{}' ", folder.path().join(place).display()));
    let expected = "unable to find backend library 'libtriton_python.so' for model 'm', \
                    searched: ";
    assert_eq!(error, format!("{expected}{}", places.concat()));
    folder.file("backends/python/libtriton_python.so");
    let of_b = found(&folder, "b", "").unwrap();
    assert_eq!(of_b.directory, folder.path().join("backends/b"));
    assert_eq!((of_b.settings_name.as_str(), of_b.runtime), ("python", Some("model.py")));
    assert_eq!(of_b.environment, None);
    check(&folder, "b", "model.py", "backends/python/libtriton_python.so");
    let error = found(&folder, "c", "model.py").unwrap_err();
    let path = folder.path().join("backends/c/model.py");
    let expected = "unable to find Python backend based backend library 'model.py' for model \
                    'm', searched: ";
    assert_eq!(error, format!("{expected}'{}'", path.display()));
}

#[test]
fn a_backend_in_python_may_have_its_own_library_and_environment() {
    let folder = Folder::new();
    folder.directory("models/m/1");
    folder.file("backends/b/model.py");
    folder.file("backends/python/libtriton_python.so");
    folder.file("backends/b/pb_exec_env_model.py.tar.gz");
    let of_b = found(&folder, "b", "").unwrap();
    let archive = folder.path().join("backends/b/pb_exec_env_model.py.tar.gz");
    assert_eq!(of_b.environment, Some(archive));
    for nearer in ["backends/b", "models/m", "models/m/1"] {
        let library = format!("{nearer}/libtriton_python.so");
        folder.file(&library);
        check(&folder, "b", "", &library);
        assert_eq!(found(&folder, "b", "").unwrap().directory, of_b.directory);
    }
    let installed = found_in(&folder, "b", "", LibrarySearchScope::BackendDirectory).unwrap();
    assert_eq!(installed.library, folder.path().join("backends/b/libtriton_python.so"));
}
