//! Server settings that plug-ins can query, and the directories where plug-ins are installed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use galatea_abi::TRITONSERVER_Server;
use galatea_config::SupportedFeatures;
use galatea_devices::Devices;

/// A setting that every backend has.
const DEFAULT_MAX_BATCH_SIZE: (&str, &str) = ("default-max-batch-size", "4");

/// The server's address, which `TRITONBACKEND_ModelServer` returns and only the functions of
/// tritonserver.h can use. It is null until set, because backends are created before their server.
#[derive(Clone, Debug, Default)]
pub struct LateServerPointer(Arc<AtomicPtr<TRITONSERVER_Server>>);

impl LateServerPointer {
    /// Sets the address. This must happen before the first model is loaded, because backends query
    /// the address then.
    pub fn set(&self, address: *mut TRITONSERVER_Server) {
        self.0.store(address, Ordering::Release);
    }

    pub(crate) fn address(&self) -> *mut TRITONSERVER_Server {
        self.0.load(Ordering::Acquire)
    }
}

/// A function that returns a backend's command-line settings.
pub type BackendSettingsLookup = Arc<dyn Fn(&str) -> BTreeMap<String, String> + Send + Sync>;

/// Server settings that plug-ins can query, and the directories where plug-ins are installed.
#[derive(Clone)]
pub struct PluginSettings {
    /// The directory that contains one directory per backend.
    pub backend_directory: PathBuf,
    /// The settings of each backend, merged with the settings for all backends.
    pub settings_of: BackendSettingsLookup,
    /// The devices that models may use.
    pub support: SupportedFeatures,
    /// The GPUs whose memory backends may allocate.
    pub devices: Devices,
    /// The server that backends may call.
    pub server: LateServerPointer,
}

impl PluginSettings {
    /// A backend's settings as Triton renders them: all values are strings.
    pub(crate) fn config_json(&self, backend: &str) -> String {
        let mut settings = (self.settings_of)(backend);
        let (key, value) = DEFAULT_MAX_BATCH_SIZE;
        settings.entry(String::from(key)).or_insert_with(|| String::from(value));
        serde_json::json!({ "cmdline": settings }).to_string()
    }
}
