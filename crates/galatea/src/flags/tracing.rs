//! Flags for request tracing.
//!
//! As in Triton, `--trace-config` is read in two steps: each value is parsed as it appears, and
//! their combined meaning is resolved once all are known.

use galatea_control::TraceLevels;
use galatea_trace::CollectorAddress;

use super::flag::{Flag, no_default};
use super::value::{self, InvalidValue};
use super::{Group, Settings};
use crate::environment::SpanBatchVariables;
use crate::tracing::{TraceConfig, TraceFlags, TraceMode};

pub(super) const GROUP: Group = Group {
    title: "Tracing",
    flags: &[&[Flag::other(
        "trace-config",
        "string,string=string",
        no_default,
        "A setting of the tracing of requests; may be given several times. For all modes: \
             level=TIMESTAMPS, TENSORS or OFF (several add up), rate=N traces one of N requests \
             (1000), count=N stops after N traces (-1 is never), mode=triton or opentelemetry. \
             For files: triton,file=PATH and triton,log-frequency=N, after how many traces a file \
             with a number is written; 0 writes one file at the end. For a collector: \
             opentelemetry,url=URL (http://localhost:4318/v1/traces), \
             opentelemetry,resource=KEY=VALUE, and opentelemetry,bsp_max_queue_size, \
             bsp_schedule_delay (in ms) and bsp_max_export_batch_size.",
        |settings, value| {
            settings.trace.configs.push(config(value)?);
            Ok(())
        },
    )]],
};

/// An invalid setting: the option's name in the error, and the reason.
pub(super) type WrongSetting = (String, String);

impl TraceFlags {
    /// Resolves the combined meaning of all flags.
    pub(super) fn resolve(&mut self, variables: &SpanBatchVariables) -> Result<(), WrongSetting> {
        let configs = std::mem::take(&mut self.configs);
        for config in configs.iter().filter(|config| config.mode.is_none()) {
            self.set_global(config).map_err(|InvalidValue(reason)| {
                (format!("--trace-config {}", config.setting), reason)
            })?;
        }
        let own = configs.into_iter().filter(|config| config.mode == Some(self.mode));
        let own: Vec<TraceConfig> = own.collect();
        match self.mode {
            TraceMode::Triton => self.set_files(own)?,
            TraceMode::OpenTelemetry => self.set_collector(own, variables)?,
        }
        if self.is_turned_off {
            self.start.levels = TraceLevels::default();
        }
        Ok(())
    }

    fn set_global(&mut self, config: &TraceConfig) -> Result<(), InvalidValue> {
        let value = &config.value;
        match config.setting.as_str() {
            "rate" => {
                self.warn_if(
                    self.given.rate,
                    "Warning: Overriding deprecated '--trace-rate' in favor of provided rate \
                     value in --trace-config!",
                );
                self.start.rate = rate(value)?;
            }
            "level" => {
                self.warn_if(
                    self.given.level,
                    "Warning: Overriding deprecated '--trace-level' in favor of provided level \
                     in --trace-config!",
                );
                // As in Triton, a level of `OFF` doesn't affect the others.
                self.add_levels(levels(value)?);
            }
            "mode" => self.mode = mode(value)?,
            "count" => {
                self.warn_if(
                    self.given.count,
                    "Warning: Overriding deprecated '--trace-count' in favor of provided count \
                     in --trace-config!",
                );
                self.start.count = value::number(value)?;
            }
            // Triton also ignores other settings.
            _ => {}
        }
        Ok(())
    }

    fn set_files(&mut self, configs: Vec<TraceConfig>) -> Result<(), WrongSetting> {
        for TraceConfig { setting, value, .. } in configs {
            match setting.as_str() {
                "file" => {
                    self.warn_if(
                        self.given.file,
                        "Warning: Overriding deprecated '--trace-file' in favor of provided file \
                         in --trace-config!",
                    );
                    self.file = value;
                }
                "log-frequency" => {
                    self.warn_if(
                        self.given.log_frequency,
                        "Warning: Overriding deprecated '--trace-log-frequency' in favor of \
                         provided log-frequency in --trace-config!",
                    );
                    self.start.log_frequency = rate(&value).map_err(|InvalidValue(reason)| {
                        (format!("--trace-config triton,{setting}"), reason)
                    })?;
                }
                _ => self.further.push((setting, value)),
            }
        }
        Ok(())
    }

    fn set_collector(
        &mut self,
        configs: Vec<TraceConfig>,
        variables: &SpanBatchVariables,
    ) -> Result<(), WrongSetting> {
        self.warn_if(
            self.given.file,
            "Warning: '--trace-file' is deprecated and will be ignored with opentelemetry tracing \
             mode. ",
        );
        self.warn_if(
            self.given.log_frequency,
            "Warning: '--trace-log-frequency' is deprecated and will be ignored with \
             opentelemetry tracing mode.",
        );
        self.file.clear();
        let number = |value: &str, option: String| match value::number::<u32>(value) {
            Ok(number) => Ok(number.to_string()),
            Err(InvalidValue(reason)) => Err((option, reason)),
        };
        for TraceConfig { setting, mut value, .. } in configs {
            if setting == "url"
                && let Err(error) = CollectorAddress::parse(&value)
            {
                let option = String::from("--trace-config opentelemetry,url");
                return Err((option, format!("{error}. Got {value}")));
            }
            if BATCH_DEFAULTS.iter().any(|(name, _)| *name == setting) {
                value = number(&value, format!("--trace-config opentelemetry,{setting}"))?;
            }
            self.further.push((setting, value));
        }
        for (name, default) in BATCH_DEFAULTS {
            if !self.further.iter().any(|(known, _)| known == name) {
                let value = variables.get(name).unwrap_or(default);
                // Other errors have a flag name after the dashes; this one has a variable name.
                let variable = format!("OTEL_{}", name.to_ascii_uppercase());
                self.further.push((name.to_owned(), number(value, variable)?));
            }
        }
        Ok(())
    }

    fn add_levels(&mut self, levels: TraceLevels) {
        self.start.levels.timestamps |= levels.timestamps;
        self.start.levels.tensors |= levels.tensors;
    }

    fn warn_if(&mut self, applies: bool, warning: &'static str) {
        if applies && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

/// The limits for batching spans, in the order in which Triton reports them.
const BATCH_DEFAULTS: [(&str, &str); 3] = [
    ("bsp_max_export_batch_size", "512"),
    ("bsp_schedule_delay", "5000"),
    ("bsp_max_queue_size", "2048"),
];

/// Parses a number of requests. Triton parses it as signed and stores it as unsigned.
fn rate(value: &str) -> Result<u32, InvalidValue> {
    value::number::<i32>(value).map(i32::cast_unsigned)
}

fn levels(value: &str) -> Result<TraceLevels, InvalidValue> {
    let value = value.to_ascii_lowercase();
    match value.as_str() {
        "false" | "off" => Ok(TraceLevels::default()),
        "true" | "on" | "min" | "max" | "timestamps" => {
            Ok(TraceLevels { timestamps: true, tensors: false })
        }
        "tensors" => Ok(TraceLevels { timestamps: false, tensors: true }),
        _ => Err(InvalidValue(format!("invalid value for trace level option: {value}"))),
    }
}

fn mode(value: &str) -> Result<TraceMode, InvalidValue> {
    let value = value.to_ascii_lowercase();
    match value.as_str() {
        "triton" => Ok(TraceMode::Triton),
        "opentelemetry" => Ok(TraceMode::OpenTelemetry),
        _ => Err(InvalidValue(format!(
            "invalid value for trace mode option: {value}. Available options are \"triton\" and \
             \"opentelemetry\""
        ))),
    }
}

fn config(text: &str) -> Result<TraceConfig, InvalidValue> {
    let (mode, rest) = match text.split_once(',') {
        Some(("", _)) => {
            return Err(InvalidValue(format!(
                "No trace mode specified. --trace-config option format is <trace mode>,<setting>=\
                 <value> or <setting>=<value>. Got {text}\n"
            )));
        }
        Some((name, rest)) => (Some(mode(name)?), rest),
        None => (None, text),
    };
    match rest.split_once('=') {
        Some((setting, value)) if !setting.is_empty() && !value.is_empty() => {
            Ok(TraceConfig { mode, setting: setting.to_owned(), value: value.to_owned() })
        }
        Some(_) | None => Err(InvalidValue(format!(
            "--trace-config option format is '<trace mode>,<setting>=<value>'. Got {text}\n"
        ))),
    }
}

fn deprecated(settings: &mut Settings, warning: &'static str) {
    settings.trace.warn_if(true, warning);
}

fn trace_file(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    settings.trace.given.file = true;
    settings.trace.file = value.to_owned();
    deprecated(
        settings,
        "Warning: '--trace-file' has been deprecated and will be removed in future releases. \
         Please use '--trace-config triton,file=<filepath> instead.",
    );
    Ok(())
}

fn trace_level(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    deprecated(
        settings,
        "Warning: '--trace-level' has been deprecated and will be removed in future releases. \
         Please use '--trace-config level=<OFF|TIMESTAMPS|TENSORS> instead.",
    );
    let levels = levels(value)?;
    settings.trace.given.level = true;
    settings.trace.is_turned_off |= levels.is_off();
    settings.trace.add_levels(levels);
    Ok(())
}

fn trace_rate(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    deprecated(
        settings,
        "Warning: '--trace-rate' has been deprecated and will be removed in future releases. \
         Please use '--trace-config rate=<rate value> instead.",
    );
    settings.trace.start.rate = rate(value)?;
    settings.trace.given.rate = true;
    Ok(())
}

fn trace_count(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    deprecated(
        settings,
        "Warning: '--trace-count' has been deprecated and will be removed in future releases. \
         Please use '--trace-config count=<count value> instead.",
    );
    settings.trace.start.count = value::number(value)?;
    settings.trace.given.count = true;
    Ok(())
}

fn trace_log_frequency(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    deprecated(
        settings,
        "Warning: '--trace-log-frequency' has been deprecated and will be removed in future \
         releases. Please use '--trace-config triton,log-frequency=<log frequency value> \
         instead.",
    );
    settings.trace.start.log_frequency = rate(value)?;
    settings.trace.given.log_frequency = true;
    Ok(())
}

#[cfg(test)]
#[path = "tracing_tests.rs"]
mod tests;

pub(super) const FLAGS: &[Flag] = &[
    Flag::other(
        "trace-file",
        "string",
        no_default,
        "The file for traces. Use --trace-config=triton,file=PATH.",
        trace_file,
    ),
    Flag::other(
        "trace-level",
        "string",
        no_default,
        "What to trace. Use --trace-config=level=LEVEL.",
        trace_level,
    ),
    Flag::other(
        "trace-rate",
        "integer",
        no_default,
        "Of how many requests one is traced. Use --trace-config=rate=N.",
        trace_rate,
    ),
    Flag::other(
        "trace-count",
        "integer",
        no_default,
        "How many requests to trace. Use --trace-config=count=N.",
        trace_count,
    ),
    Flag::other(
        "trace-log-frequency",
        "integer",
        no_default,
        "How many traces go into one file. Use --trace-config=triton,log-frequency=N.",
        trace_log_frequency,
    ),
];
