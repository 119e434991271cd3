//! Benchmark results, for people and for programs.

use std::fmt::Write;
use std::time::Duration;

use galatea_load::{LoadMeasurement, Protocol, SampleRequest, ServedModelInterface};
use serde_json::{Value, json};

use super::BenchOptions;
use crate::console::{Console, ReportFormat, Style};

/// The latency percentiles to report.
const SHARES: [(f64, &str); 3] = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99")];

/// All measurements.
pub(super) struct BenchReport {
    model: String,
    inputs: Vec<(String, &'static str, Vec<u64>)>,
    /// The inputs whose variable dimensions were assumed to be 1 because no shape was specified.
    assumed: Vec<String>,
    batch: u64,
    duration: Duration,
    pub(super) rows: Vec<Row>,
}

/// The measurements for one level of concurrency.
pub(super) struct Row {
    pub(super) protocol: Protocol,
    pub(super) connections: u64,
    pub(super) measurement: LoadMeasurement,
    /// The CPU time of the server, if it runs on this machine.
    pub(super) server_cpu: Option<Duration>,
}

impl Row {
    fn latency_ms(&self, share: f64) -> Option<f64> {
        self.measurement.latency_quantile(share).map(|latency| latency.as_secs_f64() * 1e3)
    }

    /// The number of processors that the server kept busy.
    fn processors(&self) -> Option<f64> {
        let cpu = self.server_cpu?.as_secs_f64();
        Some(cpu / self.measurement.elapsed.as_secs_f64())
    }

    fn to_json(&self, batch: u64) -> Value {
        let found = &self.measurement;
        #[expect(clippy::cast_precision_loss, reason = "batches are small")]
        let inferences = found.responses_per_second() * batch as f64;
        let mut latency: serde_json::Map<String, Value> = SHARES
            .iter()
            .map(|(share, name)| ((*name).to_owned(), json!(self.latency_ms(*share))))
            .collect();
        let longest = (found.responses > 0).then(|| found.max_latency().as_secs_f64() * 1e3);
        latency.insert(String::from("max"), json!(longest));
        json!({
            "protocol": self.protocol.name(),
            "concurrency": self.connections,
            "responses": found.responses,
            "errors": found.failure_count(),
            "failures": found.failures,
            "seconds": found.elapsed.as_secs_f64(),
            "requests_per_second": found.responses_per_second(),
            "inferences_per_second": inferences,
            "latency_ms": latency,
            "server_cpu_seconds": self.server_cpu.map(|cpu| cpu.as_secs_f64()),
        })
    }
}

impl BenchReport {
    pub(super) fn new(
        model: &ServedModelInterface,
        sample: &SampleRequest,
        options: &BenchOptions,
    ) -> Self {
        let inputs = sample
            .inputs
            .iter()
            .map(|input| (input.name.clone(), input.datatype.protocol_name(), input.shape.clone()));
        let batch = if model.has_batches { options.batch } else { 1 };
        let own = model.inputs.iter().filter(|input| {
            let dims = input.shape.iter().skip(usize::from(model.has_batches));
            let is_sent = sample.inputs.iter().any(|sent| sent.name == input.name);
            is_sent
                && !options.shapes.contains_key(&input.name)
                && dims.clone().any(|size| *size < 0)
        });
        let assumed = own.map(|input| input.name.clone()).collect();
        let (model, inputs) = (model.name.clone(), inputs.collect());
        Self { model, inputs, assumed, batch, duration: options.duration, rows: Vec::new() }
    }

    /// The number of requests that failed.
    pub(super) fn failed(&self) -> u64 {
        self.rows.iter().map(|row| row.measurement.failure_count()).sum()
    }

    pub(super) fn render(&self, format: ReportFormat, console: Console) -> String {
        match format {
            ReportFormat::Text => self.to_text(console),
            ReportFormat::Json => self.to_json().to_string(),
        }
    }

    fn to_json(&self) -> Value {
        let inputs: Vec<Value> = self
            .inputs
            .iter()
            .map(|(name, datatype, shape)| {
                json!({ "name": name, "datatype": datatype, "shape": shape })
            })
            .collect();
        json!({
            "model": self.model,
            "inputs": inputs,
            "assumed": self.assumed,
            "batch": self.batch,
            "results": self.rows.iter().map(|row| row.to_json(self.batch)).collect::<Vec<_>>(),
        })
    }

    fn to_text(&self, console: Console) -> String {
        let inputs = self
            .inputs
            .iter()
            .map(|(name, datatype, shape)| format!("{name} {datatype} {}", json!(shape)));
        let inputs = inputs.collect::<Vec<_>>().join(", ");
        let seconds = self.duration.as_secs();
        let mut text = format!("model {}: {inputs}; {seconds} s for each line\n", self.model);
        for name in &self.assumed {
            let note = format!(
                "{name} has variable dimensions, which are 1: --shape {name}:SIZES sets them"
            );
            let _ = writeln!(text, "{}", console.paint(Style::Bad, &note));
        }
        text.push('\n');
        let has_cpu = self.rows.iter().any(|row| row.server_cpu.is_some());
        let cpu = if has_cpu { "  server CPUs" } else { "" };
        let head =
            format!("protocol  connections  requests/s    p50 ms    p90 ms    p99 ms  errors{cpu}");
        let _ = writeln!(text, "{}", console.paint(Style::Strong, &head));
        for row in &self.rows {
            let ms = |share| {
                row.latency_ms(share).map_or_else(|| String::from("-"), |ms| format!("{ms:.3}"))
            };
            let errors = format!("{:>6}", row.measurement.failure_count());
            let style = if row.measurement.failure_count() > 0 { Style::Bad } else { Style::Faint };
            let cpu = row.processors().map_or_else(String::new, |cpu| format!("  {cpu:>11.2}"));
            let _ = writeln!(
                text,
                "{:<8}  {:>11}  {:>10.1}  {:>8}  {:>8}  {:>8}  {}{cpu}",
                row.protocol.name(),
                row.connections,
                row.measurement.responses_per_second(),
                ms(0.5),
                ms(0.9),
                ms(0.99),
                console.paint(style, &errors),
            );
        }
        self.add_failures(&mut text);
        text
    }

    /// Adds the reasons why requests failed.
    fn add_failures(&self, text: &mut String) {
        for row in &self.rows {
            for (reason, count) in &row.measurement.failures {
                let (name, connections) = (row.protocol.name(), row.connections);
                let _ = writeln!(text, "\n{name}, {connections} connections: {count} × {reason}");
            }
        }
    }
}
