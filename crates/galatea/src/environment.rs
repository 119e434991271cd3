//! The environment variables of the server, read here and nowhere else.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use galatea_backend_tensorflow as tensorflow;
use galatea_bucket::BucketEnvironment;
use galatea_grpc::TestDelays;
use galatea_runtime::LibrarySearchPaths;
use galatea_tools::console::ColourMode;

/// The environment variables of the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    /// True if log messages are quoted; `TRITON_SERVER_ESCAPE_LOG_MESSAGES=0` turns quoting off.
    pub(crate) quote_log_messages: bool,
    /// `TRITONSERVER_DELAY_SCHEDULER`: schedulers wait until this number
    /// of requests is queued, so that tests get the batches they expect.
    pub(crate) delay_scheduler: u32,
    /// `TRITONSERVER_BACKLOG_DELAY_SCHEDULER`: sequence batchers also wait until
    /// this number of requests is in their backlog.
    pub(crate) backlog_delay_scheduler: u32,
    /// `TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC` and similar variables, which Triton's own
    /// tests use to delay gRPC responses.
    pub(crate) grpc_delays: TestDelays,
    /// `TRITON_PARALLEL_INSTANCE_LOADING`, which determines whether a model's instances are created
    /// in parallel, regardless of what its backend declares.
    pub(crate) parallel_instance_loading: Option<bool>,
    /// `TRITON_SERVER_CPU_ONLY`, which keeps the server from using GPUs.
    pub(crate) cpu_only: bool,
    /// `GALATEA_ONNXRUNTIME_LIBRARY`.
    pub(crate) onnxruntime_library: Option<PathBuf>,
    /// `GALATEA_OPENVINO_LIBRARY`.
    pub(crate) openvino_library: Option<PathBuf>,
    /// `GALATEA_TORCH_LIBRARY`.
    pub(crate) torch_library: Option<PathBuf>,
    /// `GALATEA_TENSORFLOW_LIBRARY`.
    pub(crate) tensorflow_library: Option<PathBuf>,
    /// The origin of the value of `TF_CPP_MIN_LOG_LEVEL`.
    pub(crate) tensorflow_log_level: LogLevelOrigin,
    /// `LD_LIBRARY_PATH`, which the environments of Python models extend.
    pub(crate) library_path: Option<OsString>,
    /// `VIRTUAL_ENV`.
    pub(crate) virtual_environment: Option<PathBuf>,
    /// The settings that cloud platforms pass to the server.
    pub(crate) clouds: CloudVariables,
    /// The limits for batching spans.
    pub(crate) span_batches: SpanBatchVariables,
    /// The span collector, and the attributes that all spans share.
    pub(crate) collector: CollectorVariables,
    /// The parts of the environment that repositories in buckets need.
    pub(crate) buckets: BucketEnvironment,
    /// `TMPDIR`, the directory that holds the files of clients' models while they are loaded.
    pub(crate) temporary_folder: PathBuf,
    /// `XDG_CACHE_HOME`, or else `.cache` in `HOME`.
    pub(crate) cache_folder: Option<PathBuf>,
    /// The cache of Hugging Face's libraries: `HF_HUB_CACHE`, its earlier name
    /// `HUGGINGFACE_HUB_CACHE`, or else `hub` in `HF_HOME`, which defaults to `huggingface` in
    /// the cache directory.
    pub(crate) hub_cache: Option<PathBuf>,
    /// `HOME`.
    pub(crate) home: Option<PathBuf>,
    /// The directories in `PATH`.
    pub(crate) program_folders: Vec<PathBuf>,
    /// The permission for commands to use colours on terminals: `NO_COLOR` and `TERM=dumb` forbid
    /// them.
    pub(crate) colours: ColourMode,
}

/// The origin of the variable that sets the level of TensorFlow's messages.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogLevelOrigin {
    /// The variable is not set.
    #[default]
    Absent,
    /// The variable was set when the process started.
    Operator,
    /// The server has set the variable for itself.
    Server,
}

/// The `OTEL_BSP_*` variables that Triton reads, keyed by setting name.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanBatchVariables(Vec<(&'static str, String)>);

impl SpanBatchVariables {
    const NAMES: [(&'static str, &'static str); 3] = [
        ("bsp_max_export_batch_size", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"),
        ("bsp_schedule_delay", "OTEL_BSP_SCHEDULE_DELAY"),
        ("bsp_max_queue_size", "OTEL_BSP_MAX_QUEUE_SIZE"),
    ];

    fn of(text: impl Fn(&str) -> Option<String>) -> Self {
        let set = Self::NAMES.into_iter();
        Self(set.filter_map(|(name, variable)| Some((name, text(variable)?))).collect())
    }

    /// The value of the setting with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

/// The variables that OpenTelemetry's libraries read in Triton.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CollectorVariables {
    /// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, or else derived from `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub(crate) url: Option<String>,
    /// `OTEL_EXPORTER_OTLP_TRACES_HEADERS` or `OTEL_EXPORTER_OTLP_HEADERS`.
    pub(crate) headers: Vec<(String, String)>,
    /// `OTEL_RESOURCE_ATTRIBUTES`.
    pub(crate) resource: Vec<(String, String)>,
    /// `OTEL_EXPORTER_OTLP_TRACES_TIMEOUT` or `OTEL_EXPORTER_OTLP_TIMEOUT`.
    pub(crate) time_max: Option<Duration>,
    /// `OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE` or `OTEL_EXPORTER_OTLP_CERTIFICATE`.
    pub(crate) trusted: Option<PathBuf>,
    /// `OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE` or `OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE`.
    pub(crate) client_certificate: Option<PathBuf>,
    /// `OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY` or `OTEL_EXPORTER_OTLP_CLIENT_KEY`.
    pub(crate) client_key: Option<PathBuf>,
}

impl CollectorVariables {
    fn of(text: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| text(name).filter(|value| !value.is_empty());
        // The traces variable takes precedence over the one for all signals.
        let of_traces = |name: &str| {
            set(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"))
                .or_else(|| set(&format!("OTEL_EXPORTER_OTLP_{name}")))
        };
        let all = |base: String| format!("{}/v1/traces", base.trim_end_matches('/'));
        let pairs = |list: Option<String>| -> Vec<(String, String)> {
            let list = list.unwrap_or_default();
            let pairs = list.split(',').filter_map(|pair| pair.split_once('='));
            let pair =
                |(key, value): (&str, &str)| (key.trim().to_owned(), value.trim().to_owned());
            pairs.map(pair).collect()
        };
        Self {
            url: set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
                .or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT").map(all)),
            headers: pairs(of_traces("HEADERS")),
            resource: pairs(set("OTEL_RESOURCE_ATTRIBUTES")),
            time_max: of_traces("TIMEOUT").and_then(|value| duration(&value)),
            trusted: of_traces("CERTIFICATE").map(PathBuf::from),
            client_certificate: of_traces("CLIENT_CERTIFICATE").map(PathBuf::from),
            client_key: of_traces("CLIENT_KEY").map(PathBuf::from),
        }
    }
}

/// The variables of cloud platforms.
#[derive(Clone, Debug, Default)]
pub(crate) struct CloudVariables {
    /// The settings that Triton's SageMaker container passes to the server.
    pub(crate) sagemaker: SageMakerVariables,
    /// The settings that Vertex AI passes to the containers that it starts.
    pub(crate) vertex_ai: VertexAiVariables,
}

impl CloudVariables {
    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let text = |name: &str| variable(name).and_then(|value| value.into_string().ok());
        let repository = variable("AIP_STORAGE_URI").filter(|value| !value.is_empty());
        Self {
            sagemaker: SageMakerVariables {
                ping_mode: text("SAGEMAKER_TRITON_PING_MODE"),
                default_model: text("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"),
                inference_type: text("SAGEMAKER_TRITON_INFERENCE_TYPE"),
            },
            vertex_ai: VertexAiVariables {
                is_prediction: text("AIP_MODE").as_deref() == Some("PREDICTION"),
                repository: repository.map(PathBuf::from),
                http_port: text("AIP_HTTP_PORT"),
                predict_route: text("AIP_PREDICT_ROUTE").unwrap_or_default(),
                health_route: text("AIP_HEALTH_ROUTE").unwrap_or_default(),
            },
        }
    }
}

/// Returns the directory of the user's caches.
fn cache_folder(path: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")))
}

/// Returns the cache of Hugging Face's libraries.
fn hub_cache(path: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let in_home = || {
        let home = path("HF_HOME").or_else(|| Some(cache_folder(&path)?.join("huggingface")));
        home.map(|home| home.join("hub"))
    };
    path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE")).or_else(in_home)
}

/// Parses a duration in OpenTelemetry's format: digits followed by a unit, which defaults to
/// milliseconds. Anything else, or a zero duration, is treated as unset.
fn duration(text: &str) -> Option<Duration> {
    let text = text.trim_start();
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(end)?;
    let number: u64 = digits.parse().ok().filter(|number| *number > 0)?;
    let seconds = |factor: u64| number.checked_mul(factor).map(Duration::from_secs);
    match unit {
        "ns" => Some(Duration::from_nanos(number)),
        "us" => Some(Duration::from_micros(number)),
        "ms" | "" => Some(Duration::from_millis(number)),
        "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3600),
        _ => None,
    }
}

/// Variables that Vertex AI sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct VertexAiVariables {
    /// `AIP_MODE=PREDICTION`: the Vertex AI endpoint is on, and HTTP and gRPC are off unless flags
    /// turn them on.
    pub(crate) is_prediction: bool,
    /// `AIP_STORAGE_URI`: the model repository, unless a flag specifies one.
    pub(crate) repository: Option<PathBuf>,
    /// `AIP_HTTP_PORT`: the endpoint's port, unless a flag specifies one.
    pub(crate) http_port: Option<String>,
    /// `AIP_PREDICT_ROUTE`: the path for inference requests. As in Triton, empty if unset.
    pub(crate) predict_route: String,
    /// `AIP_HEALTH_ROUTE`: the path for health checks. As in Triton, empty if unset.
    pub(crate) health_route: String,
}

/// Variables that Triton's SageMaker container sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct SageMakerVariables {
    /// `SAGEMAKER_TRITON_PING_MODE`.
    pub(crate) ping_mode: Option<String>,
    /// `SAGEMAKER_TRITON_DEFAULT_MODEL_NAME`.
    pub(crate) default_model: Option<String>,
    /// `SAGEMAKER_TRITON_INFERENCE_TYPE`.
    pub(crate) inference_type: Option<String>,
}

impl Environment {
    /// The places to search for runtime libraries.
    pub(crate) fn search_places(&self) -> LibrarySearchPaths<'_> {
        LibrarySearchPaths {
            virtual_environment: self.virtual_environment.as_deref(),
            home: self.home.as_deref(),
            program_folders: &self.program_folders,
        }
    }

    /// Suppresses the messages that TensorFlow's library logs about each model, unless the operator
    /// has chosen a level. The process must not have started any other threads yet.
    pub(crate) fn quiet_tensorflow(&mut self) {
        if self.tensorflow_log_level == LogLevelOrigin::Absent
            && tensorflow::choose_warnings_and_errors()
        {
            self.tensorflow_log_level = LogLevelOrigin::Server;
        }
    }

    /// The variables that the server has set for itself. Child processes don't inherit them.
    pub(crate) const fn own_variables(&self) -> &'static [&'static str] {
        match self.tensorflow_log_level {
            LogLevelOrigin::Server => &[tensorflow::LOG_LEVEL_VARIABLE],
            LogLevelOrigin::Operator | LogLevelOrigin::Absent => &[],
        }
    }

    /// Reads the environment of this process.
    #[allow(clippy::disallowed_methods, reason = "the one place where it is read")]
    pub(crate) fn read() -> Self {
        Self::of(|name| std::env::var_os(name))
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let text = |name: &str| variable(name).and_then(|value| value.into_string().ok());
        // As in Triton, a value that isn't a number is treated as unset.
        let count = |name: &str| text(name).and_then(|value| value.parse().ok()).unwrap_or(0);
        let milliseconds = |names: &[&str]| {
            let numbers = names.iter().filter_map(|name| text(name));
            Duration::from_millis(numbers.map(|text| leading_number(&text)).sum())
        };
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            quote_log_messages: text("TRITON_SERVER_ESCAPE_LOG_MESSAGES").as_deref() != Some("0"),
            delay_scheduler: count("TRITONSERVER_DELAY_SCHEDULER"),
            backlog_delay_scheduler: count("TRITONSERVER_BACKLOG_DELAY_SCHEDULER"),
            grpc_delays: TestDelays {
                control_response: Duration::from_secs(
                    text("TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC")
                        .map_or(0, |text| leading_number(&text)),
                ),
                call_response: milliseconds(&[
                    "TRITONSERVER_DELAY_RESPONSE_COMPLETE_EXEC",
                    "TRITONSERVER_DELAY_RESPONSE_COMPLETION",
                ]),
                stream_response: milliseconds(&[
                    "TRITONSERVER_DELAY_GRPC_RESPONSE",
                    "TRITONSERVER_DELAY_GRPC_COMPLETE",
                ]),
                call_start: milliseconds(&[
                    "TRITONSERVER_DELAY_GRPC_PROCESS_ENTRY",
                    "TRITONSERVER_DELAY_GRPC_PROCESS",
                ]),
                stream_request: milliseconds(&["TRITONSERVER_DELAY_GRPC_PROCESS_ENTRY"]),
                cancellation: milliseconds(&["TRITONSERVER_DELAY_GRPC_NOTIFICATION"]),
                cancelled_end: milliseconds(&["TRITONSERVER_DELAY_GRPC_ENQUEUE"]),
            },
            parallel_instance_loading: text("TRITON_PARALLEL_INSTANCE_LOADING")
                .filter(|value| !value.is_empty())
                .map(|value| value == "1"),
            // As in Triton, any value works.
            cpu_only: variable("TRITON_SERVER_CPU_ONLY").is_some(),
            onnxruntime_library: path("GALATEA_ONNXRUNTIME_LIBRARY"),
            openvino_library: path("GALATEA_OPENVINO_LIBRARY"),
            torch_library: path("GALATEA_TORCH_LIBRARY"),
            tensorflow_library: path("GALATEA_TENSORFLOW_LIBRARY"),
            tensorflow_log_level: match variable(tensorflow::LOG_LEVEL_VARIABLE) {
                Some(_) => LogLevelOrigin::Operator,
                None => LogLevelOrigin::Absent,
            },
            library_path: variable("LD_LIBRARY_PATH"),
            virtual_environment: path("VIRTUAL_ENV"),
            clouds: CloudVariables::of(&variable),
            span_batches: SpanBatchVariables::of(text),
            collector: CollectorVariables::of(text),
            buckets: BucketEnvironment {
                variables: BucketEnvironment::VARIABLES
                    .iter()
                    .filter_map(|name| Some(((*name).to_owned(), text(name)?)))
                    .collect(),
                home: path("HOME"),
                temporary_folder: path("TMPDIR").unwrap_or_else(|| PathBuf::from("/tmp")),
            },
            temporary_folder: path("TMPDIR").unwrap_or_else(|| PathBuf::from("/tmp")),
            cache_folder: cache_folder(path),
            hub_cache: hub_cache(path),
            home: path("HOME"),
            program_folders: variable("PATH")
                .map(|folders| std::env::split_paths(&folders).collect())
                .unwrap_or_default(),
            colours: if path("NO_COLOR").is_some() || text("TERM").as_deref() == Some("dumb") {
                ColourMode::Off
            } else {
                ColourMode::Allowed
            },
        }
    }
}

/// Parses the number at the start of the text as C does; returns 0 if there are no digits or the
/// number is too large.
fn leading_number(text: &str) -> u64 {
    let text = text.trim_start();
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end).and_then(|digits| digits.parse::<u32>().ok()).unwrap_or(0).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::of(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn unset_variables_give_the_defaults() {
        let environment = environment(&[]);
        assert!(environment.quote_log_messages);
        assert_eq!((environment.delay_scheduler, environment.backlog_delay_scheduler), (0, 0));
        assert_eq!(environment.onnxruntime_library, None);
        assert!(environment.program_folders.is_empty());
    }

    #[test]
    fn only_zero_turns_quoting_off() {
        let quoted =
            |value| environment(&[("TRITON_SERVER_ESCAPE_LOG_MESSAGES", value)]).quote_log_messages;
        assert!(!quoted("0"));
        assert!(quoted("1"));
        assert!(quoted(""));
    }

    #[test]
    fn colours_can_be_turned_off() {
        let colours = |name, value| environment(&[(name, value)]).colours;
        assert_eq!(colours("NO_COLOR", "1"), ColourMode::Off);
        assert_eq!(colours("NO_COLOR", ""), ColourMode::Allowed);
        assert_eq!(colours("TERM", "dumb"), ColourMode::Off);
        assert_eq!(colours("TERM", "xterm"), ColourMode::Allowed);
    }

    #[test]
    fn only_one_turns_parallel_loading_on() {
        let read = |value| {
            environment(&[("TRITON_PARALLEL_INSTANCE_LOADING", value)]).parallel_instance_loading
        };
        assert_eq!(read("1"), Some(true));
        assert_eq!((read("0"), read("true"), read("")), (Some(false), Some(false), None));
        assert_eq!(environment(&[]).parallel_instance_loading, None);
    }

    #[test]
    fn paths_and_numbers_are_read() {
        let environment = environment(&[
            ("TRITONSERVER_DELAY_SCHEDULER", "5"),
            ("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", "7"),
            ("GALATEA_ONNXRUNTIME_LIBRARY", "/a/b.so"),
            ("GALATEA_OPENVINO_LIBRARY", "/a/c.so"),
            ("GALATEA_TORCH_LIBRARY", "/a/e.so"),
            ("GALATEA_TENSORFLOW_LIBRARY", "/a/d.so"),
            ("VIRTUAL_ENV", ""),
            ("PATH", "/x:/y"),
        ]);
        assert_eq!((environment.delay_scheduler, environment.backlog_delay_scheduler), (5, 7));
        assert_eq!(environment.onnxruntime_library, Some(PathBuf::from("/a/b.so")));
        assert_eq!(environment.openvino_library, Some(PathBuf::from("/a/c.so")));
        assert_eq!(environment.torch_library, Some(PathBuf::from("/a/e.so")));
        assert_eq!(environment.tensorflow_library, Some(PathBuf::from("/a/d.so")));
        assert_eq!(environment.virtual_environment, None);
        assert_eq!(environment.program_folders, [PathBuf::from("/x"), PathBuf::from("/y")]);
    }

    #[test]
    fn clouds_have_variables() {
        let clouds = environment(&[
            ("AIP_MODE", "PREDICTION"),
            ("AIP_STORAGE_URI", ""),
            ("AIP_HTTP_PORT", ""),
            ("AIP_PREDICT_ROUTE", "/p"),
            ("SAGEMAKER_TRITON_PING_MODE", "live"),
        ])
        .clouds;
        let VertexAiVariables { is_prediction, repository, http_port, .. } = clouds.vertex_ai;
        // As in Triton, an empty port is still passed on, but an empty repository counts as none.
        assert_eq!((is_prediction, repository, http_port), (true, None, Some(String::new())));
        assert_eq!(clouds.vertex_ai.predict_route, "/p");
        assert_eq!(clouds.vertex_ai.health_route, "");
        assert_eq!(clouds.sagemaker.ping_mode.as_deref(), Some("live"));
        assert_eq!(clouds.sagemaker.default_model, None);
        for mode in ["", "prediction", "TRAINING"] {
            let clouds = environment(&[("AIP_MODE", mode)]).clouds;
            assert!(!clouds.vertex_ai.is_prediction, "{mode}");
        }
    }

    #[test]
    fn delays_are_seconds_and_milliseconds() {
        let delays = environment(&[
            ("TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC", "2s"),
            ("TRITONSERVER_DELAY_RESPONSE_COMPLETION", "30"),
            ("TRITONSERVER_DELAY_GRPC_RESPONSE", " 5"),
            ("TRITONSERVER_DELAY_GRPC_COMPLETE", "-7"),
            ("TRITONSERVER_DELAY_GRPC_PROCESS", "1"),
            ("TRITONSERVER_DELAY_GRPC_PROCESS_ENTRY", "40"),
            ("TRITONSERVER_DELAY_GRPC_NOTIFICATION", "6"),
            ("TRITONSERVER_DELAY_GRPC_ENQUEUE", "7"),
        ])
        .grpc_delays;
        assert_eq!(delays.control_response, Duration::from_secs(2));
        assert_eq!(delays.call_response, Duration::from_millis(30));
        assert_eq!(delays.stream_response, Duration::from_millis(5));
        assert_eq!(delays.call_start, Duration::from_millis(41));
        assert_eq!(delays.stream_request, Duration::from_millis(40));
        assert_eq!(delays.cancellation, Duration::from_millis(6));
        assert_eq!(delays.cancelled_end, Duration::from_millis(7));
        assert_eq!(environment(&[]).grpc_delays, TestDelays::default());
    }

    #[test]
    fn durations_have_units() {
        for (text, expected) in [
            ("7", Some(Duration::from_millis(7))),
            (" 7ms", Some(Duration::from_millis(7))),
            ("7ns", Some(Duration::from_nanos(7))),
            ("7us", Some(Duration::from_micros(7))),
            ("7s", Some(Duration::from_secs(7))),
            ("7m", Some(Duration::from_secs(420))),
            ("7h", Some(Duration::from_secs(25_200))),
            ("0", None),
            ("7 s", None),
            ("s", None),
            ("99999999999999999999", None),
            ("18446744073709551615h", None),
        ] {
            assert_eq!(duration(text), expected, "{text}");
        }
    }

    #[test]
    fn variables_for_traces_come_before_those_for_all_signals() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a/");
        let read = |variables: &[(&str, &str)]| environment(variables).collector;
        assert_eq!(read(&[all]).url.as_deref(), Some("http://a/v1/traces"));
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b/x");
        assert_eq!(read(&[all, own]).url.as_deref(), Some("http://b/x"));
        let files = read(&[
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "a"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "b"),
            ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "c"),
            ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "d"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "5s"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "k=v, l = w=x"),
        ]);
        assert_eq!(files.trusted, Some(PathBuf::from("a")));
        assert_eq!(files.client_certificate, Some(PathBuf::from("c")));
        assert_eq!(files.client_key, Some(PathBuf::from("d")));
        assert_eq!(files.time_max, Some(Duration::from_secs(5)));
        let headers = [("k", "v"), ("l", "w=x")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(files.headers, headers);
    }

    #[test]
    fn counts_that_are_no_numbers_are_ignored() {
        for value in ["", "-1", "many", "99999999999"] {
            let environment = environment(&[
                ("TRITONSERVER_DELAY_SCHEDULER", value),
                ("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", value),
            ]);
            assert_eq!(environment.delay_scheduler, 0, "{value}");
            assert_eq!(environment.backlog_delay_scheduler, 0, "{value}");
        }
    }
}
