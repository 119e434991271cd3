//! Finds the backend for each model: either a library or a built-in backend, which is created when
//! the first model requests it.

mod runtimes;
mod torch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use galatea_allocator::GlibcMallocTuner;
use galatea_backend::{Backend, ExecutionPolicy, LogLevel, Model, ModelFiles, ModelHost};
use galatea_backend_ensemble::EnsembleBackend;
use galatea_backend_examples::{IdentityBackend, TokenCounterBackend};
use galatea_backend_fil::FilBackend;
use galatea_backend_openvino::OpenVinoBackend;
use galatea_backend_plugin::{LibrarySearchScope, PluginSettings, Plugins};
use galatea_backend_python::{
    BackendScript, PythonBackend, PythonBasedBackend, PythonOptions, SuppliedScript,
};
use galatea_backend_pytorch::{NativeModelRefusal, WithoutNativeModels};
use galatea_backend_text::{NetworkBackend, TextBackend};
use galatea_capi::ReservedServerPointer;
use galatea_config::{ConfigDraft, ModelSpec, SupportedFeatures};
use galatea_devices::Devices;
use galatea_dispatch::LogSink;
use galatea_gate::ledger::MemoryLedger;
use galatea_infer::Status;
use galatea_runtime::RuntimeOnDemand;
use galatea_stdx::Lock;

use self::runtimes::BuiltInBackend;
use crate::backend_advice::advice;
use crate::environment::Environment;
use crate::flags::{BackendSetting, Settings};
use crate::gpus;
use crate::input_bytes::InputBytes;
use crate::python::{self, PythonAccess, PythonSettings};

const ONNXRUNTIME: &str = "onnxruntime";
const ENSEMBLE: &str = "ensemble";
const FIL: &str = "fil";
const IDENTITY: &str = "identity";
const LLAMACPP: &str = "llamacpp";
const OPENVINO: &str = "openvino";
const PYTHON: &str = "python";
const PYTORCH: &str = "pytorch";
const TENSORFLOW: &str = "tensorflow";
const TEXT: &str = "text";
const TOKEN_COUNTER: &str = "token_counter";

/// Built-in backends that are replaced by a library of the same name in the backend directory.
/// `onnxruntime` is not replaceable: this server uses its built-in version even if Triton's whole
/// backend directory was copied.
const REPLACEABLE: [&str; 8] =
    [FIL, IDENTITY, LLAMACPP, OPENVINO, PYTORCH, TENSORFLOW, TEXT, TOKEN_COUNTER];

/// The settings that the `onnxruntime` backend reads.
const ONNXRUNTIME_SETTINGS: [&str; 4] = [
    "default-max-batch-size",
    "enable-global-threadpool",
    "inter_op_thread_count",
    "intra_op_thread_count",
];

/// The only setting that the `openvino` backend reads.
const OPENVINO_SETTING: &str = "default-max-batch-size";

/// The settings that the `tensorflow` backend reads.
const TENSORFLOW_SETTINGS: [&str; 4] =
    ["allow-soft-placement", "default-max-batch-size", "gpu-memory-fraction", "version"];

const BUILT_IN: [&str; 11] = [
    ENSEMBLE,
    FIL,
    IDENTITY,
    LLAMACPP,
    ONNXRUNTIME,
    OPENVINO,
    PYTHON,
    PYTORCH,
    TENSORFLOW,
    TEXT,
    TOKEN_COUNTER,
];

/// Built-in backends that Triton doesn't have. A backend of such a name in the backend directory
/// precedes them, whether it is a library or a script.
const OWN: [&str; 3] = [LLAMACPP, TEXT, TOKEN_COUNTER];

/// The file that implements a Python-based backend.
const PYTHON_FILE: &str = "model.py";
/// The packed environment of a Python-based backend.
const PYTHON_ENVIRONMENT: &str = "pb_exec_env_model.py.tar.gz";

/// Backends by name.
pub(crate) struct Backends {
    settings: Arc<Settings>,
    environment: Environment,
    allocator: Option<GlibcMallocTuner>,
    log: LogSink,
    /// The built-in backends, by name and by whether a script creates the backend. A name may have
    /// an entry of either kind.
    built_in: Lock<BTreeMap<(String, bool), BuiltInBackend>>,
    /// `OpenVINO`, which executes models for its own backend and TensorFlow models.
    openvino: OnceLock<Arc<RuntimeOnDemand<OpenVinoBackend>>>,
    /// The replaced backends that have already been logged.
    replaced: Lock<BTreeSet<String>>,
    plugins: Arc<Plugins>,
    python: Arc<PythonAccess>,
    devices: Devices,
    support: SupportedFeatures,
    ledger: Arc<MemoryLedger>,
}

/// A backend that a model uses, for the log.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct BackendInUse {
    pub(crate) name: String,
    /// The backend's library, or the library that a built-in backend uses.
    pub(crate) library: Option<PathBuf>,
    pub(crate) is_built_in: bool,
    /// The settings, in the form that backends read.
    pub(crate) config: String,
}

/// The properties of a model that determine which backend it uses.
pub(crate) struct BackendRequest<'a> {
    /// The backend's name.
    pub(crate) backend: &'a str,
    /// The library that the configuration specifies; empty if none.
    pub(crate) runtime: &'a str,
    /// The model's directories, which may contain libraries. `None` if a client sent the files,
    /// because clients must not bring code.
    pub(crate) directories: Option<&'a [&'a Path]>,
    /// Looks up a parameter of the configuration.
    pub(crate) parameter: &'a dyn Fn(&str) -> Option<&'a str>,
}

impl Backends {
    /// Creates the registry without any backend. Libraries will identify the server by the reserved
    /// address.
    pub(crate) fn new(
        settings: Arc<Settings>,
        environment: Environment,
        allocator: Option<GlibcMallocTuner>,
        log: LogSink,
        reserved: &ReservedServerPointer,
        python: Arc<PythonAccess>,
        devices: Devices,
    ) -> Self {
        let support = gpus::support(&devices, &settings);
        let plugins =
            Plugins::new(plugin_settings(&settings, reserved, support.clone(), devices.clone()));
        let (built_in, replaced) = (Lock::default(), Lock::default());
        Self {
            settings,
            environment,
            allocator,
            log,
            built_in,
            openvino: OnceLock::new(),
            replaced,
            plugins,
            python,
            devices,
            support,
            ledger: Arc::default(),
        }
    }

    /// Charges the memory that backends allocate for requests to a ledger with a limit.
    pub(crate) fn charging(self, ledger: Arc<MemoryLedger>) -> Self {
        Self { ledger, ..self }
    }

    /// Finds the backend that a model requests. Compiled PyTorch models are native code, which
    /// clients must not bring and the operator may refuse.
    pub(crate) fn get(&self, request: &BackendRequest<'_>) -> Arc<dyn Backend> {
        let backend = self.find(request);
        let refusal = if request.directories.is_none() {
            NativeModelRefusal::LoadRequest
        } else if !self.settings.allows_native_models {
            NativeModelRefusal::Operator
        } else {
            return backend;
        };
        if request.backend == PYTORCH {
            Arc::new(WithoutNativeModels::new(backend, refusal))
        } else {
            backend
        }
    }

    /// Finds the backend that a model requests, in this order: a library next to the model or named
    /// by its configuration; a built-in backend that is not replaceable; a library or, for names
    /// that Triton doesn't have, a script in the backend directory; a replaceable built-in backend.
    /// If none is found, every load with the returned backend fails with the reason.
    fn find(&self, request: &BackendRequest<'_>) -> Arc<dyn Backend> {
        let name = request.backend;
        if self.is_in_sandbox(request) {
            return self.get_in_sandbox(request);
        }
        let (scope, beside) = match request.directories {
            Some(directories) => {
                (LibrarySearchScope::All, Plugins::model_has_backend_library(name, directories))
            }
            None => (LibrarySearchScope::BackendDirectory, false),
        };
        let is_built_in = BUILT_IN.contains(&name);
        // The default library name is equivalent to no name.
        let names_another =
            !request.runtime.is_empty() && request.runtime != format!("libtriton_{name}.so");
        let may_be_script = request.runtime.is_empty() || request.runtime == PYTHON_FILE;
        if !beside
            && may_be_script
            && let Some(script) = self.written_in_python(request)
        {
            return self.built_in_or(name, true, |backends| backends.python(name, Some(script)));
        }
        if name != PYTHON && request.runtime == PYTHON_FILE && self.script(request).is_none() {
            return Arc::new(UnavailableBackend::WithoutScript(script_path(
                &self.settings.backend_directory,
                name,
            )));
        }
        // Only Triton's library for Python executes a script that is still there.
        let is_script = may_be_script && self.script(request).is_some();
        if beside || names_another || is_script || !is_built_in {
            return self.plugins.backend(name, scope);
        }
        if is_replaced(name, &self.settings) {
            self.log_replaced_once(name);
            return self.plugins.backend(name, scope);
        }
        if name == TEXT {
            return self.text(request);
        }
        let built_in = self.built_in(name);
        if name == ENSEMBLE {
            built_in
        } else {
            self.plugins.with_batching_strategies(built_in, scope)
        }
    }

    /// The backend for text models, whose networks are executed by the backend that the
    /// configuration names.
    fn text(&self, request: &BackendRequest<'_>) -> Arc<dyn Backend> {
        let name = (request.parameter)(TextBackend::RUNTIME_PARAMETER).unwrap_or(ONNXRUNTIME);
        if name != ONNXRUNTIME && (name != OPENVINO || is_replaced(OPENVINO, &self.settings)) {
            return Arc::new(UnavailableBackend::For(Status::invalid_argument(format!(
                "parameter '{}': '{}' is not {ONNXRUNTIME} or the built-in {OPENVINO}",
                TextBackend::RUNTIME_PARAMETER,
                name.escape_debug()
            ))));
        }
        Arc::new(TextBackend::new(NetworkBackend {
            name: name.to_owned(),
            backend: self.built_in(name),
            support: self.support.clone(),
        }))
    }

    /// The advice for a model whose backend can't be found.
    pub(crate) fn advice(&self, request: &BackendRequest<'_>) -> Option<String> {
        let (name, directory) = (request.backend, &self.settings.backend_directory);
        let beside = request.directories.unwrap_or_default();
        let is_found = BUILT_IN.contains(&name)
            || !request.runtime.is_empty()
            || Plugins::is_installed(name, directory)
            || Plugins::model_has_backend_library(name, beside);
        let is_name = Path::new(name).file_name().is_some_and(|file| file == name)
            && !name.contains(char::is_control);
        (is_name && !is_found).then(|| advice(name, &BUILT_IN, directory))
    }

    /// Returns true if the model's process runs in the sandbox.
    fn is_in_sandbox(&self, request: &BackendRequest<'_>) -> bool {
        let name = request.backend;
        if name != PYTHON && self.script(request).is_none() {
            return false;
        }
        let settings = python::confinement(&self.own_settings(name), &self.own_settings(PYTHON));
        let confinement = settings.and_then(|settings| settings.tightened(request.parameter));
        // A load with an invalid value fails later, when the backend reads the value.
        confinement.map_or(true, |confinement| confinement.sandbox)
    }

    /// Like `find`, but for sandboxed models. A sandboxed model may write to its version directory,
    /// so a library there is ignored: the sandbox would not confine it.
    fn get_in_sandbox(&self, request: &BackendRequest<'_>) -> Arc<dyn Backend> {
        let (name, runtime) = (request.backend, request.runtime);
        let usual = ["", PYTHON_FILE, &format!("libtriton_{name}.so")].contains(&runtime);
        let directory = &self.settings.backend_directory;
        let uses_library = python::uses_library(&self.own_settings(PYTHON))
            && Plugins::is_installed(PYTHON, directory);
        if !usual || uses_library {
            let library = if usual { "libtriton_python.so" } else { runtime };
            return Arc::new(UnavailableBackend::For(Status::invalid_argument(format!(
                "the sandbox of Python models can't hold '{library}', which would run in the \
                 server's process"
            ))));
        }
        match self.script(request) {
            Some(script) => {
                self.built_in_or(name, true, |backends| backends.python(name, Some(script)))
            }
            None => {
                let built_in = self.built_in(name);
                self.plugins
                    .with_batching_strategies(built_in, LibrarySearchScope::BackendDirectory)
            }
        }
    }

    /// Logs that a library replaces a built-in backend, once per backend.
    fn log_replaced_once(&self, name: &str) {
        let mut replaced = self.replaced.lock("log a replaced backend once");
        if replaced.insert(name.to_owned()) {
            let directory = self.settings.backend_directory.join(name);
            let directory = directory.display();
            let text =
                format_args!("backend '{name}' is that in '{directory}', not the built-in one");
            self.log.write(LogLevel::Info, text);
        }
    }

    fn built_in(&self, name: &str) -> Arc<dyn Backend> {
        self.built_in_or(name, false, |backends| backends.create(name))
    }

    fn built_in_or(
        &self,
        name: &str,
        is_script: bool,
        create: impl FnOnce(&Self) -> Result<BuiltInBackend, Status>,
    ) -> Arc<dyn Backend> {
        let key = (name.to_owned(), is_script);
        // The lock is held during creation, so that each backend is created only once.
        let mut built_in = self.built_in.lock("find or create a backend");
        if let Some(known) = built_in.get(&key) {
            return known.backend.clone();
        }
        match create(self) {
            Ok(new) => {
                let backend = new.backend.clone();
                built_in.insert(key, new);
                backend
            }
            // Failures are not cached, because the next attempt may succeed, and names come from
            // clients.
            Err(reason) => Arc::new(UnavailableBackend::For(reason)),
        }
    }

    /// The backends in use, except the one for ensembles, which users don't see as a backend.
    pub(crate) fn in_use(&self) -> Vec<BackendInUse> {
        let built_in = self.built_in.lock("list the backends");
        // The backend for TensorFlow finds its library when a model needs it.
        let is_in_use = |(name, library, _): &(String, Option<PathBuf>, bool)| {
            name != ENSEMBLE && (name != TENSORFLOW || library.is_some())
        };
        let created = built_in.iter().map(|((name, _), one)| (name.clone(), (one.library)(), true));
        let mut found: Vec<(String, Option<PathBuf>, bool)> = created.filter(is_in_use).collect();
        drop(built_in);
        let libraries = self.plugins.loaded_backends().into_iter();
        found.extend(libraries.map(|(name, library)| (name, Some(library), false)));
        let with_config = |(name, library, is_built_in): (String, Option<PathBuf>, bool)| {
            let config = self.plugins.config_json(&name);
            BackendInUse { name, library, is_built_in, config }
        };
        let mut in_use: Vec<BackendInUse> = found.into_iter().map(with_config).collect();
        in_use.sort();
        in_use
    }

    fn create(&self, name: &str) -> Result<BuiltInBackend, Status> {
        let backend: Arc<dyn Backend> = match name {
            ENSEMBLE => Arc::new(EnsembleBackend::new()?),
            FIL => Arc::new(FilBackend),
            IDENTITY => {
                Arc::new(IdentityBackend::with_input_byte_counters(Arc::new(InputBytes::new()?)))
            }
            TOKEN_COUNTER => Arc::new(TokenCounterBackend),
            PYTHON => return self.python(PYTHON, None),
            ONNXRUNTIME => return self.onnxruntime(),
            OPENVINO => return self.openvino(),
            PYTORCH => return self.pytorch(),
            TENSORFLOW => return self.tensorflow(),
            _ => return Err(Status::internal(format!("backend '{name}' is not built in"))),
        };
        Ok(BuiltInBackend::new(backend, None))
    }

    fn own_settings(&self, backend: &str) -> BTreeMap<String, String> {
        settings_for(backend, &self.settings.backend_settings)
    }

    /// Creates the backend for Python models, or a Python-based backend.
    fn python(
        &self,
        name: &str,
        runtime: Option<PythonBasedBackend>,
    ) -> Result<BuiltInBackend, Status> {
        let backend: Arc<dyn Backend> = Arc::new(self.python_backend(name, runtime)?);
        Ok(BuiltInBackend::new(backend, None))
    }

    fn python_backend(
        &self,
        name: &str,
        runtime: Option<PythonBasedBackend>,
    ) -> Result<PythonBackend, Status> {
        let (own, python) = (self.own_settings(name), self.own_settings(PYTHON));
        let settings = PythonSettings::new(&own, &python, &|line| self.python.log_error(line))?;
        Ok(PythonBackend::new(PythonOptions {
            server: self.python.clone(),
            interpreter: settings.interpreter,
            start_timeout: settings.start_timeout,
            execute_timeout: settings.execute_timeout,
            confinement: settings.confinement,
            sandbox_variables: settings.sandbox_variables,
            inherited: || std::env::vars_os().collect(),
            withheld: self.environment.own_variables(),
            module_paths: vec![self.settings.backend_directory.join(PYTHON)],
            temporary_folder: self.environment.temporary_folder.clone(),
            library_path: self.environment.library_path.clone(),
            devices: self.devices.clone(),
            support: self.support.clone(),
            runtime,
        }))
    }

    /// Finds the backend with this name, if it is Python-based and Galatea executes it. Triton's
    /// library executes files only.
    fn written_in_python(&self, request: &BackendRequest<'_>) -> Option<PythonBasedBackend> {
        let uses_library = python::uses_library(&self.own_settings(PYTHON));
        let is_file = |found: &PythonBasedBackend| matches!(found.script, BackendScript::File(_));
        self.script(request).filter(|found| !uses_library || !is_file(found))
    }

    /// Finds the script that makes a backend Python-based.
    fn script(&self, request: &BackendRequest<'_>) -> Option<PythonBasedBackend> {
        let (name, directory) = (request.backend, &self.settings.backend_directory);
        let script = find_script(directory, name, request.runtime)?;
        Some(self.with_environment(name, script))
    }

    fn with_environment(&self, name: &str, script: BackendScript) -> PythonBasedBackend {
        let environment = self.settings.backend_directory.join(name).join(PYTHON_ENVIRONMENT);
        let environment = Some(environment).filter(|path| path.exists());
        PythonBasedBackend { script, environment }
    }
}

/// Finds the script that makes a backend Python-based. If a backend is one of Triton's and built in,
/// or has a library, its script is used only by configurations that name the script, such as those
/// of Triton's `pytorch`, whose script is replaced by a supplied one. `llamacpp` consists of a
/// supplied script.
fn find_script(directory: &Path, name: &str, runtime: &str) -> Option<BackendScript> {
    let library = directory.join(name).join(format!("libtriton_{name}.so"));
    let is_name = Path::new(name).file_name().is_some_and(|file| file == name);
    let has_another = BUILT_IN.contains(&name) && !OWN.contains(&name) || library.is_file();
    if !is_name || name == PYTHON || has_another && runtime != PYTHON_FILE {
        return None;
    }
    let script = script_path(directory, name);
    if script.is_file() {
        return Some(BackendScript::File(script));
    }
    match name {
        PYTORCH => Some(BackendScript::Supplied(SuppliedScript::PYTORCH)),
        LLAMACPP => Some(BackendScript::Supplied(SuppliedScript::LLAMACPP)),
        _ => None,
    }
}

/// The file that makes a backend Python-based.
fn script_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(name).join(PYTHON_FILE)
}

/// The settings of plug-ins: their own, and those that Triton sets for every plug-in.
fn plugin_settings(
    settings: &Arc<Settings>,
    reserved: &ReservedServerPointer,
    support: SupportedFeatures,
    devices: Devices,
) -> PluginSettings {
    let all = settings.clone();
    // Without GPUs, Triton reports the minimum that it was built with.
    let min_capability = settings.gpus.shown_minimum(!support.gpus.is_empty(), 6.0);
    let server = galatea_backend_plugin::LateServerPointer::default();
    server.set(reserved.pointer());
    PluginSettings {
        backend_directory: settings.backend_directory.clone(),
        settings_of: Arc::new(move |backend| {
            let directory = all.backend_directory.to_string_lossy().into_owned();
            let own = settings_for(backend, &all.backend_settings);
            let for_all = [
                ("auto-complete-config", all.auto_complete_config.to_string()),
                ("backend-directory", directory),
                ("min-compute-capability", format!("{min_capability:.6}")),
            ];
            let for_all = for_all.map(|(key, value)| (String::from(key), value));
            let limits = all.gpus.load_limits.iter().map(|(gpu, part)| {
                (format!("model-load-gpu-limit-device-{gpu}"), format!("{part:.6}"))
            });
            for_all.into_iter().chain(limits).chain(own).collect()
        }),
        support,
        devices,
        server,
    }
}

/// The settings of one backend. Backend-specific settings override those for all backends.
fn settings_for(backend: &str, settings: &[BackendSetting]) -> BTreeMap<String, String> {
    let pairs = |wanted: &str| {
        let chosen: Vec<(String, String)> = settings
            .iter()
            .filter(|setting| setting.backend == wanted)
            .map(|setting| (setting.key.clone(), setting.value.clone()))
            .collect();
        chosen
    };
    pairs("").into_iter().chain(pairs(backend)).collect()
}

/// Returns true if a library replaces a built-in backend.
fn is_replaced(name: &str, settings: &Settings) -> bool {
    let is_replaceable = REPLACEABLE.contains(&name)
        || name == PYTHON
            && python::uses_library(&settings_for(PYTHON, &settings.backend_settings));
    is_replaceable && Plugins::is_installed(name, &settings.backend_directory)
}

/// Sets the level of the messages from TensorFlow's library, unless Triton's own backend is used.
/// Must be called while the process has only one thread.
pub(crate) fn quiet_tensorflow(settings: &Settings, environment: &mut Environment) {
    if !is_replaced(TENSORFLOW, settings) {
        environment.quiet_tensorflow();
    }
}

/// The settings that were specified for built-in backends that don't read them.
pub(crate) fn unused(settings: &Settings) -> impl Iterator<Item = &BackendSetting> {
    settings.backend_settings.iter().filter(|setting| match setting.backend.as_str() {
        ONNXRUNTIME => !ONNXRUNTIME_SETTINGS.contains(&setting.key.as_str()),
        ENSEMBLE => true,
        PYTHON if !is_replaced(PYTHON, settings) => !python::is_read(&setting.key),
        OPENVINO if !is_replaced(OPENVINO, settings) => setting.key != OPENVINO_SETTING,
        TENSORFLOW if !is_replaced(TENSORFLOW, settings) => {
            !TENSORFLOW_SETTINGS.contains(&setting.key.as_str())
        }
        // The workers for these models have the settings of the Python backend.
        name @ (LLAMACPP | PYTORCH) if !is_replaced(name, settings) => {
            !python::is_read(&setting.key)
        }
        name @ (TEXT | TOKEN_COUNTER)
            if find_script(&settings.backend_directory, name, "").is_some() =>
        {
            !python::is_read(&setting.key)
        }
        name @ (FIL | IDENTITY | TEXT | TOKEN_COUNTER) => !is_replaced(name, settings),
        _ => false,
    })
}

/// A placeholder for a backend that could not be created. Every load fails with the reason.
enum UnavailableBackend {
    /// The backend could not be created for this reason.
    For(Status),
    /// The model's configuration names a script at this path, but the backend has none there.
    WithoutScript(PathBuf),
}

impl UnavailableBackend {
    /// The reason why a model can't be loaded. For a missing script, the text is Triton's.
    fn reason(&self, model: &str) -> Status {
        match self {
            Self::For(reason) => reason.clone(),
            Self::WithoutScript(path) => Status::invalid_argument(format!(
                "unable to find Python backend based backend library '{PYTHON_FILE}' for model \
                 '{model}', searched: '{}'",
                path.display()
            )),
        }
    }
}

impl Backend for UnavailableBackend {
    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        _: &dyn ModelFiles,
    ) -> Result<(), Status> {
        Err(self.reason(draft.name()))
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        _: &dyn ModelFiles,
        _: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        Err(self.reason(&spec.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(backend: &str, key: &str, value: &str) -> BackendSetting {
        BackendSetting { backend: backend.into(), key: key.into(), value: value.into() }
    }

    #[test]
    // row: CLI-23
    fn a_backends_own_settings_win_over_those_for_all() {
        let settings = [
            setting("onnxruntime", "a", "own"),
            setting("", "a", "all"),
            setting("", "b", "all"),
            setting("tensorrt", "c", "other"),
        ];
        let expected = [("a", "own"), ("b", "all")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(settings_for("onnxruntime", &settings), BTreeMap::from(expected));
    }

    #[test]
    fn a_script_in_the_backend_directory_precedes_backends_that_triton_does_not_have() {
        let directory =
            std::env::temp_dir().join(format!("galatea-scripts-{}", std::process::id()));
        for name in BUILT_IN {
            std::fs::create_dir_all(directory.join(name)).unwrap();
            std::fs::write(directory.join(name).join(PYTHON_FILE), "").unwrap();
        }
        let is_file =
            |name| matches!(find_script(&directory, name, ""), Some(BackendScript::File(_)));
        let scripted: Vec<&str> = BUILT_IN.into_iter().filter(|name| is_file(name)).collect();
        let backend_settings = vec![setting("text", "execute-timeout-seconds", "1")];
        let settings = Settings {
            backend_settings,
            backend_directory: directory.clone(),
            ..Settings::default()
        };
        let unused = unused(&settings).count();
        std::fs::write(directory.join("text/libtriton_text.so"), "").unwrap();
        let beside_library = find_script(&directory, "text", "").is_some();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(scripted, ["llamacpp", "text", "token_counter"]);
        assert_eq!((unused, beside_library), (0, false));
        assert!(find_script(&directory, "text", "").is_none());
    }

    #[test]
    fn settings_without_a_reader_are_found() {
        let backend_settings = vec![
            setting("", "default-max-batch-size", "8"),
            setting("onnxruntime", "intra_op_thread_count", "1"),
            setting("onnxruntime", "nonsense", "1"),
            setting("tensorrt", "default-max-batch-size", "1"),
            setting("identity", "default-max-batch-size", "1"),
            setting("openvino", "default-max-batch-size", "1"),
            setting("openvino", "device", "1"),
            setting("tensorflow", "version", "2"),
            setting("tensorflow", "nonsense", "2"),
        ];
        let backend_directory = "/no/such/directory".into();
        let settings = Settings { backend_settings, backend_directory, ..Settings::default() };
        let unused: Vec<String> = unused(&settings).map(ToString::to_string).collect();
        let expected = [
            "onnxruntime,nonsense=1",
            "identity,default-max-batch-size=1",
            "openvino,device=1",
            "tensorflow,nonsense=2",
        ];
        assert_eq!(unused, expected);
    }
}
