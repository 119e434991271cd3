//! The metrics endpoint.

use std::time::Duration;

use galatea_telemetry::SettingNote;

use super::value::{self, Refusal};
use super::{Flag, Group};

pub(super) const GROUP: Group = Group {
    title: "Metrics",
    flags: &[
        ALLOW_METRICS,
        ALLOW_GPU_METRICS,
        ALLOW_CPU_METRICS,
        METRICS_ADDRESS,
        METRICS_PORT,
        METRICS_INTERVAL_MS,
        METRICS_CONFIG,
    ],
};

const ALLOW_METRICS: Flag = Flag {
    name: "allow-metrics",
    argument: Some("boolean"),
    default: "true",
    help: "Whether to listen for Prometheus.",
    apply: |settings, value| {
        settings.metrics.allow = value::boolean(value)?;
        Ok(())
    },
};

const ALLOW_GPU_METRICS: Flag = Flag {
    name: "allow-gpu-metrics",
    argument: Some("boolean"),
    default: "true",
    help: "Whether to show the use of GPUs. No effect without GPUs.",
    apply: |settings, value| {
        settings.metrics_options.gpu = value::boolean(value)?;
        if settings.metrics_options.gpu {
            settings.no_effect_without_gpus("allow-gpu-metrics");
        }
        Ok(())
    },
};

const ALLOW_CPU_METRICS: Flag = Flag {
    name: "allow-cpu-metrics",
    argument: Some("boolean"),
    default: "true",
    help: "Whether to show the use of the machine's processors and memory.",
    apply: |settings, value| {
        settings.metrics_options.cpu = value::boolean(value)?;
        Ok(())
    },
};

const METRICS_ADDRESS: Flag = Flag {
    name: "metrics-address",
    argument: Some("string"),
    default: "",
    help: "The address to listen on for Prometheus. Default: that of --http-address.",
    apply: |settings, value| {
        settings.metrics.address = value.to_owned();
        Ok(())
    },
};

const METRICS_PORT: Flag = Flag {
    name: "metrics-port",
    argument: Some("integer"),
    default: "8002",
    help: "The port to listen on for Prometheus; 0 lets the system choose one.",
    apply: |settings, value| {
        settings.metrics.port = value::port(settings, "metrics-port", value)?;
        Ok(())
    },
};

const METRICS_INTERVAL_MS: Flag = Flag {
    name: "metrics-interval-ms",
    argument: Some("integer"),
    default: "2000",
    help: "The interval of gauges in milliseconds: as in Triton, processors and memory of the \
           machine are read twice in this time. Counts of requests are always those of the \
           moment.",
    apply: |settings, value| {
        let milliseconds = value::not_negative(value)?;
        settings.metrics_options.interval = Duration::from_millis(u64::from(milliseconds));
        Ok(())
    },
};

const METRICS_CONFIG: Flag = Flag {
    name: "metrics-config",
    argument: Some("string=string"),
    default: "",
    help: "A setting as SETTING=VALUE; may be given several times. counter_latencies=false \
           leaves out durations and, as in Triton, stops the counters of requests too; \
           histogram_latencies=true adds a histogram of the time to the first response; \
           summary_latencies=true adds quantiles of durations, those of \
           summary_quantiles=QUANTILE:ERROR,... (default \
           0.5:0.05,0.9:0.01,0.95:0.001,0.99:0.001,0.999:0.001); galatea_histograms=true adds \
           histograms of durations and batch sizes that can be added up over servers.",
    apply: |settings, value| {
        let (setting, setting_value) = value::pair(value, '=', "<setting>=<value>")?;
        if setting.contains(',') {
            return Err(Refusal(format!("the format is <setting>=<value>. Got {value}")));
        }
        for SettingNote(text) in settings.metrics_options.set(setting, setting_value) {
            settings.note(text);
        }
        Ok(())
    },
};
