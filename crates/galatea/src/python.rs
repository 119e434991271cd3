//! The server as Python models see it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use galatea_backend_python::{
    Confinement, CustomMetric, CustomMetricFamily, CustomMetricKind, ServerAccess,
};
use galatea_capi::metric::{self, MetricKind};
use galatea_control::{LoadParameters, ServerControl};
use galatea_engine::Server;
use galatea_infer::{AccessPass, InferenceRequest, LogLevel, ResponseSender, Status};
use galatea_telemetry::{Logger, SourcePosition};

/// The interpreter for models that don't specify an environment.
const INTERPRETER: &str = "interpreter";
/// The setting that makes Triton's library serve Python models if the library is in the backend
/// directory.
const USE_LIBRARY: &str = "use-library";
/// The time that a worker may take to send its first message, in seconds.
const START_TIMEOUT: &str = "stub-timeout-seconds";
const START_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// The time that an execution may take, in seconds; unlimited if unset.
const EXECUTE_TIMEOUT: &str = "execute-timeout-seconds";
/// The comma-separated names of additional variables that sandboxed workers get.
const SANDBOX_VARIABLES: &str = "sandbox-variables";
/// Triton's settings that have no effect, because shared memory needs no size or name here. Each is
/// checked as in Triton, with the same minimum and error.
const WITHOUT_EFFECT: [(&str, i64, &str); 4] = [
    ("shm-default-byte-size", 1 << 20, " can't be smaller than 4 MiBs"),
    ("shm-growth-byte-size", 1, " can't be smaller than or equal to zero."),
    ("shm_message_queue_size", i64::MIN, ""),
    ("thread-pool-size", 1, " can't be less than 1."),
];
const REGION_PREFIX: &str = "shm-region-prefix-name";

/// Returns true if the backend reads a setting.
pub(crate) fn is_read(key: &str) -> bool {
    [EXECUTE_TIMEOUT, INTERPRETER, SANDBOX_VARIABLES, START_TIMEOUT, USE_LIBRARY].contains(&key)
        || Confinement::is_setting(key)
}

/// Returns true if Triton's library should serve Python models, provided that it exists.
pub(crate) fn uses_library(settings: &BTreeMap<String, String>) -> bool {
    settings.get(USE_LIBRARY).is_some_and(|text| text == "true")
}

/// The command-line settings that affect the execution of Python models.
#[derive(Debug)]
pub(crate) struct PythonSettings {
    pub(crate) interpreter: PathBuf,
    pub(crate) start_timeout: Duration,
    pub(crate) execute_timeout: Option<Duration>,
    pub(crate) confinement: Confinement,
    pub(crate) sandbox_variables: Vec<String>,
}

impl PythonSettings {
    /// Reads the settings of a backend from its `own` flags. The interpreter, the sandbox and the
    /// limits default to those of the `python` backend.
    ///
    /// # Errors
    ///
    /// Returns `InvalidArgument` with Triton's message for an invalid value. For an invalid number,
    /// that message doesn't even name the setting, so a line is also passed to `log`.
    pub(crate) fn new(
        own: &BTreeMap<String, String>,
        python: &BTreeMap<String, String>,
        log: &dyn Fn(&str),
    ) -> Result<Self, Status> {
        let number = |name: &str, text: &str| {
            number(text).inspect_err(|_| log(&format!("{name} must be a number, not '{text}'")))
        };
        for (name, least, error) in WITHOUT_EFFECT {
            if own.get(name).map(|text| number(name, text)).transpose()? < Some(least)
                && own.contains_key(name)
            {
                return Err(Status::invalid_argument(format!("{name}{error}")));
            }
        }
        if own.get(REGION_PREFIX).is_some_and(String::is_empty) {
            let text = format!("{REGION_PREFIX} must at least contain one character.");
            return Err(Status::invalid_argument(text));
        }
        let seconds = |name| {
            let text = own.get(name);
            text.map(|text| positive(name, number(name, text)?)).transpose()
        };
        let interpreter = own.get(INTERPRETER).or_else(|| python.get(INTERPRETER));
        Ok(Self {
            interpreter: PathBuf::from(interpreter.map_or("python3", String::as_str)),
            start_timeout: seconds(START_TIMEOUT)?.unwrap_or(START_TIMEOUT_DEFAULT),
            execute_timeout: seconds(EXECUTE_TIMEOUT)?,
            confinement: confinement(own, python)?,
            sandbox_variables: names(own.get(SANDBOX_VARIABLES).or(python.get(SANDBOX_VARIABLES)))?,
        })
    }
}

/// The limits for a backend's workers. Each setting defaults to that of the `python` backend.
pub(crate) fn confinement(
    own: &BTreeMap<String, String>,
    python: &BTreeMap<String, String>,
) -> Result<Confinement, Status> {
    Confinement::from_settings(|name| {
        own.get(name).or_else(|| python.get(name)).map(String::as_str)
    })
}

/// Splits a list of variable names.
fn names(list: Option<&String>) -> Result<Vec<String>, Status> {
    let names = list.into_iter().flat_map(|list| list.split(','));
    let checked = names.map(|name| match name.trim() {
        name if name.is_empty() || name.contains(['=', '\0']) => {
            Err(Status::invalid_argument(format!(
                "{SANDBOX_VARIABLES} must be names of variables with commas between them, not '{name}'"
            )))
        }
        name => Ok(name.to_owned()),
    });
    checked.collect()
}

/// Converts a positive number of seconds.
fn positive(name: &str, number: i64) -> Result<Duration, Status> {
    let seconds = u64::try_from(number).ok().filter(|seconds| *seconds > 0);
    seconds.map(Duration::from_secs).ok_or_else(|| {
        let text = format!("{name} can't be smaller than or equal to zero.");
        Status::invalid_argument(text)
    })
}

/// Parses the number in a setting. Triton's error names only the function that parsed it.
fn number(text: &str) -> Result<i64, Status> {
    text.trim().parse().map_err(|_| Status::invalid_argument("stol"))
}

/// Access to the server, once it exists.
pub(crate) struct PythonAccess {
    server: OnceLock<Weak<Server>>,
    logger: Logger,
}

impl PythonAccess {
    pub(crate) fn new(logger: Logger) -> Self {
        Self { server: OnceLock::new(), logger }
    }

    /// Makes the server available.
    pub(crate) fn set_server(&self, server: &Arc<Server>) {
        // The value is set only once, when the server is created.
        let _ = self.server.set(Arc::downgrade(server));
    }

    /// Logs an error about a setting.
    pub(crate) fn log_error(&self, line: &str) {
        self.logger.error(line);
    }

    fn server(&self) -> Result<Arc<Server>, Status> {
        let server = self.server.get().and_then(Weak::upgrade);
        server.ok_or_else(|| Status::unavailable("the server is not ready for requests"))
    }
}

impl ServerAccess for PythonAccess {
    fn infer(&self, request: InferenceRequest, sender: ResponseSender) {
        match self.server() {
            Ok(server) => server.infer_nested(Box::new(request), sender),
            Err(status) => sender.fail(status),
        }
    }

    fn is_decoupled(&self, model: &str, version: Option<i64>) -> Result<bool, Status> {
        Ok(self.server()?.find_nested(model, version)?.is_decoupled())
    }

    fn load_model(&self, model: &str, parameters: LoadParameters) -> Result<(), Status> {
        self.server()?.load_nested(model, parameters)
    }

    fn unload_model(&self, model: &str, unload_dependents: bool) -> Result<(), Status> {
        self.server()?.unload_model(AccessPass::in_process(), model, unload_dependents)
    }

    fn is_model_ready(&self, model: &str, version: Option<i64>) -> Result<bool, Status> {
        self.server()?.model_ready(AccessPass::in_process(), model, version)
    }

    fn metric_family(
        &self,
        name: &str,
        description: &str,
        kind: CustomMetricKind,
    ) -> Result<Box<dyn CustomMetricFamily>, Status> {
        let kind = match kind {
            CustomMetricKind::Counter => MetricKind::Counter,
            CustomMetricKind::Gauge => MetricKind::Gauge,
            CustomMetricKind::Histogram => MetricKind::Histogram,
        };
        Ok(Box::new(PythonFamily(metric::MetricFamily::new(kind, name, description)?)))
    }

    fn log(&self, level: LogLevel, file: &str, line: u32, message: &str) {
        self.logger.log(level, SourcePosition { file, line }, format_args!("{message}"));
    }
}

struct PythonFamily(metric::MetricFamily);

impl CustomMetricFamily for PythonFamily {
    fn metric(
        &self,
        labels: &BTreeMap<String, String>,
        buckets: Option<&[f64]>,
    ) -> Result<Box<dyn CustomMetric>, Status> {
        let labels = labels.iter().map(|(name, value)| (name.clone(), value.clone()));
        Ok(Box::new(PythonMetric(self.0.metric(labels, buckets)?)))
    }
}

struct PythonMetric(metric::Metric);

impl CustomMetric for PythonMetric {
    fn increment(&self, by: f64) -> Result<(), Status> {
        self.0.increment(by)
    }

    fn set(&self, value: f64) -> Result<(), Status> {
        self.0.set(value)
    }

    fn observe(&self, value: f64) -> Result<(), Status> {
        self.0.observe(value)
    }

    fn value(&self) -> Result<f64, Status> {
        self.0.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (String::from(*key), String::from(*value))).collect()
    }

    #[test]
    fn settings_are_checked_as_in_triton() {
        let error = |key: &str, value: &str| {
            let own = settings(&[(key, value)]);
            PythonSettings::new(&own, &own, &|_| ()).err().map(|error| error.to_string())
        };
        for (key, value, expected) in [
            ("shm-default-byte-size", "1000", "can't be smaller than 4 MiBs"),
            ("shm-growth-byte-size", "0", "can't be smaller than or equal to zero."),
            ("thread-pool-size", "0", "can't be less than 1."),
            ("thread-pool-size", "x", "stol"),
            ("stub-timeout-seconds", "x", "stol"),
            ("stub-timeout-seconds", "0", "can't be smaller than or equal to zero."),
            ("shm-region-prefix-name", "", "must at least contain one character."),
            ("sandbox-variables", "A,,B", "must be names of variables with commas"),
            ("sandbox-variables", "A=1", "not 'A=1'"),
        ] {
            let found = error(key, value);
            assert!(found.as_deref().is_some_and(|text| text.contains(expected)), "{found:?}");
        }
        let lines = std::cell::RefCell::new(Vec::new());
        let wrong = settings(&[("thread-pool-size", "x")]);
        let log = |line: &str| lines.borrow_mut().push(line.to_owned());
        let refused = PythonSettings::new(&wrong, &wrong, &log).unwrap_err();
        assert_eq!(refused.message(), "stol");
        assert_eq!(*lines.borrow(), ["thread-pool-size must be a number, not 'x'"]);
        let names = settings(&[("sandbox-variables", "A, B")]);
        let read = PythonSettings::new(&BTreeMap::new(), &names, &|_| ()).unwrap();
        assert_eq!(read.sandbox_variables, ["A", "B"]);
        for key in ["shm-default-byte-size", "shm-growth-byte-size", "thread-pool-size"] {
            assert_eq!(error(key, "8388608"), None);
        }
        let python = settings(&[("stub-timeout-seconds", "7"), ("interpreter", "/a")]);
        let own = PythonSettings::new(&python, &python, &|_| ()).unwrap();
        assert_eq!((own.start_timeout.as_secs(), own.interpreter), (7, PathBuf::from("/a")));
        let other = PythonSettings::new(&BTreeMap::new(), &python, &|_| ()).unwrap();
        assert_eq!((other.start_timeout.as_secs(), other.interpreter), (30, PathBuf::from("/a")));
    }
}
