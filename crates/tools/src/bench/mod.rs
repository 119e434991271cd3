//! `galatea bench`: a quick measurement of a model's throughput and latency, on a running server or
//! on one started for the purpose.
//!
//! Inputs are generated from the model's metadata, and each level of concurrency runs for a few
//! seconds. The load generator uses processor time on its machine, so measurements taken on the
//! server's machine are no benchmark of the server.

pub(crate) mod local;
mod report;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use galatea_load::{
    InputShapes, LoadLevel, LoadMeasurement, Protocol, SampleRequest, ServedModelInterface, Target,
    fetch_model_interface, ready_models, run_closed_loop,
};

use self::local::LocalServer;
use self::report::{BenchReport, Row};
use crate::Arguments;
use crate::console::{ColourMode, Console, ReportFormat, print_failure, print_line, render_bar};

/// The time spent sending requests before the measurement starts.
const WARMUP: Duration = Duration::from_millis(300);

/// The width of the bar, in columns.
const BAR_COLUMNS: usize = 24;

/// The maximum number of concurrent connections.
const CONNECTIONS_MAX: u64 = 10_000;

/// The options of `galatea bench`.
#[derive(Debug)]
pub struct BenchOptions {
    /// The running servers, each with one protocol.
    targets: Vec<Target>,
    /// The models to start a server for, if no running server is specified.
    models: Vec<String>,
    /// The flags for the server that is started.
    flags: Vec<String>,
    model: Option<String>,
    protocols: Vec<Protocol>,
    levels: Vec<u64>,
    duration: Duration,
    batch: u64,
    shapes: InputShapes,
    format: ReportFormat,
}

impl BenchOptions {
    /// Parses the options from these arguments.
    ///
    /// # Errors
    ///
    /// Returns an error if a value is invalid or a model is missing.
    pub fn new(line: Arguments, format: ReportFormat) -> Result<Self, String> {
        let targets: Vec<Target> = line.all("url").map(target).collect::<Result<_, _>>()?;
        if targets.is_empty() == line.operands.is_empty() {
            return Err(String::from("either a model or --url is needed"));
        }
        if !targets.is_empty() && !line.flags.is_empty() {
            return Err(String::from("flags of the server don't go with --url"));
        }
        let number = |name: &str, usual: u64, most: u64| match line.option(name) {
            None => Ok(usual),
            Some(text) => number(text, most)
                .ok_or_else(|| format!("'--{name}' takes a number from 1 to {most}, not '{text}'")),
        };
        let levels = line.option("concurrency").unwrap_or("1,4,16");
        let levels: Option<Vec<u64>> = levels.split(',').map(number_of_connections).collect();
        Ok(Self {
            levels: levels.ok_or_else(|| {
                format!("'--concurrency' takes numbers from 1 to {CONNECTIONS_MAX}, such as 1,4,16")
            })?,
            duration: Duration::from_secs(number("duration", 2, 86_400)?),
            batch: number("batch", 1, 1 << 20)?,
            shapes: line.all("shape").map(shape).collect::<Result<_, _>>()?,
            protocols: protocols(line.option("protocol").unwrap_or("both"))?,
            model: line.option("model").map(String::from),
            targets,
            flags: line.flags,
            models: line.operands,
            format,
        })
    }
}

fn number(text: &str, most: u64) -> Option<u64> {
    text.parse().ok().filter(|number| (1..=most).contains(number))
}

fn number_of_connections(text: &str) -> Option<u64> {
    number(text, CONNECTIONS_MAX)
}

fn protocols(name: &str) -> Result<Vec<Protocol>, String> {
    match name {
        "http" => Ok(vec![Protocol::Http]),
        "grpc" => Ok(vec![Protocol::Grpc]),
        "both" => Ok(vec![Protocol::Http, Protocol::Grpc]),
        other => Err(format!("'--protocol' is http, grpc or both, not '{other}'")),
    }
}

/// Parses `http://HOST:PORT` or `grpc://HOST:PORT`.
fn target(url: &str) -> Result<Target, String> {
    let (protocol, rest) = match url.split_once("://") {
        Some(("http", rest)) => (Protocol::Http, rest),
        Some(("grpc", rest)) => (Protocol::Grpc, rest),
        Some((other, _)) => {
            return Err(format!("'--url' is http://HOST:PORT or grpc://HOST:PORT, not {other}://"));
        }
        None => (Protocol::Http, url),
    };
    let address = rest.trim_end_matches('/');
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    if port.is_none() || address.contains('/') {
        return Err(format!(
            "'--url' needs a host and a port, such as http://localhost:8000, not '{url}'"
        ));
    }
    Ok(Target { protocol, address: address.to_owned() })
}

/// Parses a shape such as `NAME:1,3,224,224`.
pub(crate) fn shape(text: &str) -> Result<(String, Vec<u64>), String> {
    let malformed =
        || format!("'--shape' is NAME:SIZE,SIZE..., such as image:3,224,224, not '{text}'");
    let (name, sizes) = text.rsplit_once(':').ok_or_else(malformed)?;
    let sizes: Result<Vec<u64>, _> = sizes.split(',').map(str::parse).collect();
    Ok((name.to_owned(), sizes.map_err(|_| malformed())?))
}

/// Runs the benchmark and prints the results. Failed requests result in exit code 1.
#[must_use]
pub fn run(options: &BenchOptions, colours: ColourMode) -> ExitCode {
    match measured(options, colours) {
        Ok(report) => {
            let console = Console::on_stdout(colours);
            print_line(&mut io::stdout(), report.render(options.format, console).trim_end());
            if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(reason) => print_failure(&reason, options.format),
    }
}

fn measured(options: &BenchOptions, colours: ColourMode) -> Result<BenchReport, String> {
    let console = Console::on_stderr(colours);
    let server = if options.targets.is_empty() {
        console.show_progress("starting a server");
        let started = LocalServer::start(&options.models, &options.flags, &options.protocols);
        console.clear_progress();
        Some(started?)
    } else {
        None
    };
    let targets = server.as_ref().map_or(&options.targets, |server| &server.targets);
    let (model, sample) = sample(options, targets)?;
    let mut report = BenchReport::new(&model, &sample, options);
    for target in targets {
        let started = server.as_ref().map(|server| server.process);
        let process = started.or_else(|| local::listening_process(&target.address));
        for connections in &options.levels {
            let level = LoadLevel {
                target,
                sample: &sample,
                connections: *connections,
                warmup: WARMUP,
                duration: options.duration,
            };
            report.rows.push(row(level, process, console)?);
        }
    }
    Ok(report)
}

/// The model to measure and a request for it.
fn sample(
    options: &BenchOptions,
    targets: &[Target],
) -> Result<(ServedModelInterface, SampleRequest), String> {
    let target = targets.first().ok_or("the server has no endpoint")?;
    let asked = |reason: String| {
        format!("can't ask {} at {}: {reason}", target.protocol.name(), target.address)
    };
    let model = match &options.model {
        Some(model) => model.clone(),
        None => {
            let mut models = ready_models(target).map_err(asked)?;
            models.dedup();
            match models.as_slice() {
                [only] => only.clone(),
                [] => return Err(String::from("the server has no model that is ready")),
                several => {
                    return Err(format!("--model is needed: one of {}", several.join(", ")));
                }
            }
        }
    };
    let interface = fetch_model_interface(target, &model).map_err(asked)?;
    if interface.is_decoupled {
        return Err(format!(
            "model '{model}' is decoupled, and only models that send one response are measured"
        ));
    }
    let sample = SampleRequest::new(&interface, options.batch, &options.shapes)?;
    Ok((interface, sample))
}

fn row(level: LoadLevel<'_>, process: Option<u32>, console: Console) -> Result<Row, String> {
    let what = format!("{}, {} connections", level.target.protocol.name(), level.connections);
    let seconds = level.duration.as_secs_f64();
    let before = std::rc::Rc::new(std::cell::Cell::new(None));
    let noted = before.clone();
    let measurement: LoadMeasurement = run_closed_loop(
        level,
        move || noted.set(process.and_then(local::cpu_time)),
        move |share, responses| {
            #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
            let rate = responses as f64 / (share * seconds).max(0.001);
            console.show_progress(&format!(
                "{what:<22} {} {rate:8.0}/s",
                render_bar(share, BAR_COLUMNS)
            ));
        },
    )?;
    let after = process.and_then(local::cpu_time);
    console.clear_progress();
    let cpu = before.get().zip(after).map(|(before, after)| after.saturating_sub(before));
    Ok(Row {
        protocol: level.target.protocol,
        connections: level.connections,
        measurement,
        server_cpu: cpu,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_of_a_protocol_with_a_port() {
        let http = Target { protocol: Protocol::Http, address: String::from("h:1") };
        assert_eq!(target("http://h:1/"), Ok(http.clone()));
        assert_eq!(target("h:1"), Ok(http));
        assert_eq!(target("grpc://[::1]:2").unwrap().address, "[::1]:2");
        for (url, part) in [
            ("https://h:1", "not https://"),
            ("http://h", "needs a host and a port"),
            ("http://h:1/v2", "needs a host and a port"),
            ("", "needs a host and a port"),
        ] {
            assert!(target(url).unwrap_err().contains(part), "{url}");
        }
    }

    #[test]
    fn shapes_have_a_name_and_sizes() {
        assert_eq!(shape("a:b:1,2"), Ok((String::from("a:b"), vec![1, 2])));
        for text in ["a", "a:", "a:1,x", "a:-1"] {
            assert!(shape(text).is_err(), "{text}");
        }
    }

    #[test]
    fn arguments_that_contradict_each_other_are_refused() {
        let line = |options: &[(&'static str, &str)], operands: &[&str], flags: &[&str]| {
            let options =
                options.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            let text = |list: &[&str]| list.iter().map(|one| String::from(*one)).collect();
            let line = Arguments { options, operands: text(operands), flags: text(flags) };
            BenchOptions::new(line, ReportFormat::Text).map(drop).unwrap_err()
        };
        assert!(line(&[], &[], &[]).contains("either a model or --url"));
        assert!(line(&[("url", "h:1")], &["m"], &[]).contains("either a model or --url"));
        assert!(line(&[("url", "h:1")], &[], &["--id=a"]).contains("don't go with --url"));
        assert!(line(&[("concurrency", "1,0")], &["m"], &[]).contains("'--concurrency'"));
        assert!(line(&[("duration", "0")], &["m"], &[]).contains("'--duration'"));
        assert!(line(&[("protocol", "x")], &["m"], &[]).contains("not 'x'"));
    }
}
