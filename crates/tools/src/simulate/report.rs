//! Compares recorded with simulated traffic, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write;

use galatea_simulate::Report;
use galatea_traffic::RecordedTraffic;
use serde_json::{Map, Value, json};

use super::settings::SimulatedScheduler;
use crate::console::{Console, ReportFormat, Style, render_bar};

const NS_PER_MS: f64 = 1e6;

/// The limits for an accurate simulation. A simulation is far from the recording if a latency
/// differs by both this factor and the minimum in milliseconds, or if the throughput differs by its
/// own factor.
const FAR_LATENCY: f64 = 2.0;
const FAR_MS: f64 = 1.0;
const FAR_THROUGHPUT: f64 = 1.25;

/// The width of a histogram bar.
const BAR_COLUMNS: usize = 24;

/// The maximum number of batch sizes shown to people.
const SIZES_MAX: usize = 24;

/// A report and the settings that it describes.
pub(super) struct ReportColumn {
    configured: SimulatedScheduler,
    load: f64,
    /// The number of closed-loop clients, which wait for their responses, if any.
    clients: Option<u32>,
    report: Report,
}

impl ReportColumn {
    pub(super) const fn new(
        configured: SimulatedScheduler,
        load: f64,
        clients: Option<u32>,
        report: Report,
    ) -> Self {
        Self { configured, load, clients, report }
    }
}

/// Everything that is shown.
pub(super) struct Comparison {
    pub(super) traffic: RecordedTraffic,
    /// The number of recorded executions, by number of rows.
    pub(super) learned: BTreeMap<u32, usize>,
    pub(super) recorded: ReportColumn,
    pub(super) configured: ReportColumn,
    pub(super) simulated: ReportColumn,
}

impl Comparison {
    pub(super) fn render(&self, format: ReportFormat, console: Console) -> String {
        match format {
            ReportFormat::Text => self.to_text(console),
            ReportFormat::Json => self.to_json().to_string(),
        }
    }

    fn to_json(&self) -> Value {
        let header = &self.traffic.header;
        json!({
            "model": header.model,
            "version": header.version,
            "requests": self.traffic.requests.len(),
            "executions": self.traffic.executions.len(),
            "lost": self.traffic.lost,
            "learned": counts(self.learned.iter()),
            "warning": self.warning(),
            "recorded": self.recorded.to_json(),
            "configured": self.configured.to_json(),
            "simulated": self.simulated.to_json(),
        })
    }

    fn to_text(&self, console: Console) -> String {
        let header = &self.traffic.header;
        let (requests, executions) = (self.traffic.requests.len(), self.traffic.executions.len());
        let mut text = format!(
            "model {} version {}: {requests} requests and {executions} executions are recorded\n",
            header.model, header.version
        );
        if self.traffic.lost > 0 {
            let lost = format!("{} more are lost, so that the load was higher", self.traffic.lost);
            let _ = writeln!(text, "{}", console.paint(Style::Bad, &lost));
        }
        if let Some(warning) = self.warning() {
            let _ = writeln!(text, "{}", console.paint(Style::Bad, &warning));
        }
        let head =
            format!("\n{:<16}{:>20}{:>20}{:>20}", "", "recorded", "simulated", "with options");
        let _ = writeln!(text, "{}", console.paint(Style::Strong, &head));
        let columns = [&self.recorded, &self.configured, &self.simulated];
        for (name, cell) in ROWS {
            let cells = columns.map(|column| format!("{:>20}", cell(column)));
            let _ = writeln!(text, "{name:<16}{}", cells.concat());
        }
        self.add_reasons(&mut text, "refused", |report| &report.refusals);
        self.add_reasons(&mut text, "closed", |report| &report.closed);
        self.add_histogram(&mut text);
        text
    }

    /// The first quantity for which the simulated baseline is far from the recording. The
    /// simulation with options is then of little value.
    fn warning(&self) -> Option<String> {
        let (recorded, simulated) = (&self.recorded.report, &self.configured.report);
        let is_far = |one: f64, other: f64, factor: f64, least: f64| {
            let (low, high) = (one.min(other), one.max(other));
            high > factor * low && high - low > least
        };
        let quantiles = [("p50", 0.5), ("p99", 0.99)].into_iter().find_map(|(name, share)| {
            let of = |report: &Report| float(report.quantile_ns(share)) / NS_PER_MS;
            let (own, found) = (of(recorded), of(simulated));
            let is_far = is_far(own, found, FAR_LATENCY, FAR_MS);
            is_far.then(|| format!("{name} was {own:.3} ms and is {found:.3} ms simulated"))
        });
        let (own, found) = (recorded.throughput(), simulated.throughput());
        let rates = || {
            let is_far = is_far(own, found, FAR_THROUGHPUT, 0.0);
            is_far.then(|| format!("{own:.1} answers/s were recorded, and {found:.1} simulated"))
        };
        let is_known = recorded.answered() > 0;
        let far = quantiles.or_else(rates).filter(|_| is_known)?;
        let cause = match (self.configured.clients, self.learned.len()) {
            (_, 1) => "executions of one size are recorded only",
            (None, _) => "if clients waited for their answers, --clients says how many",
            (Some(_), _) => "what an execution takes varied more than its size tells",
        };
        Some(format!("the simulation is far from what was recorded: {far}; {cause}"))
    }

    /// Adds a row for each reason in any column.
    fn add_reasons(
        &self,
        text: &mut String,
        title: &str,
        of: impl Fn(&Report) -> &BTreeMap<std::borrow::Cow<'static, str>, u64>,
    ) {
        let columns = [&self.recorded, &self.configured, &self.simulated];
        let mut names: Vec<&str> = columns
            .iter()
            .flat_map(|column| of(&column.report).keys())
            .map(|name| &**name)
            .collect();
        names.sort_unstable();
        names.dedup();
        if !names.is_empty() {
            let _ = writeln!(text, "{title}");
        }
        for name in names {
            let count = |column: &ReportColumn| of(&column.report).get(name).copied().unwrap_or(0);
            let cells = columns.map(|column| format!("{:>20}", count(column)));
            let _ = writeln!(text, "  {name:<14}{}", cells.concat());
        }
    }

    fn add_histogram(&self, text: &mut String) {
        let report = &self.simulated.report;
        let all = report.executions().max(1);
        let most = report.batches.values().copied().max().unwrap_or(1);
        let _ = writeln!(text, "\nbatches, with options");
        for (rows, count) in report.batches.iter().take(SIZES_MAX) {
            let percent = 100.0 * float(*count) / float(all);
            let bar = render_bar(float(*count) / float(most), BAR_COLUMNS);
            let _ = writeln!(text, "{rows:>6} {bar} {percent:5.1} % {count}");
        }
        if report.batches.len() > SIZES_MAX {
            let _ = writeln!(text, "       and {} larger sizes", report.batches.len() - SIZES_MAX);
        }
    }
}

/// A row's name and its cell in a column.
type SimulatedRow = (&'static str, fn(&ReportColumn) -> String);

const ROWS: [SimulatedRow; 14] = [
    ("load", |column| format!("{}", column.load)),
    ("waiting clients", |column| {
        column.clients.map_or_else(|| String::from("-"), |clients| clients.to_string())
    }),
    ("instances", |column| column.configured.instances.to_string()),
    ("max batch", |column| column.configured.scheduling.max_batch_size.to_string()),
    ("scheduler", |column| column.configured.scheduler()),
    ("goodput/s", |column| format!("{:.1}", column.report.goodput())),
    ("throughput/s", |column| format!("{:.1}", column.report.throughput())),
    ("p50 ms", |column| ms(column, 0.5)),
    ("p99 ms", |column| ms(column, 0.99)),
    ("late", |column| column.report.late.to_string()),
    ("refused", |column| column.report.refused.to_string()),
    ("  at once", |column| column.report.refused_at_once.to_string()),
    ("mean batch", |column| format!("{:.2}", column.report.mean_batch())),
    ("busy instances", |column| format!("{:.2}", column.report.mean_busy_instances())),
];

fn ms(column: &ReportColumn, share: f64) -> String {
    format!("{:.3}", float(column.report.quantile_ns(share)) / NS_PER_MS)
}

impl ReportColumn {
    fn to_json(&self) -> Value {
        let report = &self.report;
        let ms = |share: f64| float(report.quantile_ns(share)) / NS_PER_MS;
        json!({
            "load": self.load,
            "clients": self.clients,
            "instances": self.configured.instances,
            "max_batch": self.configured.scheduling.max_batch_size,
            "scheduler": self.configured.scheduler(),
            "seconds": float(report.ended_ns) / 1e9,
            "goodput": report.goodput(),
            "throughput": report.throughput(),
            "latency_ms": { "p50": ms(0.5), "p90": ms(0.9), "p99": ms(0.99), "max": ms(1.0) },
            "in_time": report.in_time,
            "late": report.late,
            "refused": report.refused,
            "refused_at_once": report.refused_at_once,
            "refusals": counts(report.refusals.iter()),
            "executions": report.executions(),
            "mean_batch": report.mean_batch(),
            "batches": counts(report.batches.iter()),
            "closed": counts(report.closed.iter()),
            "busy_instances": report.mean_busy_instances(),
        })
    }
}

fn counts<'a, K: ToString, V: Copy + Into<Value> + 'a>(
    counts: impl Iterator<Item = (K, &'a V)>,
) -> Value {
    let fields = counts.map(|(key, count)| (key.to_string(), (*count).into()));
    Value::Object(fields.collect::<Map<_, _>>())
}

#[expect(clippy::cast_precision_loss, reason = "counts and times are shown with a few digits")]
const fn float(number: u64) -> f64 {
    number as f64
}
