//! The backends: those that are built in, made when the first model asks for one,
//! and those in libraries.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use galatea_allocator::ServerAllocator;
use galatea_backend::{Backend, ExecutionPolicy, Host, LogLevel, Model, ModelFiles};
use galatea_backend_ensemble::EnsembleBackend;
use galatea_backend_examples::{IdentityBackend, TokenCounterBackend};
use galatea_backend_onnxruntime::{BackendOptions, Library, OnnxRuntimeBackend};
use galatea_backend_plugin::{PluginSettings, Plugins, SearchScope};
use galatea_capi::ReservedAddress;
use galatea_config::{ConfigDraft, ModelSpec, Support};
use galatea_dispatch::LogSink;
use galatea_infer::Status;

use crate::environment::Environment;
use crate::flags::{BackendSetting, Settings};
use crate::onnxruntime_library;

const ONNXRUNTIME: &str = "onnxruntime";
const ENSEMBLE: &str = "ensemble";
const IDENTITY: &str = "identity";
const TOKEN_COUNTER: &str = "token_counter";

/// Those that stand in for a library: where the directory of backends has one of the name,
/// whoever put it there wants that. `onnxruntime` is none of them: it is what this server
/// is for, also where the original's whole directory of backends was copied.
const STAND_INS: [&str; 2] = [IDENTITY, TOKEN_COUNTER];

/// The settings that the backend `onnxruntime` reads; no other backend that is
/// built in has any.
const ONNXRUNTIME_SETTINGS: [&str; 4] = [
    "default-max-batch-size",
    "enable-global-threadpool",
    "inter_op_thread_count",
    "intra_op_thread_count",
];

/// Backends by name.
pub(crate) struct Backends {
    settings: Arc<Settings>,
    environment: Environment,
    allocator: Option<ServerAllocator>,
    log: LogSink,
    made: Mutex<BTreeMap<String, Made>>,
    /// Those stand-ins of which the log said that a library is taken instead.
    replaced: Mutex<BTreeSet<String>>,
    plugins: Arc<Plugins>,
}

/// A backend that is built in.
struct Made {
    backend: Arc<dyn Backend>,
    /// The library that it executes models with, if it needs one.
    library: Option<PathBuf>,
}

/// A backend that some model asked for and got.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct InUse {
    pub(crate) name: String,
    /// Its library; none if it is built in and needs none.
    pub(crate) library: Option<PathBuf>,
    /// Its settings as backends read them.
    pub(crate) config: String,
}

/// How a model asks for its backend.
pub(crate) struct Wanted<'a> {
    /// The backend's name.
    pub(crate) backend: &'a str,
    /// The library that the configuration names, if it does.
    pub(crate) runtime: &'a str,
    /// The model's directories, where libraries may be; none if what is there
    /// comes from a client, who must not bring code.
    pub(crate) directories: Option<&'a [&'a Path]>,
}

impl Backends {
    /// No backend is made yet. Those in libraries will know the server by the
    /// reserved address.
    pub(crate) fn new(
        settings: Arc<Settings>,
        environment: Environment,
        allocator: Option<ServerAllocator>,
        log: LogSink,
        reserved: &ReservedAddress,
    ) -> Self {
        let plugins = Plugins::new(plugin_settings(&settings, reserved));
        let (made, replaced) = (Mutex::default(), Mutex::default());
        Self { settings, environment, allocator, log, made, replaced, plugins }
    }

    /// The backend that a model asks for: a library beside the model or one that
    /// its configuration names, then what is built in and no stand-in, then a library in
    /// the directory of backends, then a stand-in. One that can't be had says so when a
    /// model is loaded with it.
    pub(crate) fn get(&self, wanted: &Wanted<'_>) -> Arc<dyn Backend> {
        let name = wanted.backend;
        let (scope, beside) = match wanted.directories {
            Some(directories) => (SearchScope::All, Plugins::model_has_library(name, directories)),
            None => (SearchScope::BackendDirectory, false),
        };
        let is_built_in = [ENSEMBLE, IDENTITY, ONNXRUNTIME, TOKEN_COUNTER].contains(&name);
        // The usual library's name says no more than none.
        let names_another =
            !wanted.runtime.is_empty() && wanted.runtime != format!("libtriton_{name}.so");
        if beside || names_another || !is_built_in {
            return self.plugins.backend(name, scope);
        }
        if is_replaced(name, &self.settings.backend_directory) {
            self.tell_of_replaced(name);
            return self.plugins.backend(name, scope);
        }
        let built_in = self.built_in(name);
        if name == ENSEMBLE { built_in } else { self.plugins.with_strategies(built_in, scope) }
    }

    /// Says once that a backend isn't the one that is built in.
    fn tell_of_replaced(&self, name: &str) {
        let mut replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        if replaced.insert(name.to_owned()) {
            let directory = self.settings.backend_directory.join(name);
            let directory = directory.display();
            let text =
                format_args!("backend '{name}' is that in '{directory}', not the built-in one");
            self.log.write(LogLevel::Info, text);
        }
    }

    fn built_in(&self, name: &str) -> Arc<dyn Backend> {
        // Held while a backend is made, so that each is made once.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = made.get(name) {
            return known.backend.clone();
        }
        match self.make(name) {
            Ok(new) => {
                let backend = new.backend.clone();
                made.insert(name.to_owned(), new);
                backend
            }
            // Whoever asks next may have better luck, and names come from
            // clients: they are not kept.
            Err(reason) => Arc::new(Unavailable { reason }),
        }
    }

    /// The backends that models use, as far as there is something to say of them:
    /// ensembles are no backend to whoever uses them.
    pub(crate) fn in_use(&self) -> Vec<InUse> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let built_in = made.iter().map(|(name, made)| (name.clone(), made.library.clone()));
        let mut found: Vec<(String, Option<PathBuf>)> =
            built_in.filter(|(name, _)| name != ENSEMBLE).collect();
        drop(made);
        let libraries = self.plugins.loaded_backends().into_iter();
        found.extend(libraries.map(|(name, library)| (name, Some(library))));
        let with_config = |(name, library): (String, Option<PathBuf>)| {
            let config = self.plugins.config_json(&name);
            InUse { name, library, config }
        };
        let mut in_use: Vec<InUse> = found.into_iter().map(with_config).collect();
        in_use.sort();
        in_use
    }

    fn make(&self, name: &str) -> Result<Made, Status> {
        let backend: Arc<dyn Backend> = match name {
            ENSEMBLE => Arc::new(EnsembleBackend::new()?),
            IDENTITY => Arc::new(IdentityBackend),
            TOKEN_COUNTER => Arc::new(TokenCounterBackend),
            ONNXRUNTIME => return self.onnxruntime(),
            _ => return Err(Status::internal(format!("backend '{name}' is not built in"))),
        };
        Ok(Made { backend, library: None })
    }

    fn onnxruntime(&self) -> Result<Made, Status> {
        let flag = self.settings.onnxruntime_library.as_deref();
        let path = onnxruntime_library::find(flag, &self.environment).map_err(Status::not_found)?;
        let log = self.log.clone();
        let options = BackendOptions {
            // Counts what the process may use: affinity and the quota of its group.
            processors: std::thread::available_parallelism().map_or(1, NonZero::get),
            backend_config: settings_for(ONNXRUNTIME, &self.settings.backend_settings),
            log: Arc::new(move |level, message| log.write(level, message)),
        };
        if let Some(allocator) = &self.allocator {
            allocator.prefault();
        }
        let backend = Arc::new(OnnxRuntimeBackend::new(Library::open(&path)?, options)?);
        Ok(Made { backend, library: Some(path) })
    }
}

/// What plug-ins are told: beside their settings, those that the original sets for
/// all of them.
fn plugin_settings(settings: &Arc<Settings>, reserved: &ReservedAddress) -> PluginSettings {
    let all = settings.clone();
    let server = galatea_backend_plugin::ServerAddress::default();
    server.set(reserved.address());
    PluginSettings {
        backend_directory: settings.backend_directory.clone(),
        settings_of: Arc::new(move |backend| {
            let directory = all.backend_directory.to_string_lossy().into_owned();
            let own = settings_for(backend, &all.backend_settings);
            let for_all = [
                ("auto-complete-config", all.auto_complete_config.to_string()),
                ("backend-directory", directory),
                ("min-compute-capability", String::from("6.000000")),
            ];
            let for_all = for_all.map(|(key, value)| (String::from(key), value));
            for_all.into_iter().chain(own).collect()
        }),
        support: Support::default(),
        server,
    }
}

/// The settings of one backend. Those for all backends come first, so that
/// its own win.
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

/// Whether a library is taken in place of a backend that is built in.
fn is_replaced(name: &str, backend_directory: &Path) -> bool {
    STAND_INS.contains(&name) && Plugins::is_installed(name, backend_directory)
}

/// The settings that are for a backend that is built in and doesn't read them.
pub(crate) fn unused(settings: &Settings) -> impl Iterator<Item = &BackendSetting> {
    settings.backend_settings.iter().filter(|setting| match setting.backend.as_str() {
        ONNXRUNTIME => !ONNXRUNTIME_SETTINGS.contains(&setting.key.as_str()),
        ENSEMBLE => true,
        name @ (IDENTITY | TOKEN_COUNTER) => !is_replaced(name, &settings.backend_directory),
        _ => false,
    })
}

/// Stands where a backend can't be had.
struct Unavailable {
    reason: Status,
}

impl Backend for Unavailable {
    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Blocking
    }

    fn auto_complete_config(&self, _: &mut ConfigDraft, _: &dyn ModelFiles) -> Result<(), Status> {
        Err(self.reason.clone())
    }

    fn load(
        &self,
        _: Arc<ModelSpec>,
        _: &dyn ModelFiles,
        _: Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status> {
        Err(self.reason.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(backend: &str, key: &str, value: &str) -> BackendSetting {
        BackendSetting { backend: backend.into(), key: key.into(), value: value.into() }
    }

    #[test]
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
    fn settings_that_nothing_reads_are_found() {
        let backend_settings = vec![
            setting("", "default-max-batch-size", "8"),
            setting("onnxruntime", "intra_op_thread_count", "1"),
            setting("onnxruntime", "nonsense", "1"),
            setting("tensorrt", "default-max-batch-size", "1"),
            setting("identity", "default-max-batch-size", "1"),
        ];
        let backend_directory = "/no/such/directory".into();
        let settings = Settings { backend_settings, backend_directory, ..Settings::default() };
        let unused: Vec<String> = unused(&settings).map(ToString::to_string).collect();
        assert_eq!(unused, ["onnxruntime,nonsense=1", "identity,default-max-batch-size=1"]);
    }
}
