//! Compiles the shim.

use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use galatea_infer::Status;

use crate::api::{Library, Shim};
use crate::package::private_folder;

const SOURCE: &str = include_str!("shim.cpp");

/// The compilers to try.
const COMPILERS: [&str; 3] = ["c++", "g++", "clang++"];

/// The maximum part of a compiler's messages that an error contains.
const MESSAGE_CHARS_MAX: usize = 2000;

/// The reason why there is no shim.
#[derive(Debug)]
pub(crate) enum ShimError {
    /// The shim can't be compiled on this machine. A worker can execute the models instead.
    NotCompiled(CompileError),
    /// Any other reason.
    Failed(Status),
}

/// The reason why the shim can't be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CompileError {
    /// The machine has no C++ compiler.
    NoCompiler,
    /// The compiler failed, or PyTorch's headers are missing.
    Failed(String),
}

impl CompileError {
    /// The reason in a few words.
    pub(crate) const fn summary(&self) -> &'static str {
        match self {
            Self::NoCompiler => {
                "there is no C++ compiler (`apt-get install g++`) for the connection to PyTorch's \
                 interpreter"
            }
            Self::Failed(_) => "the connection to PyTorch's interpreter can't be compiled",
        }
    }

    /// The summary, followed by the details.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::NoCompiler => self.summary().to_owned(),
            Self::Failed(details) => format!("{}: {details}", self.summary()),
        }
    }
}

impl From<Status> for ShimError {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

/// The directories for the shim.
#[derive(Clone, Debug)]
pub(crate) struct ShimFolder {
    /// The directory for compiled shims, which later servers reuse.
    pub(crate) cache: Option<PathBuf>,
    /// The fallback directory, for a shim that only this server uses.
    pub(crate) temporary: PathBuf,
}

/// Opens the shim for this library. The shim is compiled unless an earlier server has done so.
pub(crate) fn open_shim(
    library: &Arc<Library>,
    folder: &ShimFolder,
) -> Result<Arc<Shim>, ShimError> {
    let open = |path: &Path| Shim::open(library.clone(), path).map_err(ShimError::Failed);
    let Some(cache) = &folder.cache else {
        // In a temporary directory, others could create a directory with a known name in advance.
        let private = private_folder(&folder.temporary).map_err(|error| {
            let place = folder.temporary.display();
            Status::unavailable(format!("the directory '{place}' can't be used: {error}"))
        })?;
        let opened = compiled_shim(library, &private).and_then(|path| open(&path));
        let _ = std::fs::remove_dir_all(&private);
        return opened;
    };
    let path = compiled_shim(library, cache)?;
    open(&path).or_else(|_| {
        // The file may be damaged.
        let _ = std::fs::remove_file(&path);
        open(&compiled_shim(library, cache)?)
    })
}

fn compiled_shim(library: &Library, folder: &Path) -> Result<PathBuf, ShimError> {
    let failed = |reason: String| {
        ShimError::Failed(Status::unavailable(format!(
            "can't compile the connection to PyTorch's interpreter for TorchScript (model.pt): \
             {reason}"
        )))
    };
    let unusable = |error: std::io::Error| {
        failed(format!("the directory '{}' can't be used: {error}", folder.display()))
    };
    make_private(folder).map_err(unusable)?;
    let path = folder.join(file_name(library.version(), library.file().path()));
    if let Ok(found) = std::fs::symlink_metadata(&path) {
        if found.is_file() && is_private(&found) {
            return Ok(path);
        }
        return Err(failed(format!("other users may write to '{}'", path.display())));
    }
    // Servers that start at the same time each compile a file, and the last one remains.
    let private = private_folder(folder).map_err(unusable)?;
    let (source, output) = (private.join("shim.cpp"), private.join("shim.so"));
    let compiled = std::fs::write(&source, SOURCE)
        .map_err(|error| failed(error.to_string()))
        .and_then(|()| {
            compile(library.file().path(), &source, &output).map_err(ShimError::NotCompiled)
        })
        .and_then(|()| publish(&output, &path).map_err(|error| failed(error.to_string())));
    let _ = std::fs::remove_dir_all(&private);
    compiled.map(|()| path)
}

/// Creates the directory. No other user may write to it, because the server executes its contents.
fn make_private(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let place = folder.canonicalize()?;
    let is_safe = is_private(&std::fs::metadata(&place)?)
        && place.ancestors().skip(1).all(|above| std::fs::metadata(above).is_ok_and(is_stable));
    if is_safe {
        return Ok(());
    }
    Err(std::io::Error::other("other users may write to it, or to a directory above it"))
}

/// Returns true if only this user may write to it.
fn is_private(found: &std::fs::Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0
}

/// Returns true if no user other than root may replace an entry that this user owns.
fn is_stable(found: std::fs::Metadata) -> bool {
    const STICKY: u32 = 0o1000;
    let is_trusted = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    is_trusted && (found.mode() & 0o022 == 0 || found.mode() & STICKY != 0)
}

/// Moves a complete file into place, so that a crash never leaves a partial file there.
fn publish(output: &Path, path: &Path) -> std::io::Result<()> {
    std::fs::set_permissions(output, Permissions::from_mode(0o700))?;
    File::open(output)?.sync_all()?;
    std::fs::rename(output, path)
}

/// Compiles the source.
fn compile(library: &Path, source: &Path, output: &Path) -> Result<(), CompileError> {
    let lib = library.parent().unwrap_or(library);
    let include = lib.parent().unwrap_or(lib).join("include");
    if !include.join("torch/csrc/jit/api/module.h").is_file() {
        let text = format!("PyTorch's headers are not in '{}'", include.display());
        return Err(CompileError::Failed(text));
    }
    for compiler in COMPILERS {
        let mut command = Command::new(compiler);
        command.args(["-std=c++20", "-O1", "-shared", "-fPIC", "-w", "-o"]).arg(output).arg(source);
        command.arg("-I").arg(&include).arg("-I").arg(include.join("torch/csrc/api/include"));
        command.arg("-L").arg(lib).args(["-ltorch_cpu", "-lc10", "-Wl,--allow-shlib-undefined"]);
        match command.stdin(Stdio::null()).output() {
            Ok(done) if done.status.success() => return Ok(()),
            Ok(done) => {
                let text = String::from_utf8_lossy(&done.stderr);
                let text: String = text.trim().chars().take(MESSAGE_CHARS_MAX).collect();
                return Err(CompileError::Failed(format!("{compiler} failed: {text}")));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let text = format!("{compiler} can't be started: {error}");
                return Err(CompileError::Failed(text));
            }
        }
    }
    Err(CompileError::NoCompiler)
}

/// The name of the shim's file, which differs for each build of PyTorch and of this source.
fn file_name(version: &str, library: &Path) -> String {
    let plain = |one: char| if one.is_ascii_alphanumeric() || one == '.' { one } else { '_' };
    let version: String = version.chars().map(plain).collect();
    // Two builds of the same release may differ.
    let found = std::fs::metadata(library).ok();
    let build = found.map_or((0, 0), |found| (found.len(), found.mtime()));
    let place = format!("{}\n{build:?}", library.display());
    let hash = fnv1a(SOURCE.bytes().chain(place.bytes()));
    format!("torchscript-{version}-{}-{hash:016x}.so", std::env::consts::ARCH)
}

fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_to_which_others_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = private_folder(&std::env::temp_dir()).unwrap();
        assert!(make_private(&folder.join("a/b")).is_ok());
        std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert!(make_private(&folder).is_err());
        assert!(make_private(&folder.join("a/b")).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn each_release_has_its_own_file() {
        let name = |version: &str, path: &str| file_name(version, Path::new(path));
        assert_eq!(name("2.15.0+cu130", "/a"), name("2.15.0+cu130", "/a"));
        assert_ne!(name("2.15.0+cu130", "/a"), name("2.15.0+cu130", "/b"));
        assert_ne!(name("2.15.0", "/a"), name("2.14.0", "/a"));
        assert_ne!(name("", "/a"), name("", "/b"));
        assert!(name("2.15.0+cu130", "/a").starts_with("torchscript-2.15.0_cu130-"));
    }
}
