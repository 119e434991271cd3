//! `galatea record`: records the requests to a model on a running server, as a traffic file.
//!
//! The server records only while this command reads, and sends the lines of the file. The command
//! adds the model's configuration, which it gets from the public endpoint.

pub(crate) mod stream;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use galatea_traffic::{RotatingFile, TrafficHeader, TrafficLine};
use serde_json::json;

use self::stream::{Connection, ReceivedLine};
use crate::Arguments;
use crate::console::{ColourMode, Console, ReportFormat};

// The option defaults, which the options table also shows.
const SECONDS: u64 = 60;
/// The default for `--max-bytes`, the size at which files are rotated.
const BYTES_MAX: u64 = 256 << 20;
/// The default number of files to keep.
const FILES_MAX: u64 = 4;

/// The maximum size of a response body that isn't a recording.
const BODY_BYTES_MAX: usize = 16 << 20;

/// The interval between progress updates.
const PROGRESS_PAUSE: Duration = Duration::from_millis(200);

/// The options of `galatea record`.
#[derive(Debug)]
pub struct RecordOptions {
    /// The server's address, as `HOST:PORT`.
    address: String,
    model: String,
    version: Option<u64>,
    output: PathBuf,
    duration: Duration,
    bytes_max: u64,
    files_max: u32,
    headers: Vec<(String, String)>,
    /// The format of the results.
    pub format: ReportFormat,
}

impl RecordOptions {
    /// Parses the options from these arguments.
    ///
    /// # Errors
    ///
    /// Returns an error if a value is invalid or the URL is missing.
    pub fn new(line: &Arguments, format: ReportFormat) -> Result<Self, String> {
        let [url] = line.operands.as_slice() else {
            return Err(String::from("the URL of one server is missing"));
        };
        let number = |name: &str, usual: u64, least: u64| match line.option(name) {
            None => Ok(usual),
            Some(text) => {
                let value = text.parse().ok().filter(|number| *number >= least);
                value.ok_or_else(|| {
                    format!("'--{name}' takes a number from {least} on, not '{text}'")
                })
            }
        };
        let model = line.option("model").ok_or("'--model' is missing: the model's name")?;
        let version =
            line.option("model-version").map(|_| number("model-version", 0, 0)).transpose()?;
        let files_max = u32::try_from(number("files", FILES_MAX, 1)?);
        let seconds = number("seconds", SECONDS, 1)?.min(u64::from(u32::MAX));
        Ok(Self {
            address: address(url)?,
            model: model.to_owned(),
            version,
            output: PathBuf::from(line.option("output").unwrap_or("traffic.jsonl")),
            duration: Duration::from_secs(seconds),
            bytes_max: number("max-bytes", BYTES_MAX, 1)?,
            files_max: files_max.map_err(|_| String::from("'--files' is too large"))?,
            headers: line.all("header").map(header).collect::<Result<_, _>>()?,
            format,
        })
    }

    fn path(&self, what: &str) -> String {
        let version = self.version.map_or_else(String::new, |number| format!("/versions/{number}"));
        format!("/v2/models/{}{version}/{what}", galatea_load::encode_path_segment(&self.model))
    }
}

/// Parses `http://HOST:PORT`; the prefix `http://` is optional.
fn address(url: &str) -> Result<String, String> {
    if let Some((scheme, _)) = url.split_once("://").filter(|(scheme, _)| *scheme != "http") {
        return Err(format!(
            "the URL is http://HOST:PORT, not {scheme}://: over TLS, curl records what \
             docs/traffic.md shows"
        ));
    }
    let address = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    if port.is_none() || address.contains('/') {
        return Err(format!(
            "the URL needs a host and a port, such as http://localhost:8000, not '{url}'"
        ));
    }
    Ok(address.to_owned())
}

/// Parses `NAME:VALUE`, which must be a single line.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').unwrap_or_default();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_valid = !name.is_empty()
        && name.bytes().all(is_name)
        && !value.contains(|char: char| char.is_ascii_control());
    if !is_valid {
        return Err(format!("'--header' is NAME:VALUE, not '{text}'"));
    }
    Ok((name.to_owned(), value.trim().to_owned()))
}

/// The numbers of recorded and lost requests and executions.
#[derive(Debug, Default)]
struct RecordCounts {
    requests: u64,
    executions: u64,
    lost: u64,
    end: Option<String>,
}

/// Records traffic and returns a summary.
///
/// `stop_on_signal` returns a flag that becomes true when a signal stops the recording. The
/// recording up to that point is complete and is summarized.
///
/// # Errors
///
/// Returns an error if the server can't be reached or refuses, or if a file can't be written.
pub fn run(
    options: &RecordOptions,
    colours: ColourMode,
    stop_on_signal: fn() -> Result<Arc<AtomicBool>, String>,
) -> Result<String, String> {
    let config = config(options);
    let begin = Instant::now();
    let mut connection = Connection::open(&options.address)?;
    let mut headers = options.headers.clone();
    headers.push((String::from("Galatea-Traffic"), String::from("1")));
    let status = connection.request(&options.path("traffic"), &headers)?;
    if status != 200 {
        return Err(refusal(status, &connection.body(BODY_BYTES_MAX)?, options));
    }
    let is_stopped = stop_on_signal()?;
    let mut recorded =
        RecordingFiles { options, config, file: None, counts: RecordCounts::default() };
    let console = Console::on_stderr(colours);
    let end = begin + options.duration;
    let mut shown = begin;
    let goes_on = |counts: &RecordCounts| {
        Instant::now() < end && counts.end.is_none() && !is_stopped.load(Ordering::Acquire)
    };
    while goes_on(&recorded.counts) {
        match connection.line(end)? {
            ReceivedLine::Line(line) => recorded.add(&line)?,
            ReceivedLine::Nothing => recorded.flush()?,
            ReceivedLine::End => break,
        }
        if shown.elapsed() >= PROGRESS_PAUSE {
            shown = Instant::now();
            recorded.flush()?;
            let seconds = begin.elapsed().as_secs();
            console.show_progress(&format!("{seconds} s: {} requests", recorded.counts.requests));
        }
    }
    console.clear_progress();
    recorded.flush()?;
    recorded.summary(begin.elapsed())
}

/// The model's configuration, if the client has access to it.
fn config(options: &RecordOptions) -> Option<serde_json::Value> {
    let mut connection = Connection::open(&options.address).ok()?;
    let status = connection.request(&options.path("config"), &options.headers).ok()?;
    let body = connection.body(BODY_BYTES_MAX).ok()?;
    (status == 200).then(|| serde_json::from_slice(&body).ok()).flatten()
}

fn refusal(status: u16, body: &[u8], options: &RecordOptions) -> String {
    let document: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let reason = document.as_ref().and_then(|document| document["error"].as_str());
    let text = reason.map_or_else(|| String::from_utf8_lossy(body).into_owned(), String::from);
    let address = &options.address;
    if status == 404 && text == "Not Found" {
        return format!(
            "the server at {address} records no traffic: it needs --allow-traffic-recording=true"
        );
    }
    format!("the server at {address} refuses: {status} {text}")
}

/// The output files.
struct RecordingFiles<'a> {
    options: &'a RecordOptions,
    config: Option<serde_json::Value>,
    /// The current file; `None` before the first line.
    file: Option<RotatingFile>,
    counts: RecordCounts,
}

impl RecordingFiles<'_> {
    fn add(&mut self, text: &str) -> Result<(), String> {
        let line = TrafficLine::parse(text)
            .map_err(|reason| format!("not a line of traffic: {reason}"))?;
        match line {
            TrafficLine::Header(header) if self.file.is_none() => return self.begin(header),
            TrafficLine::Header(_) => return Err(String::from("the server sent two headers")),
            TrafficLine::Request(_) => self.counts.requests += 1,
            TrafficLine::Execution(_) => self.counts.executions += 1,
            TrafficLine::Lost(count) => self.counts.lost += count,
            TrafficLine::End(reason) => self.counts.end = Some(reason),
        }
        let file = self.file.as_mut().ok_or("the server sent no header")?;
        file.add(text).map_err(|error| cannot_write(self.options, &error))
    }

    fn begin(&mut self, header: TrafficHeader) -> Result<(), String> {
        let header =
            TrafficLine::Header(TrafficHeader { config: self.config.take(), ..header }).to_string();
        let RecordOptions { output, bytes_max, files_max, .. } = self.options;
        let file = RotatingFile::create(output, &header, *bytes_max, *files_max);
        self.file = Some(file.map_err(|error| cannot_write(self.options, &error))?);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), String> {
        let flushed = self.file.as_mut().map_or(Ok(()), RotatingFile::flush);
        flushed.map_err(|error| cannot_write(self.options, &error))
    }

    fn summary(&self, elapsed: Duration) -> Result<String, String> {
        let RecordCounts { requests, executions, lost, end } = &self.counts;
        if self.file.is_none() {
            return Err(String::from("the recording ended before it began"));
        }
        let output = self.options.output.display().to_string();
        if self.options.format == ReportFormat::Json {
            let document = json!({
                "model": self.options.model,
                "output": output,
                "seconds": elapsed.as_secs_f64(),
                "requests": requests,
                "executions": executions,
                "lost": lost,
                "end": end,
            });
            return Ok(document.to_string());
        }
        let mut text = format!("{output}: {requests} requests in {executions} executions");
        if *lost > 0 {
            text.push_str(&format!("; {lost} were lost, because they were too many"));
        }
        if let Some(reason) = end {
            text.push_str(&format!("; it ended because {reason}"));
        }
        Ok(text)
    }
}

fn cannot_write(options: &RecordOptions, error: &std::io::Error) -> String {
    format!("can't write '{}': {error}", options.output.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(options: &[(&'static str, &str)], urls: &[&str]) -> Result<RecordOptions, String> {
        let line = Arguments {
            flags: Vec::new(),
            options: options.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            operands: urls.iter().map(|url| String::from(*url)).collect(),
        };
        RecordOptions::new(&line, ReportFormat::Text)
    }

    #[test]
    fn a_version_is_a_part_of_the_path() {
        let some = options(&[("model", "a b"), ("model-version", "3")], &["http://h:1/"]).unwrap();
        assert_eq!(
            (some.address.as_str(), some.path("x").as_str()),
            ("h:1", "/v2/models/a%20b/versions/3/x")
        );
        assert_eq!(options(&[("model", "a")], &["h:1"]).unwrap().path("x"), "/v2/models/a/x");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let model = ("model", "m");
        for (given, urls, part) in [
            (&[model][..], &[][..], "the URL of one server is missing"),
            (&[], &["h:1"], "'--model' is missing"),
            (&[model], &["https://h:1"], "not https://"),
            (&[model], &["grpc://h:1"], "not grpc://"),
            (&[model], &["http://h"], "needs a host and a port"),
            (&[model, ("seconds", "0")], &["h:1"], "'--seconds' takes a number from 1 on"),
            (&[model, ("files", "9999999999")], &["h:1"], "'--files' is too large"),
            (&[model, ("header", "a")], &["h:1"], "'--header' is NAME:VALUE"),
            (&[model, ("header", "a:b\r\nc:d")], &["h:1"], "'--header' is NAME:VALUE"),
        ] {
            let error = options(given, urls).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
