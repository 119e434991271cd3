//! The settings that result from the flags.

use std::fmt;
use std::path::PathBuf;

use galatea_codec::forward::HeaderForwardPattern;
use galatea_dispatch::{HostPolicies, RateLimiterMode, ResourceLimit};
use galatea_engine::{ControlMode, NamespaceMode};
use galatea_gate::access::AccessRules;
use galatea_grpc::{CompressionLevel, KeepaliveOptions};
use galatea_http::{RequestFormat, ToolCallFormat};
use galatea_repository::{ScanOptions, SymlinkPolicy};
use galatea_telemetry::{LogOptions, MetricsOptions};

use super::tls::{self, TlsSettings};

use super::gpus::GpuSettings;
use crate::connections::ConnectionSettings;
use crate::environment::VertexAiVariables;
use crate::error_paths::ErrorPaths;
use crate::memory::{MemoryLimit, ModelMemoryLimit};
use crate::model_code::ModelCodePermission;
use crate::tracing::TraceFlags;

/// All settings that flags control, with Triton's defaults.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The server's name.
    pub(crate) id: String,
    /// The time that requests may take after the server has received a signal to stop.
    pub(crate) exit_timeout_secs: u32,
    /// True if a model that fails to load aborts startup.
    pub(crate) exit_on_error: bool,
    /// True if the server is ready only if all of its models are.
    pub(crate) strict_readiness: bool,
    /// The permission for load requests to bring code.
    pub(crate) model_code: ModelCodePermission,
    /// The form of paths in the errors that clients get.
    pub(crate) error_paths: ErrorPaths,
    /// The model repositories.
    pub(crate) model_repositories: Vec<PathBuf>,
    /// True if backends may complete configurations.
    pub(crate) auto_complete_config: bool,
    /// The custom configuration to prefer for each model.
    pub(crate) model_config_name: Option<String>,
    /// The treatment of symbolic links in repositories.
    pub(crate) repository_symlinks: SymlinkPolicy,
    /// The mode that determines what triggers loads and unloads.
    pub(crate) control_mode: ControlMode,
    /// The namespace mode: whether several models may have the same name.
    pub(crate) namespaces: NamespaceMode,
    /// The number of seconds between repository scans, if the server polls for changes; 0 scans
    /// only at startup.
    pub(crate) repository_poll_secs: u32,
    /// True if the command line sets [`Settings::repository_poll_secs`].
    pub(crate) sets_poll_secs: bool,
    /// The maximum memory of models that are loaded on demand.
    pub(crate) model_memory: Option<ModelMemoryLimit>,
    /// The number of models that load concurrently.
    pub(crate) model_load_threads: usize,
    /// The number of retries for a version that fails to load.
    pub(crate) load_retries: u32,
    /// The memory that requests and responses may use.
    pub(crate) memory_limit: MemoryLimit,
    /// The response cache, if there is one.
    pub(crate) cache: Option<CacheSettings>,
    /// The directory of cache libraries.
    pub(crate) cache_directory: PathBuf,
    /// The error for the first value that prevents a server from being created, in terms of the
    /// flags.
    pub(crate) rejected: Option<String>,
    /// The host policies, which assign instances to processors.
    pub(crate) host_policies: HostPolicies,
    /// The GPU settings.
    pub(crate) gpus: GpuSettings,
    /// True if instances share resources.
    pub(crate) rate_limiting: bool,
    /// The amount of each resource.
    pub(crate) rate_limit_resources: Vec<ResourceLimit>,
    /// The models named with `--load-model`.
    pub(crate) startup_models: Vec<String>,
    /// The log options.
    pub(crate) log: LogOptions,
    /// The HTTP endpoint.
    pub(crate) http: DoorSettings,
    /// True if the HTTP endpoint has the dashboard.
    pub(crate) dashboard: bool,
    /// The host names under which the dashboard is served, in addition to those of the machine.
    pub(crate) dashboard_hosts: Vec<String>,
    /// True if clients of the HTTP endpoint may record traffic.
    pub(crate) traffic_recording: bool,
    /// The number of threads that serve the endpoints.
    pub(crate) http_threads: usize,
    /// The maximum size of an HTTP body, including after decompression.
    pub(crate) http_input_bytes_max: u64,
    /// True if clients may share memory.
    pub(crate) allow_client_shm: bool,
    /// The HTTP headers that become parameters.
    pub(crate) http_header_forward: Option<HeaderForwardPattern>,
    /// The gRPC metadata that becomes parameters.
    pub(crate) grpc_header_forward: Option<HeaderForwardPattern>,
    /// The file of tenants, if callers need keys.
    pub(crate) tenants_file: Option<PathBuf>,
    /// The APIs that are restricted over HTTP.
    pub(crate) http_rules: AccessRules,
    /// The APIs that are restricted over gRPC.
    pub(crate) grpc_rules: AccessRules,
    /// The gRPC endpoint.
    pub(crate) grpc: DoorSettings,
    /// The maximum number of a stream request's responses that may wait for the client, if limited.
    pub(crate) grpc_response_pool_size: Option<usize>,
    /// The compression of gRPC responses.
    pub(crate) grpc_response_compression: CompressionLevel,
    /// The gRPC keepalive and connection-lifetime options.
    pub(crate) grpc_keepalive: KeepaliveOptions,
    /// The connection limits.
    pub(crate) connections: ConnectionSettings,
    /// The metrics endpoint; an empty address means the HTTP endpoint's address.
    pub(crate) metrics: DoorSettings,
    /// The OpenAI endpoint.
    pub(crate) openai: OpenAiSettings,
    /// The cloud endpoints.
    pub(crate) clouds: CloudSettings,
    /// The metric families to report.
    pub(crate) metrics_options: MetricsOptions,
    /// The directory of backend libraries.
    pub(crate) backend_directory: PathBuf,
    /// The directory of repository-agent libraries.
    pub(crate) repoagent_directory: PathBuf,
    /// The backend settings, in order.
    pub(crate) backend_settings: Vec<BackendSetting>,
    /// The path of the ONNX Runtime library.
    pub(crate) onnxruntime_library: Option<PathBuf>,
    /// The path of the OpenVINO library.
    pub(crate) openvino_library: Option<PathBuf>,
    /// The path of PyTorch's library.
    pub(crate) torch_library: Option<PathBuf>,
    /// False if compiled PyTorch models, which are native code, are refused.
    pub(crate) allows_native_models: bool,
    /// The path of the TensorFlow library.
    pub(crate) tensorflow_library: Option<PathBuf>,
    /// The tracing flags.
    pub(crate) trace: TraceFlags,
    /// The value of the deprecated `--strict-model-config`.
    pub(crate) strict_model_config: Option<bool>,
    /// True if `--disable-auto-complete-config` was passed.
    pub(crate) disables_auto_complete: bool,
    /// Notes about flags, for the log.
    pub(crate) notes: Vec<String>,
}

/// The settings of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DoorSettings {
    /// True if the endpoint is enabled.
    pub(crate) allow: bool,
    /// The address to bind to.
    pub(crate) address: String,
    /// The port; 0 lets the system choose.
    pub(crate) port: u16,
    /// True if other processes may listen on the same port.
    pub(crate) reuse_port: bool,
    /// The TLS settings, including certificates.
    pub(crate) tls: TlsSettings,
}

impl DoorSettings {
    fn new(allow: bool, address: &str, port: u16) -> Self {
        let (address, tls) = (address.to_owned(), TlsSettings::default());
        Self { allow, address, port, reuse_port: false, tls }
    }
}

/// The settings of the endpoints for cloud platforms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CloudSettings {
    /// The SageMaker endpoint.
    pub(crate) sagemaker: DoorSettings,
    /// The first and last port for other endpoints at the SageMaker endpoint's address.
    pub(crate) sagemaker_safe_ports: Option<(i32, i32)>,
    /// The number of threads that serve SageMaker.
    pub(crate) sagemaker_threads: usize,
    /// The Vertex AI endpoint.
    pub(crate) vertex_ai: DoorSettings,
    /// The number of threads that serve Vertex AI.
    pub(crate) vertex_ai_threads: usize,
    /// The model for requests that don't specify one; if empty, the only model.
    pub(crate) vertex_ai_default_model: String,
}

impl Default for CloudSettings {
    fn default() -> Self {
        Self {
            sagemaker: DoorSettings::new(false, "0.0.0.0", 8080),
            sagemaker_safe_ports: None,
            sagemaker_threads: 8,
            vertex_ai: DoorSettings::new(false, "0.0.0.0", 8080),
            vertex_ai_threads: 8,
            vertex_ai_default_model: String::new(),
        }
    }
}

/// The settings of the OpenAI endpoint.
#[derive(Clone, Debug)]
pub(crate) struct OpenAiSettings {
    /// The endpoint.
    pub(crate) door: DoorSettings,
    /// True if the HTTP endpoint has the paths under `/v1`, too.
    pub(crate) is_on_http_port: bool,
    /// The tokenizer's directory.
    pub(crate) tokenizer: Option<PathBuf>,
    /// The chat template's file.
    pub(crate) chat_template: Option<PathBuf>,
    /// The convention for the inputs and outputs of all models.
    pub(crate) format: Option<RequestFormat>,
    /// The maximum number of tokens for a client that doesn't state a limit.
    pub(crate) tokens_default: u32,
    /// The text between the names of a model and its adapter.
    pub(crate) lora_separator: Option<String>,
    /// The form of tool calls in the models' texts.
    pub(crate) tool_format: Option<ToolCallFormat>,
    /// The maximum number of characters in a streamed text with tools.
    pub(crate) tool_chars_max: usize,
    /// The restricted APIs. The metrics belong to the category `statistics`.
    pub(crate) rules: AccessRules,
}

impl Default for OpenAiSettings {
    fn default() -> Self {
        Self {
            door: DoorSettings::new(false, "0.0.0.0", 9000),
            is_on_http_port: false,
            tokenizer: None,
            chat_template: None,
            format: None,
            tokens_default: 16,
            lora_separator: None,
            tool_format: None,
            tool_chars_max: 128 << 10,
            rules: AccessRules::default(),
        }
    }
}

/// The response cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheSettings {
    /// The flag that requested the cache.
    pub(crate) flag: CacheFlag,
    /// The cache's name.
    pub(crate) name: String,
    /// The cache's configuration, a JSON object.
    pub(crate) config: String,
    /// True if flags also name other caches. The server then refuses to start.
    pub(crate) names_others: bool,
}

/// The flags that request a response cache; only one of them may be used.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum CacheFlag {
    /// `--cache-config`.
    CacheConfig,
    /// `--response-cache-byte-size`.
    ResponseCacheByteSize,
}

/// `--backend-config BACKEND,KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendSetting {
    /// The backend's name; empty if the setting applies to all backends.
    pub(crate) backend: String,
    /// The setting's name.
    pub(crate) key: String,
    /// The setting's value.
    pub(crate) value: String,
}

impl fmt::Display for BackendSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.backend.is_empty() { "" } else { "," };
        write!(f, "{}{separator}{}={}", self.backend, self.key, self.value)
    }
}

impl Default for Settings {
    fn default() -> Self {
        let door = |address: &str, port| DoorSettings::new(true, address, port);
        Self {
            id: String::from("triton"),
            exit_timeout_secs: 30,
            exit_on_error: true,
            strict_readiness: true,
            model_code: ModelCodePermission::Allowed,
            error_paths: ErrorPaths::Absolute,
            model_repositories: Vec::new(),
            auto_complete_config: true,
            model_config_name: None,
            repository_symlinks: SymlinkPolicy::Followed,
            control_mode: ControlMode::None,
            namespaces: NamespaceMode::None,
            repository_poll_secs: 15,
            sets_poll_secs: false,
            model_memory: None,
            model_load_threads: 4,
            load_retries: 0,
            memory_limit: MemoryLimit::Default,
            cache: None,
            cache_directory: PathBuf::from("/opt/tritonserver/caches"),
            rejected: None,
            host_policies: HostPolicies::default(),
            gpus: GpuSettings::default(),
            rate_limiting: false,
            rate_limit_resources: Vec::new(),
            startup_models: Vec::new(),
            log: LogOptions::default(),
            http: door("0.0.0.0", 8000),
            dashboard: false,
            dashboard_hosts: Vec::new(),
            traffic_recording: false,
            http_threads: 8,
            http_input_bytes_max: 64 * 1024 * 1024,
            allow_client_shm: false,
            http_header_forward: None,
            grpc_header_forward: None,
            tenants_file: None,
            http_rules: AccessRules::default(),
            grpc_rules: AccessRules::default(),
            grpc: door("0.0.0.0", 8001),
            grpc_response_pool_size: None,
            grpc_response_compression: CompressionLevel::None,
            grpc_keepalive: KeepaliveOptions::default(),
            connections: ConnectionSettings::default(),
            metrics: door("", 8002),
            openai: OpenAiSettings::default(),
            clouds: CloudSettings::default(),
            metrics_options: MetricsOptions::default(),
            backend_directory: PathBuf::from("/opt/tritonserver/backends"),
            repoagent_directory: PathBuf::from("/opt/tritonserver/repoagents"),
            backend_settings: Vec::new(),
            onnxruntime_library: None,
            openvino_library: None,
            torch_library: None,
            allows_native_models: true,
            tensorflow_library: None,
            trace: TraceFlags::default(),
            strict_model_config: None,
            disables_auto_complete: false,
            notes: Vec::new(),
        }
    }
}

impl Settings {
    /// The defaults of a server that may have been started by Vertex AI.
    pub(super) fn under(variables: &VertexAiVariables) -> Self {
        let mut settings = Self::default();
        if variables.is_prediction {
            settings.clouds.vertex_ai.allow = true;
            settings.http.allow = false;
            settings.grpc.allow = false;
        }
        settings
    }

    /// The scan options: the files to look for in repositories, and the treatment of links.
    pub(crate) fn scan_options(&self) -> ScanOptions {
        let config_name = self.model_config_name.clone();
        ScanOptions { config_name, symlinks: self.repository_symlinks }
    }

    /// Adds a note for the log. A flag that is passed twice gets only one note.
    pub(super) fn add_remark(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Records the reason why no server can be created. As in Triton, it is reported only if the
    /// command line is well-formed.
    pub(super) fn reject(&mut self, why: String) {
        self.rejected.get_or_insert(why);
    }

    /// Triton's warnings about deprecated flags, for standard error.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = &'static str> {
        let deprecated = self.strict_model_config.map(|_| {
            "Warning: '--strict-model-config' has been deprecated! Please use \
             '--disable-auto-complete-config' instead."
        });
        let is_overridden = self.disables_auto_complete && self.strict_model_config == Some(false);
        let overridden = is_overridden.then_some(
            "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of \
             '--disable-auto-complete-config'!",
        );
        deprecated.into_iter().chain(overridden).chain(self.trace.warnings.iter().copied())
    }

    /// Notes about TLS files.
    pub(crate) fn tls_remarks(&self) -> impl Iterator<Item = String> {
        self.grpc.tls.remarks(tls::GRPC).chain(self.http.tls.remarks(tls::HTTP))
    }

    /// Adds a note that an accepted flag has no effect.
    pub(super) fn no_effect(&mut self, flag: &str, because: &str) {
        self.add_remark(format!("'--{flag}' has no effect: {because}"));
    }

    /// Adds a note that applies only without GPUs.
    pub(super) fn note_without_gpus(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.add_remark(text.clone());
        if !self.gpus.notes_without.contains(&text) {
            self.gpus.notes_without.push(text);
        }
    }

    /// Adds a note that an accepted flag has no effect without GPUs.
    pub(super) fn no_effect_without_gpus(&mut self, flag: &str) {
        self.note_without_gpus(format!("'--{flag}' has no effect: no GPU is used"));
    }

    /// The maximum memory of models that are loaded on demand; `None` in other control modes.
    ///
    /// # Errors
    ///
    /// The flags that can't be combined.
    pub(crate) fn demand(&self) -> Result<Option<ModelMemoryLimit>, String> {
        let wrong = |text: &str| Err(String::from(text));
        match (self.control_mode, self.model_memory) {
            (ControlMode::None | ControlMode::Poll | ControlMode::Explicit, None)
                if !self.gpus.model_memory.is_empty() =>
            {
                wrong("--model-gpu-memory needs --model-control-mode=demand")
            }
            (ControlMode::None | ControlMode::Poll | ControlMode::Explicit, None) => Ok(None),
            (ControlMode::None | ControlMode::Poll | ControlMode::Explicit, Some(_)) => {
                wrong("--model-memory needs --model-control-mode=demand")
            }
            (ControlMode::Demand, None) => {
                wrong("--model-control-mode=demand needs --model-memory")
            }
            (ControlMode::Demand, Some(_)) if self.sets_poll_secs => wrong(
                "--repository-poll-secs has no effect with --model-control-mode=demand, which \
                 reads a model's files whenever it loads the model",
            ),
            (ControlMode::Demand, Some(_)) if self.namespaces == NamespaceMode::Repositories => {
                wrong("--model-namespacing can't be used with --model-control-mode=demand")
            }
            (ControlMode::Demand, Some(_))
                if self.startup_models.iter().any(|name| name == "*") =>
            {
                wrong(
                    "--load-model=* can't be used with --model-control-mode=demand: it would keep \
                     all models in memory",
                )
            }
            (ControlMode::Demand, Some(limit)) => Ok(Some(limit)),
        }
    }

    /// The way instances share resources.
    pub(crate) fn rate_limit(&self) -> RateLimiterMode {
        if self.rate_limiting {
            RateLimiterMode::ExecutionCount(self.rate_limit_resources.clone())
        } else {
            RateLimiterMode::Off
        }
    }

    /// The address of the metrics endpoint.
    pub(crate) fn metrics_address(&self) -> &str {
        if self.metrics.address.is_empty() { &self.http.address } else { &self.metrics.address }
    }
}
