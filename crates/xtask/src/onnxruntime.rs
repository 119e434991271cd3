//! A pinned ONNX Runtime for tests and examples.
//!
//! The library comes from a wheel on PyPI. pip checks the wheel's hash. Any Python version can
//! download the wheel, because it is requested by its own tags, not by the interpreter's.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{command, run};
use crate::workspace;

const VERSION: &str = "1.31.1";

/// A wheel for one machine type.
struct Wheel {
    machine: &'static str,
    platform: &'static str,
    sha256: &'static str,
}

const WHEELS: [Wheel; 2] = [
    Wheel {
        machine: "x86_64",
        platform: "manylinux_2_28_x86_64",
        sha256: "1f3dea47f2f0e5117c2404cea7d21fd253ae7836a3bf167a501cdfbb2600d536",
    },
    Wheel {
        machine: "aarch64",
        platform: "manylinux_2_28_aarch64",
        sha256: "0b9a492176886992e0e875f06bc0367e333f5fff11711a2d642e18b02f3009cc",
    },
];

/// The library's path. Downloads the library if it is missing.
pub(crate) fn fetch() -> Result<PathBuf, String> {
    fetch_for(ARCH)
}

/// The library's path for one processor type.
pub(crate) fn fetch_for(machine: &str) -> Result<PathBuf, String> {
    let name = if machine == ARCH { VERSION.into() } else { format!("{VERSION}-{machine}") };
    let folder = workspace::cache().join("onnxruntime").join(name);
    let library = folder.join(format!("onnxruntime/capi/libonnxruntime.so.{VERSION}"));
    if !library.exists() {
        download(&folder, machine).map_err(|reason| {
            format!(
                "can't get ONNX Runtime {VERSION}: {reason}\n\
                 Tried the wheel 'onnxruntime=={VERSION}' of PyPI with `python3 -m pip \
                 download`."
            )
        })?;
    }
    if library.exists() { Ok(library) } else { find_library(&folder) }
}

fn download(folder: &Path, machine: &str) -> Result<(), String> {
    let wheel = WHEELS
        .iter()
        .find(|wheel| wheel.machine == machine)
        .ok_or_else(|| format!("there is no pinned wheel for {machine}"))?;
    let broken = |error: std::io::Error| format!("can't prepare '{}': {error}", folder.display());
    let download = workspace::beside(folder, "download");
    let _ = fs::remove_dir_all(&download);
    fs::create_dir_all(&download).map_err(broken)?;
    let requirements = download.join("requirements.txt");
    let line = format!("onnxruntime=={VERSION} --hash=sha256:{}\n", wheel.sha256);
    fs::write(&requirements, line).map_err(broken)?;
    run(command("python3")
        .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"])
        .args(["--no-deps", "--require-hashes", "--only-binary=:all:"])
        .args(["--implementation", "cp", "--python-version", "3.12", "--abi", "cp312"])
        .args(["--platform", wheel.platform, "--dest"])
        .arg(&download)
        .arg("--requirement")
        .arg(&requirements))?;
    let name = format!("onnxruntime-{VERSION}-cp312-cp312-{}.whl", wheel.platform);
    let unpacked = download.join("unpacked");
    run(command("python3")
        .args(["-m", "zipfile", "--extract"])
        .args([download.join(name).as_os_str(), unpacked.as_os_str()]))?;
    // The folder appears complete or not at all.
    fs::rename(&unpacked, folder).map_err(broken)?;
    fs::remove_dir_all(&download).map_err(broken)
}

/// Finds the library, whatever version its name ends with.
fn find_library(folder: &Path) -> Result<PathBuf, String> {
    let capi = folder.join("onnxruntime/capi");
    let entries =
        fs::read_dir(&capi).map_err(|error| format!("can't list '{}': {error}", capi.display()))?;
    let library = entries.filter_map(Result::ok).map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libonnxruntime.so")
    });
    library.ok_or_else(|| format!("there is no library in '{}'", capi.display()))
}
