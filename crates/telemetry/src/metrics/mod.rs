//! Metrics in the Prometheus format, rendered for each request.

mod cache;
mod custom;
mod distributions;
mod gpus;
mod machine;
mod models;
mod options;
mod own;
mod series;
mod text;

use std::time::{Duration, Instant};

use galatea_control::ModelStatistics;
use galatea_devices::Devices;
use galatea_infer::CacheStatistics;
use galatea_stdx::Lock;

pub use custom::{CustomFamilySnapshot, SeriesValue};
pub use options::{MetricsOptions, SettingWarning};
pub use text::MetricKind;

use gpus::GpuGauges;
use machine::{MachineGauges, Procfs};
use series::Series;
use text::{Exposition, Number};

use crate::Logger;

/// Renders statistics as the text of a metrics endpoint.
#[derive(Debug)]
pub struct MetricsExporter {
    options: MetricsOptions,
    machine: Lock<MachineGauges>,
    devices: Devices,
    /// The GPU gauges; `None` if GPUs are not shown.
    gpus: Option<Lock<GpuGauges>>,
    /// The log for reporting gauges that can't be measured.
    logger: Option<Logger>,
}

impl MetricsExporter {
    /// Makes an exporter, which takes its first reading of the machine immediately.
    #[must_use]
    pub fn new(options: MetricsOptions) -> Self {
        let machine = Lock::new(MachineGauges::new(&Procfs, Instant::now()));
        Self { options, machine, devices: Devices::default(), gpus: None, logger: None }
    }

    /// Adds GPUs and takes their first reading immediately.
    #[must_use]
    pub fn with_devices(mut self, devices: Devices, logger: &Logger) -> Self {
        if self.options.gpu && !devices.is_empty() {
            let gauges = GpuGauges::new(devices.clone(), Instant::now(), Some(logger));
            self.gpus = Some(Lock::new(gauges));
        }
        self.logger = Some(logger.clone());
        self.devices = devices;
        self
    }

    /// The number and name of each measured GPU.
    #[must_use]
    pub fn measured_gpus(&self) -> Vec<(u32, String)> {
        let gpus = self.gpus.as_ref().map(|gpus| gpus.lock("name the GPUs"));
        let names = gpus.iter().flat_map(|gpus| gpus.names());
        names.map(|(number, name)| (number, name.to_owned())).collect()
    }

    /// The time between two calls of [`MetricsExporter::poll`]: as in Triton, half of the interval.
    /// An interval of 0, which makes Triton read without pausing, counts as a few milliseconds.
    #[must_use]
    pub fn poll_pause(&self) -> Duration {
        (self.options.interval / 2).max(POLL_PAUSE_MIN)
    }

    /// Reads the machine's gauges, even if no client reads the metrics.
    pub fn poll(&self) {
        if self.options.cpu {
            self.machine.lock("poll the machine").read(&Procfs, Instant::now());
        }
        if let Some(gpus) = &self.gpus {
            gpus.lock("poll the GPUs").read(Instant::now(), self.logger.as_ref());
        }
    }

    /// Renders the whole text, with the `custom` families last. Families without series are left
    /// out, as are the cache's families if it has no statistics.
    #[must_use]
    pub fn render(
        &self,
        statistics: &[ModelStatistics],
        cache: Option<&CacheStatistics>,
        custom: &[CustomFamilySnapshot],
    ) -> String {
        let mut text = Exposition::default();
        let series = self.series(statistics);
        models::counters(&mut text, &series, self.options.counter_latencies);
        models::gauges(&mut text, &series);
        pinned_memory(&mut text, self.devices.pinned_usage());
        if let Some(gpus) = &self.gpus {
            let mut gpus = gpus.lock("render the gauges of GPUs");
            gpus.refresh(Instant::now(), self.options.interval, self.logger.as_ref());
            gpus.render(&mut text);
        }
        if self.options.cpu {
            let mut machine = self.machine.lock("render the machine's gauges");
            machine.refresh(&Procfs, Instant::now(), self.options.interval);
            machine.render(&mut text);
        }
        if let Some(cache) = cache {
            cache::gauges(&mut text, cache);
        }
        distributions::render(&mut text, &series);
        own::render(&mut text, statistics, self.options.galatea_histograms);
        custom.iter().for_each(|family| custom::render(&mut text, family));
        text.into_text()
    }

    /// The series of all models. As in Triton, models have a series for each GPU if GPU metrics are
    /// shown.
    fn series<'a>(&'a self, statistics: &'a [ModelStatistics]) -> Vec<Series<'a>> {
        series::all(statistics, |gpu| {
            let mut devices = self.devices.iter().filter(|_| self.gpus.is_some());
            let device = devices.find(|device| device.number() == gpu)?;
            Some(device.info().uuid.as_str())
        })
    }

    /// Renders only these families.
    #[must_use]
    pub fn render_custom(families: &[CustomFamilySnapshot]) -> String {
        let mut text = Exposition::default();
        families.iter().for_each(|family| custom::render(&mut text, family));
        text.into_text()
    }
}

/// Writes the metrics for pinned memory. Without a GPU, no pool exists.
fn pinned_memory(text: &mut Exposition, (used, total): (usize, usize)) {
    text.single(
        "nv_pinned_memory_pool_total_bytes",
        "Pinned memory pool total memory size, in bytes",
        total,
    );
    text.single(
        "nv_pinned_memory_pool_used_bytes",
        "Pinned memory pool used memory size, in bytes",
        used,
    );
}

/// The minimum pause between two readings of the machine.
const POLL_PAUSE_MIN: Duration = Duration::from_millis(5);

const NANOSECONDS_PER_MICROSECOND: u64 = 1_000;

const fn microseconds(ns: u64) -> u64 {
    ns / NANOSECONDS_PER_MICROSECOND
}

#[cfg(test)]
mod tests;
