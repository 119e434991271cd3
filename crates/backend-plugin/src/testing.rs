//! Temporary folders and a C compiler, shared by this crate's tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use galatea_backend::ModelFiles;
use galatea_infer::Status;

/// A temporary folder. Dropping the value removes the folder.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("galatea-plugin-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(std::fs::canonicalize(path).unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn directory(&self, name: &str) {
        std::fs::create_dir_all(self.0.join(name)).unwrap();
    }

    pub(crate) fn file(&self, name: &str) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The files of a model version.
pub(crate) struct Files {
    model: PathBuf,
    version_path: PathBuf,
    version: i64,
}

impl Files {
    pub(crate) fn new(model: &Path, version: i64) -> Self {
        let version_path = model.join(version.to_string());
        Self { model: model.to_owned(), version_path, version }
    }
}

impl ModelFiles for Files {
    fn model_path(&self) -> &Path {
        &self.model
    }

    fn version(&self) -> i64 {
        self.version
    }

    fn version_path(&self) -> &Path {
        &self.version_path
    }

    fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
        Ok(self.version_path.join(name))
    }
}

/// Compiles C code into a shared library. A compiler is required, because this crate can't be
/// tested without one.
pub(crate) fn compile(folder: &Folder, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let library = folder.path().join(name);
    let code = library.with_extension("c");
    std::fs::write(&code, source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library).arg(&code);
    let output = compiler.args(flags).output().expect("the tests need a C compiler, cc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}
