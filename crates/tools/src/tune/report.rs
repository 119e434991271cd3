//! Reports the best candidates and the configuration, with reasons.

use std::fmt::Write;

use galatea_config::ConfigDraft;
use serde_json::{Value, json};

use super::candidate::Resources;
use super::edit::{EditedConfig, edit};
use super::measure::MeasuredResources;
use super::server::TunedServer;
use super::verify::CheckedCandidate;
use super::{TuneOptions, TuningResult};
use crate::console::ReportFormat;

const NS_PER_MS: f64 = 1e6;

/// Everything that is shown.
pub(super) struct TuneReport {
    model: String,
    objective: String,
    unit: String,
    curves: Vec<Curve>,
    simulated: usize,
    /// The checked candidates, best first.
    checked: Vec<CheckedCandidate>,
    /// Additional notes.
    notes: Vec<String>,
    /// The best configuration.
    pub(super) edited: EditedConfig,
}

/// The execution costs with a given number of instances and threads.
struct Curve {
    resources: Resources,
    sizes: Vec<(u32, u64)>,
}

impl Curve {
    fn new(measured: &MeasuredResources) -> Self {
        Self { resources: measured.resources, sizes: measured.curve.clone() }
    }
}

impl TuneReport {
    pub(super) fn new(
        options: &TuneOptions,
        server: &TunedServer,
        found: TuningResult,
    ) -> Result<Self, String> {
        let TuningResult { measured, simulated, smaller, checked, file } = found;
        let best = checked.first().ok_or("nothing was checked")?;
        if best.score <= 0.0 {
            return Err(unreachable_objective(&measured, &checked));
        }
        let edited = if best.is_default {
            unchanged(file, &server.config)?
        } else {
            edit(file.as_deref(), &server.config, &best.found.candidate)?
        };
        let notes = smaller.as_ref().map(|one| {
            format!(
                "{} may do better (simulated: {:.1}), with smaller batches than the configuration \
                 has: --allow-smaller-batches tries that",
                one.candidate.text(),
                one.score
            )
        });
        let remarks = measured.iter().flat_map(|one| {
            one.remarks.iter().map(|remark| format!("{}: {remark}", one.resources.text()))
        });
        Ok(Self {
            model: server.model.clone(),
            objective: format!("{:?}", options.objective),
            unit: options.objective.unit(),
            notes: notes.into_iter().chain(remarks).collect(),
            curves: measured.iter().map(Curve::new).collect(),
            simulated,
            checked,
            edited,
        })
    }

    /// The reasons, as comments for the configuration file.
    fn reasons(&self) -> String {
        let mut text = String::from("# Chosen by galatea tune on this machine.\n");
        let _ = writeln!(text, "# Objective: {}.", self.unit);
        let _ =
            writeln!(text, "# Simulated {} configurations; checked on a server:", self.simulated);
        for one in &self.checked {
            let remark = one.remark.iter().map(|remark| format!(": {remark}"));
            let remark = remark.collect::<String>();
            let _ = writeln!(text, "#   {:>10.1}  {}{remark}", one.score, name(one));
        }
        let changes = &self.edited.changes;
        if changes.is_empty() {
            text.push_str("# Nothing is changed: nothing was better by more than 2 %.\n");
        }
        for change in changes {
            let _ = writeln!(text, "# Changed: {change}.");
        }
        for note in &self.notes {
            let _ = writeln!(text, "# Note: {note}.");
        }
        let _ = writeln!(text, "# An execution takes, in ms by rows of its batch:");
        for curve in &self.curves {
            let sizes = curve.sizes.iter().map(|(rows, ns)| format!("{rows}: {:.3}", ms(*ns)));
            let sizes = sizes.collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "#   {}: {sizes}", curve.resources.text());
        }
        text
    }

    pub(super) fn render(&self, format: ReportFormat) -> String {
        match format {
            ReportFormat::Text => format!("{}{}", self.reasons(), self.edited.text),
            ReportFormat::Json => self.to_json().to_string(),
        }
    }

    fn to_json(&self) -> Value {
        let curve = |curve: &Curve| {
            let sizes: serde_json::Map<String, Value> =
                curve.sizes.iter().map(|(rows, ns)| (rows.to_string(), json!(ms(*ns)))).collect();
            let Resources { instances, threads } = curve.resources;
            json!({ "instances": instances, "threads": threads, "ms": sizes })
        };
        let checked = |one: &CheckedCandidate| {
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
                "remark": one.remark,
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
            "changes": self.edited.changes,
            "notes": self.notes,
            "config": self.edited.text,
        })
    }
}

fn name(one: &CheckedCandidate) -> String {
    if one.is_default {
        return String::from("as it is without tuning");
    }
    format!("{} (simulated: {:.1})", one.found.candidate.text(), one.found.score)
}

/// The untuned configuration: the text of its file, or else the configuration that the server
/// generated.
fn unchanged(file: Option<String>, config: &Value) -> Result<EditedConfig, String> {
    let text = match file {
        Some(text) => text,
        None => {
            let draft = ConfigDraft::from_json("the configuration", &config.to_string());
            draft.map_err(|errors| errors.to_string())?.to_pbtxt()
        }
    };
    Ok(EditedConfig { text, changes: Vec::new() })
}

fn unreachable_objective(measured: &[MeasuredResources], checked: &[CheckedCandidate]) -> String {
    let costs = measured.iter().filter_map(|one| one.curve.first()).map(|(_, ns)| ms(*ns));
    let least = costs.fold(f64::INFINITY, f64::min);
    let usual = checked.iter().find(|one| one.is_default).and_then(|one| one.remark.as_ref());
    let usual = usual.map_or_else(String::new, |remark| format!("; as it is: {remark}"));
    format!(
        "no configuration reaches the objective: an execution of one request takes {least:.3} ms{usual}"
    )
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn ms(ns: u64) -> f64 {
    ns as f64 / NS_PER_MS
}
