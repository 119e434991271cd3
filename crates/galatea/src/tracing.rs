//! The tracer that the settings specify.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use galatea_c_objects::clock::ClockConverter;
use galatea_control::ServerControl;
use galatea_engine::Server;
use galatea_infer::{AccessPass, Status};
use galatea_outbound::{CertificateFileError, CertificateFiles};
use galatea_telemetry::Logger;
use galatea_trace::{
    CollectorAddress, CollectorClient, CollectorOptions, CollectorSettings, SpanBatchLimits,
    TraceOutput, TraceSettingValues, Tracer, TracerOptions, export,
};

use crate::environment::CollectorVariables;

/// The destination of traces.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum TraceMode {
    /// Traces are written to files.
    #[default]
    Triton,
    /// Traces are sent to a collector.
    OpenTelemetry,
}

/// The trace settings from flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TraceFlags {
    /// The settings at startup.
    pub(crate) start: TraceSettingValues,
    pub(crate) mode: TraceMode,
    /// The file, or the file prefix.
    pub(crate) file: String,
    /// The mode's settings that are reported to clients.
    pub(crate) further: Vec<(String, String)>,
    /// Triton's warnings.
    pub(crate) warnings: Vec<&'static str>,
    /// True if `--trace-level OFF` was passed, which turns traces off regardless of other levels.
    pub(crate) is_turned_off: bool,
    pub(crate) given: GivenFlags,
    pub(crate) configs: Vec<TraceConfig>,
}

/// The deprecated flags; each field is true if its flag was passed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GivenFlags {
    pub(crate) file: bool,
    pub(crate) level: bool,
    pub(crate) rate: bool,
    pub(crate) count: bool,
    pub(crate) log_frequency: bool,
}

/// One value of `--trace-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceConfig {
    /// The mode that the setting applies to; `None` means all modes.
    pub(crate) mode: Option<TraceMode>,
    pub(crate) setting: String,
    pub(crate) value: String,
}

/// The default address of the collector.
const COLLECTOR: &str = "http://localhost:4318/v1/traces";

/// The service name in spans, as in Triton.
const SERVICE: (&str, &str) = ("service.name", "triton-inference-server");

/// Creates the tracer of a server. Nothing is traced before this call.
///
/// # Errors
///
/// Returns an error if the environment names a collector or certificates that can't be used.
pub(crate) fn make(
    flags: &TraceFlags,
    variables: &CollectorVariables,
    server: &Arc<Server>,
    logger: &Logger,
) -> Result<Arc<Tracer>, String> {
    let (asked, log) = (server.clone(), logger.clone());
    let output = match flags.mode {
        TraceMode::Triton => TraceOutput::Files(flags.file.clone()),
        TraceMode::OpenTelemetry => TraceOutput::Collector(Box::new(collector(flags, variables)?)),
    };
    Ok(Arc::new(Tracer::new(TracerOptions {
        start: flags.start,
        output,
        further: flags.further.clone(),
        // Backends report their own times, so everything shares one clock.
        clock: |at| ClockConverter::shared().ns(at),
        check_model: Box::new(move |model| {
            if asked.model_ready(AccessPass::in_process(), model, None)? {
                return Ok(());
            }
            Err(Status::invalid_argument(format!("Request for unknown model : {model}")))
        }),
        log_error: Arc::new(move |line| log.error(line)),
    })))
}

/// The collector: from the flags, from the environment variables, or else the default.
fn collector(
    flags: &TraceFlags,
    variables: &CollectorVariables,
) -> Result<CollectorOptions, String> {
    let given = |name: &str| {
        let mut all = flags.further.iter().rev();
        all.find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    };
    let number = |name: &str| given(name).and_then(|value| value.parse().ok()).unwrap_or(0_u32);
    let count = |name: &str| usize::try_from(number(name)).unwrap_or(usize::MAX);
    let url = given("url").or(variables.url.as_deref()).unwrap_or(COLLECTOR);
    let address = CollectorAddress::parse(url).map_err(|error| format!("{error}. Got {url}"))?;
    let connection = CollectorSettings {
        headers: variables.headers.clone(),
        certificates: CertificateFiles {
            trusted: variables.trusted.clone(),
            client: variables.client_certificate.clone().zip(variables.client_key.clone()),
        },
        time_max: variables.time_max.unwrap_or(CollectorSettings::default().time_max),
    };
    Ok(CollectorOptions {
        collector: CollectorClient::new(address, connection).map_err(unusable)?,
        resource: resource(flags, variables),
        limits: SpanBatchLimits {
            queued_max: count("bsp_max_queue_size"),
            delay: Duration::from_millis(number("bsp_schedule_delay").into()),
            batch_max: count("bsp_max_export_batch_size"),
        },
    })
}

fn unusable(error: CertificateFileError) -> String {
    format!("'{}' can't be used for the collector: {}", error.path().display(), error.reason())
}

/// The attributes that all spans share. Each name occurs once, with its last value.
fn resource(flags: &TraceFlags, variables: &CollectorVariables) -> Vec<(String, String)> {
    let own = [
        ("telemetry.sdk.language", "rust"),
        ("telemetry.sdk.name", "galatea"),
        ("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
    ];
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let given = flags.further.iter().filter(|(name, _)| name == "resource");
    // As in Triton, a value without a name is used as both name and value.
    let given = given.map(|(_, pair)| pair.split_once('=').unwrap_or((pair, pair)));
    let all = own.into_iter().map(owned).chain(variables.resource.iter().cloned());
    let all = all.chain([SERVICE].into_iter().chain(given).map(owned));
    let mut resource: Vec<(String, String)> = Vec::new();
    for (name, value) in all {
        match resource.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => resource.push((name, value)),
        }
    }
    resource
}

/// Converts trace files to the format that viewers read.
pub(crate) fn export(files: &[PathBuf]) -> Result<String, String> {
    let mut events = Vec::new();
    for file in files {
        let failed = |reason: String| format!("{}: {reason}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
        export::append_chrome_events(&text, &mut events).map_err(failed)?;
    }
    Ok(export::chrome_trace_document(events))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn flags_come_before_variables_and_these_before_defaults() {
        let (mut flags, mut variables) = (TraceFlags::default(), CollectorVariables::default());
        let shown = |flags: &TraceFlags, variables: &CollectorVariables| {
            collector(flags, variables).unwrap().collector.address().to_string()
        };
        assert_eq!(shown(&flags, &variables), "http://localhost:4318/v1/traces");
        variables.url = Some(String::from("http://b:1/x"));
        assert_eq!(shown(&flags, &variables), "http://b:1/x");
        flags.further = pairs(&[("url", "http://c:1/x"), ("url", "http://d:1/x")]);
        assert_eq!(shown(&flags, &variables), "http://d:1/x");
    }

    #[test]
    fn the_last_value_of_an_attribute_counts() {
        let given = [("a", "1"), ("service.name", "of variables"), ("b", "1")];
        let variables = CollectorVariables { resource: pairs(&given), ..Default::default() };
        let mut flags = TraceFlags::default();
        let shown = |flags: &TraceFlags| resource(flags, &variables)[3..].to_vec();
        let (name, service) = SERVICE;
        assert_eq!(shown(&flags), pairs(&[("a", "1"), (name, service), ("b", "1")]));
        flags.further = pairs(&[("resource", "b=2=3"), ("resource", "c"), ("url", "x")]);
        flags.further.extend(pairs(&[("resource", "service.name=mine")]));
        let expected = [("a", "1"), (name, "mine"), ("b", "2=3"), ("c", "c")];
        assert_eq!(shown(&flags), pairs(&expected));
    }
}
