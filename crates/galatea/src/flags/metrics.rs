//! Flags for the metrics endpoint.

use std::time::Duration;

use galatea_telemetry::SettingWarning;

use super::flag::{Flag, no_default};
use super::value::{self, InvalidValue};
use super::{Group, Settings};

pub(super) const GROUP: Group = Group {
    title: "Metrics",
    flags: &[&[
        Flag::boolean("allow-metrics", "Whether to listen for Prometheus.", |settings| {
            &mut settings.metrics.allow
        }),
        Flag::decision(
            "allow-gpu-metrics",
            "Whether to show the use of GPUs. No effect without GPUs.",
            |settings| Some(settings.metrics_options.gpu),
            |settings, is_allowed| {
                settings.metrics_options.gpu = is_allowed;
                if is_allowed {
                    settings.no_effect_without_gpus("allow-gpu-metrics");
                }
            },
        ),
        Flag::boolean(
            "allow-cpu-metrics",
            "Whether to show the use of the machine's processors and memory.",
            |settings| &mut settings.metrics_options.cpu,
        ),
        Flag::text(
            "metrics-address",
            "The address to listen on for Prometheus. Default: that of --http-address.",
            |settings| &mut settings.metrics.address,
        ),
        Flag::port(
            "metrics-port",
            "The port to listen on for Prometheus; 0 lets the system choose one.",
            |settings| &mut settings.metrics.port,
        ),
        Flag::other(
            "metrics-interval-ms",
            "integer",
            |settings| settings.metrics_options.interval.as_millis().to_string(),
            "The interval of gauges in milliseconds: as in Triton, processors and memory of the \
             machine are read twice in this time. Counts of requests are always those of the \
             moment.",
            |settings, value| {
                let milliseconds = value::not_negative(value)?;
                settings.metrics_options.interval = Duration::from_millis(u64::from(milliseconds));
                Ok(())
            },
        ),
        Flag::other(
            "metrics-config",
            "string=string",
            no_default,
            "A setting as SETTING=VALUE; may be given several times. counter_latencies=false \
             leaves out durations and, as in Triton, stops the counters of requests too; \
             histogram_latencies=true adds a histogram of the time to the first response; \
             summary_latencies=true adds quantiles of durations, those of \
             summary_quantiles=QUANTILE:ERROR,... (default \
             0.5:0.05,0.9:0.01,0.95:0.001,0.99:0.001,0.999:0.001); galatea_histograms=true adds \
             histograms of durations and batch sizes that can be added up over servers.",
            metrics_config,
        ),
    ]],
};

fn metrics_config(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    let (setting, setting_value) = value::pair(value, '=', "<setting>=<value>")?;
    if setting.contains(',') {
        return Err(InvalidValue(format!("the format is <setting>=<value>. Got {value}")));
    }
    for SettingWarning(text) in settings.metrics_options.set(setting, setting_value) {
        settings.add_remark(text);
    }
    Ok(())
}
