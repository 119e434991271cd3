//! What was found, and the configuration with its reasons.

use std::fmt::Write;

use serde_json::{Value, json};

use super::TuneOptions;
use super::measure::Measured;
use super::server::TunedServer;
use super::verify::Verified;
use crate::commands::simulate::Configured;
use crate::console::Format;

const NS_PER_MS: f64 = 1e6;

/// All that is shown.
pub(super) struct Report {
    model: String,
    objective: String,
    unit: String,
    curves: Vec<Curve>,
    simulated: usize,
    /// The best first.
    checked: Vec<Verified>,
    /// The configuration that is best, with comments.
    pub(super) pbtxt: String,
}

/// The cost of executions with some instances and threads.
struct Curve {
    instances: u32,
    threads: Option<u32>,
    sizes: Vec<(u32, u64)>,
}

impl Report {
    pub(super) fn new(
        options: &TuneOptions,
        server: &TunedServer,
        measured: &[Measured],
        simulated: usize,
        checked: Vec<Verified>,
    ) -> Result<Self, String> {
        let best = checked.first().ok_or("nothing was checked")?;
        let unit = options.objective.unit();
        if best.score <= 0.0 {
            return Err(format!(
                "no configuration reaches the objective: an execution of one request takes {:.3} ms",
                measured
                    .iter()
                    .filter_map(|one| one.curve.first())
                    .map(|(_, ns)| ms(*ns))
                    .fold(f64::INFINITY, f64::min)
            ));
        }
        let config = if best.is_default {
            server.config.clone()
        } else {
            best.found.candidate.apply(&server.config)
        };
        let curve = |one: &Measured| Curve {
            instances: one.resources.instances,
            threads: one.resources.threads,
            sizes: one.curve.clone(),
        };
        let mut report = Self {
            model: server.model.clone(),
            objective: format!("{:?}", options.objective),
            unit,
            curves: measured.iter().map(curve).collect(),
            simulated,
            checked,
            pbtxt: String::new(),
        };
        let text = Configured::of_json("the best configuration", &config.to_string())?.to_pbtxt();
        report.pbtxt = format!("{}{text}", report.reasons());
        Ok(report)
    }

    /// The comments of the configuration.
    fn reasons(&self) -> String {
        let mut text = String::from("# Chosen by galatea tune on this machine.\n");
        let _ = writeln!(text, "# Objective: {}.", self.unit);
        let _ =
            writeln!(text, "# Simulated {} configurations; checked on a server:", self.simulated);
        for one in &self.checked {
            let _ = writeln!(text, "#   {:>10.1}  {}", one.score, name(one));
        }
        let _ = writeln!(text, "# An execution takes, in ms by rows of its batch:");
        for curve in &self.curves {
            let sizes = curve.sizes.iter().map(|(rows, ns)| format!("{rows}: {:.3}", ms(*ns)));
            let _ = writeln!(
                text,
                "#   {}: {}",
                resources(curve),
                sizes.collect::<Vec<_>>().join(", ")
            );
        }
        text
    }

    pub(super) fn render(&self, format: Format) -> String {
        match format {
            Format::Text => self.pbtxt.clone(),
            Format::Json => self.to_json().to_string(),
        }
    }

    fn to_json(&self) -> Value {
        let curve = |curve: &Curve| {
            let sizes: serde_json::Map<String, Value> =
                curve.sizes.iter().map(|(rows, ns)| (rows.to_string(), json!(ms(*ns)))).collect();
            json!({ "instances": curve.instances, "threads": curve.threads, "ms": sizes })
        };
        let checked = |one: &Verified| {
            let candidate = &one.found.candidate;
            json!({
                "is_default": one.is_default,
                "instances": candidate.resources.instances,
                "threads": candidate.resources.threads,
                "max_batch": candidate.max_batch,
                "delay_us": candidate.delay_us,
                "objective_us": candidate.objective_us,
                "simulated": one.found.score,
                "measured": one.score,
                "latency_ms": one.latency.map(|latency| latency.as_secs_f64() * 1e3),
            })
        };
        json!({
            "model": self.model,
            "objective": self.objective,
            "unit": self.unit,
            "costs": self.curves.iter().map(curve).collect::<Vec<_>>(),
            "simulated": self.simulated,
            "checked": self.checked.iter().map(checked).collect::<Vec<_>>(),
            "config": self.pbtxt,
        })
    }
}

fn name(one: &Verified) -> String {
    if one.is_default {
        return String::from("as it is without tuning");
    }
    format!("{} (simulated: {:.1})", one.found.candidate.text(), one.found.score)
}

fn resources(curve: &Curve) -> String {
    let threads = curve.threads.map_or_else(String::new, |threads| format!(", threads {threads}"));
    format!("instances {}{threads}", curve.instances)
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn ms(ns: u64) -> f64 {
    ns as f64 / NS_PER_MS
}
