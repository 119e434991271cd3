//! Reading of whole traffic files.

use std::fmt;
use std::io::{self, BufRead};

use crate::line::{RecordedExecution, RecordedRequest, TrafficHeader, TrafficLine};

/// The maximum length of a line, in bytes. The header contains a configuration.
const LINE_BYTES_MAX: usize = 16 << 20;

/// The contents of a file, in line order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedTraffic {
    /// The recorded model and server.
    pub header: TrafficHeader,
    /// The requests, in arrival order.
    pub requests: Vec<RecordedRequest>,
    /// The executions, in the order in which they ended.
    pub executions: Vec<RecordedExecution>,
    /// Number of requests and executions that weren't recorded.
    pub lost: u64,
}

/// The reason why a file can't be read.
#[derive(Debug)]
pub struct ReadError {
    /// The line number, or 0 if the error doesn't concern a single line.
    line: usize,
    reason: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.reason),
            line => write!(f, "line {line}: {}", self.reason),
        }
    }
}

impl std::error::Error for ReadError {}

impl RecordedTraffic {
    /// Reads a file. An unterminated last line, left behind by a killed recording, counts as lost.
    ///
    /// # Errors
    ///
    /// Returns an error for the first invalid line.
    pub fn read(file: &mut dyn BufRead) -> Result<Self, ReadError> {
        let mut traffic = Self::default();
        let mut text = Vec::new();
        for number in 1.. {
            text.clear();
            let length = read_line(file, &mut text)
                .map_err(|error| ReadError { line: number, reason: error.to_string() })?;
            if length == 0 {
                break;
            }
            let line = std::str::from_utf8(&text).map_err(|error| error.to_string());
            match line.and_then(TrafficLine::parse) {
                Ok(line) => traffic
                    .add(line, number)
                    .map_err(|reason| ReadError { line: number, reason })?,
                Err(_) if number > 1 && !text.ends_with(b"\n") => traffic.lost += 1,
                Err(reason) => return Err(ReadError { line: number, reason }),
            }
        }
        if traffic.header.model.is_empty() {
            let reason =
                String::from("it is empty: the first line of a file of traffic is missing");
            return Err(ReadError { line: 0, reason });
        }
        traffic.requests.sort_by_key(|request| request.at_ns);
        Ok(traffic)
    }

    fn add(&mut self, line: TrafficLine, number: usize) -> Result<(), String> {
        match line {
            TrafficLine::Header(header) if number == 1 => self.header = header,
            TrafficLine::Header(_) => return Err(String::from("only the first line is a header")),
            _ if number == 1 => {
                return Err(String::from(
                    "the first line of a file of traffic has 'galatea_traffic'",
                ));
            }
            TrafficLine::Request(request) => self.requests.push(request),
            TrafficLine::Execution(execution) => self.executions.push(execution),
            TrafficLine::Lost(count) => self.lost = self.lost.saturating_add(count),
            TrafficLine::End(_) => {}
        }
        Ok(())
    }

    /// Adds another file of the same recording.
    ///
    /// # Errors
    ///
    /// Returns an error if the file belongs to another recording.
    pub fn join(&mut self, other: Self) -> Result<(), String> {
        let identity =
            |header: &TrafficHeader| (header.model.clone(), header.version, header.began_ms);
        if identity(&self.header) != identity(&other.header) {
            return Err(format!(
                "the files are not of one recording: of model '{}' version {}, and of '{}' version {}",
                self.header.model, self.header.version, other.header.model, other.header.version
            ));
        }
        self.requests.extend(other.requests);
        self.requests.sort_by_key(|request| request.at_ns);
        self.executions.extend(other.executions);
        self.lost = self.lost.saturating_add(other.lost);
        Ok(())
    }
}

/// Reads a line including its newline. Returns 0 at the end of the file.
fn read_line(file: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    let limit = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
    let length = io::Read::take(file, limit).read_until(b'\n', line)?;
    if length == LINE_BYTES_MAX {
        return Err(io::Error::other("the line is too long"));
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "{\"galatea_traffic\":1,\"model\":\"m\",\"version\":1}\n";

    fn read(text: &str) -> Result<RecordedTraffic, String> {
        RecordedTraffic::read(&mut text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn requests_are_ordered_by_arrival_and_losses_are_counted() {
        let lines = "{\"at_ns\":5,\"rows\":1}\n{\"lost\":2}\n{\"at_ns\":3,\"rows\":1}\n";
        let traffic = read(&format!("{HEADER}{lines}{{\"at_ns\":9,\"ro")).unwrap();
        let arrivals: Vec<u64> = traffic.requests.iter().map(|request| request.at_ns).collect();
        assert_eq!((arrivals, traffic.lost), (vec![3, 5], 3));
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        for (text, expected) in [
            ("", "it is empty: the first line of a file of traffic is missing"),
            ("{\"at_ns\":5,\"rows\":1}\n", "line 1: the first line of a file of traffic has"),
            ("name: \"m\"\n", "line 1: "),
            ("\u{1}\n", "line 1: "),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let twice = read(&format!("{HEADER}{HEADER}")).unwrap_err();
        assert_eq!(twice, "line 2: only the first line is a header");
        let broken = read(&format!("{HEADER}{{\"at_ns\":9\n")).unwrap_err();
        assert!(broken.starts_with("line 2: "), "{broken}");
    }

    #[test]
    fn files_of_one_recording_are_joined() {
        let mut first = read(&format!("{HEADER}{{\"at_ns\":5,\"rows\":1}}\n")).unwrap();
        first.join(read(&format!("{HEADER}{{\"at_ns\":1,\"rows\":1}}\n")).unwrap()).unwrap();
        assert_eq!(first.requests[0].at_ns, 1);
        let other = read(&HEADER.replace("\"m\"", "\"n\"")).unwrap();
        assert!(first.join(other).unwrap_err().contains("of model 'm' version 1, and of 'n'"));
    }
}
