//! Metrics as Prometheus reads them, rendered for each request.

mod cache;
mod custom;
mod machine;
mod models;
mod text;

use std::time::{Duration, Instant};

use galatea_infer::{CacheStatistics, ModelStatistics};
use galatea_stdx::Lock;
use thiserror::Error;

pub use custom::{CustomFamily, CustomHistogram, CustomValue};
pub use text::MetricKind;

use machine::{MachineGauges, Procfs};
use text::Exposition;

/// What the exporter shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsOptions {
    /// Whether durations are shown as counters. As in Triton, without them
    /// the counters of requests and executions stay at 0 too.
    pub counter_latencies: bool,
    /// Whether the processor's and the memory's use is shown.
    pub cpu: bool,
    /// How long a reading of the processor and the memory stays in use.
    pub interval: Duration,
    /// The size configured for the pool of pinned memory. There is no pool without a
    /// GPU, and so the metrics say 0.
    pub pinned_memory_pool_bytes: u64,
}

impl Default for MetricsOptions {
    fn default() -> Self {
        Self {
            counter_latencies: true,
            cpu: true,
            interval: Duration::from_millis(2_000),
            pinned_memory_pool_bytes: 1 << 28,
        }
    }
}

/// A setting that is taken although it changes nothing, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingNote(pub String);

/// A setting that asks for something that isn't there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the metrics setting '{setting}={value}' is not supported yet: only counter_latencies is")]
pub struct UnsupportedSetting {
    setting: String,
    value: String,
}

impl MetricsOptions {
    /// Applies a setting as `--metrics-config SETTING=VALUE` gives it.
    ///
    /// Triton takes unknown settings without a word; they are taken here with
    /// a note for the log.
    ///
    /// # Errors
    ///
    /// If it asks for histograms or summaries of latencies.
    pub fn set(
        &mut self,
        setting: &str,
        value: &str,
    ) -> Result<Option<SettingNote>, UnsupportedSetting> {
        let note = |text: &str| {
            Ok(Some(SettingNote(format!("the metrics setting '{setting}={value}' {text}"))))
        };
        match (setting, value) {
            ("counter_latencies", "false") => self.counter_latencies = false,
            ("counter_latencies", "true") => self.counter_latencies = true,
            ("counter_latencies", _) => return note("is neither true nor false; it stays true"),
            ("histogram_latencies" | "summary_latencies", "true") => {
                return Err(UnsupportedSetting { setting: setting.into(), value: value.into() });
            }
            ("histogram_latencies" | "summary_latencies", _) => {}
            ("summary_quantiles", _) => return note("changes nothing without summary_latencies"),
            _ => return note("is unknown and changes nothing"),
        }
        Ok(None)
    }
}

/// Turns statistics into the text that a metrics endpoint serves.
#[derive(Debug)]
pub struct MetricsExporter {
    options: MetricsOptions,
    machine: Lock<MachineGauges>,
}

impl MetricsExporter {
    /// An exporter; it takes its first reading of the machine now.
    #[must_use]
    pub fn new(options: MetricsOptions) -> Self {
        let machine = Lock::new(MachineGauges::new(&Procfs, Instant::now()));
        Self { options, machine }
    }

    /// The whole text, with the `custom` families last. A family without a series is left
    /// out, and so are the families of the cache if it has no statistics.
    #[must_use]
    pub fn render(
        &self,
        statistics: &[ModelStatistics],
        cache: Option<&CacheStatistics>,
        custom: &[CustomFamily],
    ) -> String {
        let mut text = Exposition::default();
        models::counters(&mut text, statistics, self.options.counter_latencies);
        models::gauges(&mut text, statistics);
        pinned_memory(&mut text);
        if self.options.cpu {
            let mut machine = self.machine.lock("render the machine's gauges");
            machine.refresh(&Procfs, Instant::now(), self.options.interval);
            machine.render(&mut text);
        }
        if let Some(cache) = cache {
            cache::gauges(&mut text, cache);
        }
        custom.iter().for_each(|family| custom::render(&mut text, family));
        text.into_text()
    }

    /// The text of these families only.
    #[must_use]
    pub fn render_custom(families: &[CustomFamily]) -> String {
        let mut text = Exposition::default();
        families.iter().for_each(|family| custom::render(&mut text, family));
        text.into_text()
    }
}

fn pinned_memory(text: &mut Exposition) {
    text.single(
        "nv_pinned_memory_pool_total_bytes",
        "Bytes that the pool of pinned memory may hold",
        0,
    );
    text.single("nv_pinned_memory_pool_used_bytes", "Bytes of the pool of pinned memory in use", 0);
}

const NANOSECONDS_PER_MICROSECOND: u64 = 1_000;

const fn microseconds(ns: u64) -> u64 {
    ns / NANOSECONDS_PER_MICROSECOND
}

#[cfg(test)]
mod tests;
