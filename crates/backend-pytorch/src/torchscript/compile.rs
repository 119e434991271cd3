//! Compiles the shim.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use galatea_infer::Status;

use crate::api::Library;
use crate::package::private_folder;

const SOURCE: &str = include_str!("shim.cpp");

/// The compilers that are tried.
const COMPILERS: [&str; 3] = ["c++", "g++", "clang++"];

/// The largest part of a compiler's messages that an error contains.
const MESSAGE_CHARS_MAX: usize = 2000;

/// The directory of compiled shims, which later servers use again.
#[derive(Clone, Debug)]
pub(crate) struct ShimFolder(pub(crate) PathBuf);

/// The path of the shim for this library. It is compiled unless an earlier server has done so.
pub(crate) fn compiled_shim(library: &Library, folder: &ShimFolder) -> Result<PathBuf, Status> {
    let ShimFolder(folder) = folder;
    let failed = |reason: String| {
        Status::unavailable(format!(
            "can't compile the connection to PyTorch's interpreter for TorchScript (model.pt): \
             {reason}"
        ))
    };
    let unusable = |error: std::io::Error| {
        failed(format!("the directory '{}' can't be used: {error}", folder.display()))
    };
    make_private(folder).map_err(unusable)?;
    let path = folder.join(file_name(library.version(), library.path()));
    if path.is_file() {
        return Ok(path);
    }
    // Servers that start at the same time each compile a file, and the last one stays.
    let private = private_folder(folder).map_err(unusable)?;
    let (source, output) = (private.join("shim.cpp"), private.join("shim.so"));
    let compiled = std::fs::write(&source, SOURCE)
        .map_err(|error| error.to_string())
        .and_then(|()| compile(library.path(), &source, &output))
        .and_then(|()| std::fs::rename(&output, &path).map_err(|error| error.to_string()));
    let _ = std::fs::remove_dir_all(&private);
    compiled.map_err(failed)?;
    Ok(path)
}

/// Makes the directory, to which no other user may write: the server executes what is in it.
fn make_private(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let found = std::fs::metadata(folder)?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    if is_own && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(std::io::Error::other("other users may write to it"))
}

fn compile(library: &Path, source: &Path, output: &Path) -> Result<(), String> {
    let lib = library.parent().unwrap_or(library);
    let include = lib.parent().unwrap_or(lib).join("include");
    if !include.join("torch/csrc/jit/api/module.h").is_file() {
        return Err(format!("PyTorch's headers are not in '{}'", include.display()));
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
                return Err(format!("{compiler} failed: {text}"));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{compiler} can't be started: {error}")),
        }
    }
    Err(String::from(
        "there is no C++ compiler: install one, such as g++ (`apt-get install g++`), compile the \
         model to model.pt2, or serve it with the backend 'python'",
    ))
}

/// The name of the shim's file, which is different for each release of PyTorch and of this source.
fn file_name(version: &str, library: &Path) -> String {
    let plain = |one: char| if one.is_ascii_alphanumeric() || one == '.' { one } else { '_' };
    let version: String = version.chars().map(plain).collect();
    // A library without a version is known by its path.
    let place = if version.is_empty() { library.display().to_string() } else { String::new() };
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
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make_private(&folder).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn each_release_has_its_own_file() {
        let name = |version: &str, path: &str| file_name(version, Path::new(path));
        assert_eq!(name("2.15.0+cu130", "/a"), name("2.15.0+cu130", "/b"));
        assert_ne!(name("2.15.0", "/a"), name("2.14.0", "/a"));
        assert_ne!(name("", "/a"), name("", "/b"));
        assert!(name("2.15.0+cu130", "/a").starts_with("torchscript-2.15.0_cu130-"));
    }
}
