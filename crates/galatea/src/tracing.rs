//! The tracer that the settings ask for.

use std::sync::Arc;

use galatea_c_objects::clock::Clock;
use galatea_engine::Server;
use galatea_infer::{Pass, ServerControl, Status};
use galatea_telemetry::Logger;
use galatea_trace::{Fields, TraceOutput, Tracer, TracerOptions};

/// Where traces go.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum TraceMode {
    /// Into files.
    #[default]
    Triton,
    /// To a collector.
    OpenTelemetry,
}

/// What flags say about traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TraceFlags {
    /// The settings of the start.
    pub(crate) start: Fields,
    pub(crate) mode: TraceMode,
    /// The file, or the prefix of files.
    pub(crate) file: String,
    /// The settings of the mode that clients are told of.
    pub(crate) further: Vec<(String, String)>,
    /// Triton's warnings.
    pub(crate) warnings: Vec<&'static str>,
    /// `--trace-level OFF` turns traces off whatever the other levels are.
    pub(crate) is_turned_off: bool,
    pub(crate) given: GivenFlags,
    pub(crate) configs: Vec<TraceConfig>,
}

/// Which of the deprecated flags were given.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GivenFlags {
    pub(crate) file: bool,
    pub(crate) level: bool,
    pub(crate) rate: bool,
    pub(crate) count: bool,
    pub(crate) log_frequency: bool,
}

/// A value of `--trace-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceConfig {
    /// `None` for all modes.
    pub(crate) mode: Option<TraceMode>,
    pub(crate) setting: String,
    pub(crate) value: String,
}

/// The tracer of a server. Nothing is traced before it is made.
pub(crate) fn make(flags: &TraceFlags, server: &Arc<Server>, logger: &Logger) -> Arc<Tracer> {
    let (asked, log) = (server.clone(), logger.clone());
    Arc::new(Tracer::new(TracerOptions {
        start: flags.start,
        output: TraceOutput::Files(flags.file.clone()),
        further: flags.further.clone(),
        // Backends report times of their own, so there is one clock for all.
        clock: |at| Clock::shared().ns(at),
        check_model: Box::new(move |model| {
            if asked.model_ready(Pass::in_process(), model, None)? {
                return Ok(());
            }
            Err(Status::invalid_argument(format!("Request for unknown model : {model}")))
        }),
        log_error: Arc::new(move |line| log.error(line)),
    }))
}
