//! Libraries with operators that models use: `model_operations` in a configuration.
//!
//! A name is a path from the model's directory, for repositories that can be moved,
//! and otherwise what it is in the original: a path from the server's working
//! directory, or a name without a path, which is looked for beside ONNX Runtime's
//! library and then by the system's loader. Whether it may be named at all is not
//! decided here: the server refuses names that come from a client.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use galatea_backend::{FileFingerprint, ModelFiles, is_library_truncated};
use galatea_infer::{Code, Status};

use crate::api::{EntryPoint, Environment, SessionOptions, open_op_library};

/// The field that names them.
const FIELD: &str = "model_operations.op_library_filename";

/// The libraries that were opened so far. None is ever closed: operators, threads and
/// objects of its own would not survive that, and the original doesn't either.
#[derive(Default)]
pub(crate) struct OpLibraries {
    opened: Mutex<BTreeMap<PathBuf, Opened>>,
}

/// What is known of a library since it was opened.
#[derive(Clone)]
struct Opened {
    /// What its file looked like before.
    mark: Option<FileFingerprint>,
    entry_point: EntryPoint,
}

/// The libraries of a model, all open.
pub(crate) struct ModelLibraries(Vec<OpLibrary>);

/// One of them.
pub(crate) struct OpLibrary {
    /// As the configuration names it.
    name: String,
    /// As the loader is told.
    path: PathBuf,
    /// What its file looked like before it was opened; `None` if that tells nothing or
    /// the loader chose the file.
    mark: Option<FileFingerprint>,
    is_stale: bool,
}

impl OpLibraries {
    /// Opens what a configuration names. `beside` is where ONNX Runtime's library is.
    ///
    /// # Errors
    ///
    /// A status that names the field and the library: it is not there, leads out of
    /// the model's directory, or is no library with operators.
    pub(crate) fn open(
        &self,
        names: &[String],
        files: &dyn ModelFiles,
        beside: Option<&Path>,
    ) -> Result<Arc<ModelLibraries>, Status> {
        let open = |name: &String| {
            self.open_one(name, files, beside).map_err(|status| status.prefixed(field(name)))
        };
        names.iter().map(open).collect::<Result<_, _>>().map(|all| Arc::new(ModelLibraries(all)))
    }

    fn open_one(
        &self,
        name: &str,
        files: &dyn ModelFiles,
        beside: Option<&Path>,
    ) -> Result<OpLibrary, Status> {
        let path = find(name, files, beside)?;
        // The loader doesn't look in the working directory.
        let mark = if path.is_absolute() { FileFingerprint::of(&path) } else { None };
        let opened = match self.known(&path) {
            Some(opened) => opened,
            None => {
                let entry_point = open_op_library(&path).map_err(Status::invalid_argument)?;
                self.remember(&path, Opened { mark: mark.clone(), entry_point })
            }
        };
        let is_stale = opened.mark != mark;
        match opened.entry_point {
            EntryPoint::There => {}
            EntryPoint::Missing => {
                let hint = if is_stale { CHANGED } else { "" };
                return Err(Status::invalid_argument(format!(
                    "it is no library with operators for ONNX Runtime: it has no function \
                     'RegisterCustomOps'{hint}"
                )));
            }
        }
        Ok(OpLibrary { name: name.to_owned(), path, mark: opened.mark, is_stale })
    }

    fn known(&self, path: &Path) -> Option<Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }

    /// Whoever was first opened the file that counts.
    fn remember(&self, path: &Path, opened: Opened) -> Opened {
        let mut all = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(path.to_owned()).or_insert(opened).clone()
    }
}

/// What a loader keeps of a file under its name stays, whatever is put there later.
const CHANGED: &str =
    "; its file changed since it was opened, and is opened again when the server is started anew";

impl ModelLibraries {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lets a session use them.
    ///
    /// # Errors
    ///
    /// A status that names the field and the library that refuses.
    pub(crate) fn register(
        &self,
        options: &mut SessionOptions,
        environment: &Environment,
    ) -> Result<(), Status> {
        for library in &self.0 {
            let registered = options.register_op_library(environment, &library.path);
            registered.map_err(|status| {
                let text = format!("{}its operators can't be registered: ", library.field());
                status.prefixed(text)
            })?;
        }
        Ok(())
    }

    /// What to say of those that have another file in their place by now.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        let stale = self.0.iter().filter(|library| library.is_stale);
        stale.map(|library| format!("{}it is used as it was{CHANGED}", library.field()))
    }

    /// What the files looked like before they were opened; `None` if that can't be
    /// told of all.
    pub(crate) fn marks(&self) -> Option<Vec<FileFingerprint>> {
        self.0.iter().map(|library| library.mark.clone()).collect()
    }
}

impl OpLibrary {
    /// What it is called in a message.
    fn field(&self) -> String {
        field(&self.name)
    }
}

fn field(name: &str) -> String {
    format!("{FIELD} '{}': ", name.escape_debug())
}

/// Where the library is; a name without a path if the loader is to look for it.
fn find(name: &str, files: &dyn ModelFiles, beside: Option<&Path>) -> Result<PathBuf, Status> {
    if name.is_empty() || name.contains('\0') {
        return Err(Status::invalid_argument("it is not a path"));
    }
    if let Some(inside) = downwards(name) {
        match files.resolve_beside_versions(&inside) {
            Err(status) if status.code() == Code::NotFound => {}
            found => return checked(absolute(&found?)?, name, files),
        }
    }
    if name.contains('/') {
        return checked(absolute(Path::new(name))?, name, files);
    }
    let sibling = beside.map(|directory| directory.join(name)).filter(|path| path.is_file());
    Ok(sibling.unwrap_or_else(|| PathBuf::from(name)))
}

/// The name as a path that only goes down, if it is one.
fn downwards(name: &str) -> Option<String> {
    let mut inside = PathBuf::new();
    for component in Path::new(name).components() {
        match component {
            Component::Normal(part) => inside.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    inside.to_str().filter(|inside| !inside.is_empty()).map(str::to_owned)
}

fn absolute(path: &Path) -> Result<PathBuf, Status> {
    std::path::absolute(path)
        .map_err(|error| Status::internal(format!("can't tell where it is: {error}")))
}

/// The loader would wait for ever at a named pipe, and die of a file that was cut short.
fn checked(path: PathBuf, name: &str, files: &dyn ModelFiles) -> Result<PathBuf, Status> {
    match fs::metadata(&path) {
        Ok(found) if found.is_file() && is_library_truncated(&path) => {
            Err(Status::invalid_argument(format!("the file '{}' is cut short", path.display())))
        }
        Ok(found) if found.is_file() => Ok(path),
        Ok(_) => Err(Status::invalid_argument(format!("'{}' is not a file", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let also = downwards(name)
                .map(|inside| format!(" or '{}'", files.model_path().join(inside).display()));
            Err(Status::not_found(format!(
                "there is no '{}'{}",
                path.display(),
                also.unwrap_or_default()
            )))
        }
        Err(error) => {
            Err(Status::invalid_argument(format!("can't look at '{}': {error}", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model's directory `models/m` in a folder that vanishes with its value.
    struct Model {
        folder: PathBuf,
        directory: PathBuf,
    }

    impl Model {
        fn new() -> Self {
            let name = format!("galatea-onnxruntime-find-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let directory = folder.join("models/m");
            fs::create_dir_all(&directory).unwrap();
            Self { folder, directory }
        }

        fn file(&self, path: &str) -> PathBuf {
            let path = self.folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        }
    }

    impl Drop for Model {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    impl ModelFiles for Model {
        fn model_path(&self) -> &Path {
            &self.directory
        }

        fn version(&self) -> i64 {
            1
        }

        fn version_path(&self) -> &Path {
            &self.directory
        }

        fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
            self.resolve_beside_versions(name)
        }

        fn resolve_beside_versions(&self, name: &str) -> Result<PathBuf, Status> {
            let path = self.directory.join(name);
            if name == "leak" {
                return Err(Status::invalid_argument("leads out"));
            }
            if path.exists() { Ok(path) } else { Err(Status::not_found("nothing")) }
        }
    }

    #[test]
    fn the_models_own_library_comes_first_then_the_originals_places() {
        let model = Model::new();
        let beside = model.folder.join("runtime");
        let found = |name: &str| find(name, &model, Some(&beside));
        // The loader's business.
        assert_eq!(found("ops.so"), Ok(PathBuf::from("ops.so")));
        let at_runtime = model.file("runtime/ops.so");
        assert_eq!(found("ops.so"), Ok(at_runtime));
        assert_eq!(find("ops.so", &model, None), Ok(PathBuf::from("ops.so")));
        let own = model.file("models/m/ops.so");
        assert_eq!(found("ops.so"), Ok(own.clone()));
        assert_eq!(found("./ops.so"), Ok(own));
        let elsewhere = model.file("elsewhere/ops.so");
        assert_eq!(found(&elsewhere.to_string_lossy()), Ok(elsewhere));
        // Tests run in the directory of their crate.
        let here = std::env::current_dir().unwrap();
        assert_eq!(found("src/lib.rs"), Ok(here.join("src/lib.rs")));
        model.file("runtime/leak");
        assert_eq!(found("leak").unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(found("src/none.so").unwrap_err().code(), Code::NotFound);
    }

    #[test]
    fn names_that_only_go_down_are_looked_for_in_the_models_directory() {
        for (name, inside) in [
            ("ops.so", Some("ops.so")),
            ("./ops.so", Some("ops.so")),
            ("1/./ops.so", Some("1/ops.so")),
            ("../ops.so", None),
            ("1/../ops.so", None),
            ("/opt/ops.so", None),
            (".", None),
        ] {
            assert_eq!(downwards(name).as_deref(), inside, "{name}");
        }
    }
}
