//! The settings of the backend.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use galatea_config::SupportedFeatures;
use galatea_devices::Devices;

use crate::confinement::Confinement;
use crate::server::ServerAccess;
use crate::sources::SuppliedScript;

/// The options that apply to all Python models.
#[derive(Clone)]
pub struct PythonOptions {
    /// The server, to which models may send requests.
    pub server: Arc<dyn ServerAccess>,
    /// The interpreter for models that don't specify an environment.
    pub interpreter: PathBuf,
    /// The folder into which archived environments are extracted.
    pub temporary_folder: PathBuf,
    /// The server's `LD_LIBRARY_PATH`.
    pub library_path: Option<OsString>,
    /// The GPUs whose memory tensors may occupy.
    pub devices: Devices,
    /// The features that configurations may request.
    pub support: SupportedFeatures,
    /// The script and the settings that the models of a Python-based backend share.
    pub runtime: Option<PythonBasedBackend>,
    /// The maximum time until a worker sends its first message.
    pub start_timeout: Duration,
    /// The maximum time for an execution. A worker that exceeds it is killed. `None` means no
    /// limit.
    pub execute_timeout: Option<Duration>,
    /// The restrictions on workers: forbidden system calls and resource limits.
    pub confinement: Confinement,
    /// Variables that sandboxed workers receive in addition to the built-in list.
    pub sandbox_variables: Vec<String>,
    /// A function that returns the variables that a new process would inherit from the server.
    pub inherited: fn() -> Vec<(OsString, OsString)>,
    /// Variables that the server has set for itself and that workers don't get.
    pub withheld: &'static [&'static str],
    /// Directories in which models find modules, in addition to their own directories.
    pub module_paths: Vec<PathBuf>,
}

/// A backend that is written in Python. Its script serves all of the backend's models.
#[derive(Clone, Debug)]
pub struct PythonBasedBackend {
    /// The script.
    pub script: BackendScript,
    /// The environment for models that don't specify one.
    pub environment: Option<PathBuf>,
}

/// The script of a backend that is written in Python.
#[derive(Clone, Debug)]
pub enum BackendScript {
    /// A file: `model.py` in the backend's directory.
    File(PathBuf),
    /// A script that is part of this program.
    Supplied(SuppliedScript),
}
