//! The tracer, which begins traces, keeps the settings, and owns the writer thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use galatea_control::{
    RequestTraceParts, TraceControl, TraceHeaders, TraceMode, TraceSettings, TraceSettingsChange,
};
use galatea_infer::{AccessPass, Status, Trace, api};
use galatea_stdx::Lock;

use crate::files::TraceFiles;
use crate::otel::context::SpanContext;
use crate::otel::exporter::Exporter;
use crate::otel::spans::ClientSpan;
use crate::otel::{CollectorClient, SpanBatchLimits};
use crate::queue::Message;
use crate::record::{Record, Recording};
use crate::settings::{Destination, SettingsTable, SettingsUnusedHandler, TraceSettingValues};
use crate::writer;

/// The maximum time that a shutdown waits for the writer thread.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);

/// The destination of traces.
#[derive(Clone, Debug)]
pub enum TraceOutput {
    /// Files with this name; an empty name means no files.
    Files(String),
    /// A collector.
    Collector(Box<CollectorOptions>),
}

/// A collector and the settings for sending spans.
#[derive(Clone, Debug)]
pub struct CollectorOptions {
    /// The collector.
    pub collector: CollectorClient,
    /// The server attributes that all spans share.
    pub resource: Vec<(String, String)>,
    /// The limits on span collection.
    pub limits: SpanBatchLimits,
}

/// Checks that a model is ready; may block.
pub type CheckModel = Box<dyn Fn(&str) -> Result<(), Status> + Send + Sync>;

/// Writes a line to the server's log.
pub type ErrorLogger = Arc<dyn Fn(&str) + Send + Sync>;

/// The components of a tracer.
pub struct TracerOptions {
    /// The initial settings.
    pub start: TraceSettingValues,
    /// The destination of traces.
    pub output: TraceOutput,
    /// Additional settings to report to clients.
    pub further: Vec<(String, String)>,
    /// Converts an instant to nanoseconds on the system's monotonic clock.
    pub clock: fn(Instant) -> u64,
    /// Checks that a model may have settings.
    pub check_model: CheckModel,
    /// Logs errors.
    pub log_error: ErrorLogger,
}

/// Traces requests according to the settings.
pub struct Tracer {
    is_on: AtomicBool,
    settings: ArcSwap<SettingsTable>,
    /// Locked while the settings change.
    changing: Lock<TraceWorker>,
    recording: Arc<Recording>,
    options: TracerOptions,
}

/// The writer thread. It starts with the first settings that trace anything.
#[derive(Debug)]
enum TraceWorker {
    NotStarted,
    Running(mpsc::Receiver<()>),
    Stopped,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Tracer {
    /// Creates a tracer. It starts tracing immediately if the initial settings require it.
    #[must_use]
    pub fn new(options: TracerOptions) -> Self {
        let recording = Arc::new(Recording::new(options.clock));
        let destination = match &options.output {
            TraceOutput::Files(name) if name.is_empty() => Destination::NoFiles,
            TraceOutput::Files(_) => Destination::Files,
            TraceOutput::Collector(_) => Destination::Collector,
        };
        let retired = recording.clone();
        let on_end = SettingsUnusedHandler(Arc::new(move |number| {
            retired.queue.push(Message::Retired(number))
        }));
        let table = SettingsTable::new(options.start, destination, Some(on_end));
        let tracer = Self {
            is_on: AtomicBool::new(false),
            settings: ArcSwap::from_pointee(table),
            changing: Lock::new(TraceWorker::NotStarted),
            recording,
            options,
        };
        tracer.apply(&mut tracer.changing.lock("begin to trace"));
        tracer
    }

    /// Puts the settings into effect.
    fn apply(&self, worker: &mut TraceWorker) {
        let may_trace = self.settings.load().may_trace();
        if may_trace && matches!(worker, TraceWorker::NotStarted) {
            *worker = self.start();
        }
        let is_on = may_trace && matches!(worker, TraceWorker::Running(_));
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    fn start(&self) -> TraceWorker {
        let (recording, log_error) = (self.recording.clone(), self.options.log_error.clone());
        let destination = match &self.options.output {
            TraceOutput::Files(name) => {
                writer::Destination::Files(TraceFiles::new(PathBuf::from(name)))
            }
            TraceOutput::Collector(options) => {
                let CollectorOptions { collector, resource, limits } = (**options).clone();
                let numbers = self.recording.numbers.clone();
                let exporter = Exporter::new(collector, resource, limits, numbers);
                writer::Destination::Collector(Box::new(exporter))
            }
        };
        let (ended, end) = mpsc::channel();
        let started = thread::Builder::new().name(String::from("traces")).spawn(move || {
            writer::run(&recording.queue, destination, &*log_error);
            drop(ended);
        });
        match started {
            Ok(_) => TraceWorker::Running(end),
            Err(error) => {
                (self.options.log_error)(&format!("failed to start the thread of traces: {error}"));
                TraceWorker::NotStarted
            }
        }
    }

    const fn is_for_collector(&self) -> bool {
        matches!(self.options.output, TraceOutput::Collector(_))
    }

    /// The span of a request that begins now.
    fn client_span(&self, remote: Option<SpanContext>) -> ClientSpan {
        let numbers = &self.recording.numbers;
        let start_ns = (self.recording.clock)(Instant::now());
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let since_epoch = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
        let trace = match &remote {
            Some(remote) => remote.trace,
            None => numbers.trace(),
        };
        let epoch_ns = since_epoch.saturating_sub(start_ns);
        ClientSpan { remote, trace, span: numbers.span(), start_ns, end_ns: start_ns, epoch_ns }
    }

    /// Stops tracing. Complete traces are written, unless that takes too long. Traces of requests
    /// in progress are lost.
    pub fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        let before =
            std::mem::replace(&mut *self.changing.lock("stop tracing"), TraceWorker::Stopped);
        let TraceWorker::Running(ended) = before else { return };
        self.recording.queue.push(Message::Stop);
        if ended.recv_timeout(STOP_TIME_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
            (self.options.log_error)("the last traces could not be written in time");
        }
    }
}

impl TraceControl for Tracer {
    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    fn reads_headers(&self) -> bool {
        self.is_on() && self.is_for_collector()
    }

    fn begin(
        &self,
        _: AccessPass<api::Inference>,
        model: &str,
        headers: TraceHeaders<'_>,
    ) -> Option<RequestTraceParts> {
        let for_collector = self.is_for_collector();
        let (setting, remote) = {
            let table = self.settings.load();
            let setting = table.settings_of(Some(model));
            let remote = if for_collector && !setting.levels.is_off() {
                SpanContext::of(headers)
            } else {
                None
            };
            if !setting.is_next_traced(remote.is_some()) {
                return None;
            }
            (setting.clone(), remote)
        };
        let client = for_collector.then(|| Box::new(self.client_span(remote)));
        let record = Record::begin(&self.recording, setting, client);
        Some(RequestTraceParts { request: Trace::new(record.root_trace()), door: record })
    }

    fn check_model(&self, _: AccessPass<api::Trace>, model: &str) -> Result<(), Status> {
        (self.options.check_model)(model)
    }

    fn settings(&self, _: AccessPass<api::Trace>, model: Option<&str>) -> TraceSettings {
        let TraceSettingValues { levels, rate, count, log_frequency } =
            self.settings.load().settings_of(model).fields();
        let mode = match &self.options.output {
            TraceOutput::Files(file) => TraceMode::Triton { log_frequency, file: file.clone() },
            TraceOutput::Collector(_) => TraceMode::OpenTelemetry,
        };
        let further = self.options.further.clone();
        TraceSettings { levels, rate, count, mode, further }
    }

    fn change(
        &self,
        _: AccessPass<api::Trace>,
        model: Option<&str>,
        change: &TraceSettingsChange,
    ) -> Result<(), Status> {
        let mut worker = self.changing.lock("change the settings");
        let before = self.settings.load_full();
        let mut table = (*before).clone();
        let result = table.change(model, change);
        self.settings.store(Arc::new(table));
        self.apply(&mut worker);
        drop(worker);
        // This releases the previous settings, unless a request is still being traced with them.
        drop(before);
        result
    }
}
