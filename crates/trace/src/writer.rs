//! The thread that writes or sends traces.

use std::time::{Duration, Instant};

use crate::files::TraceFiles;
use crate::otel::exporter::Exporter;
use crate::queue::{CollectedTrace, Message, TraceQueue};

/// The destination to which the thread delivers traces.
#[derive(Debug)]
pub(crate) enum Destination {
    Files(TraceFiles),
    Collector(Box<Exporter>),
}

impl Destination {
    fn add(&mut self, trace: CollectedTrace) -> Result<(), String> {
        match self {
            Self::Files(files) => files.add(&trace).map_err(file_error),
            Self::Collector(exporter) => {
                exporter.add(Instant::now(), trace);
                Ok(())
            }
        }
    }

    /// Handles settings, identified by number, that are no longer in force.
    fn retire(&mut self, setting: u64) -> Result<(), String> {
        match self {
            Self::Files(files) => files.retire(setting).map_err(file_error),
            Self::Collector(_) => Ok(()),
        }
    }

    /// Does the work that is due.
    fn advance(&mut self) -> Result<(), String> {
        match self {
            Self::Files(_) => Ok(()),
            Self::Collector(exporter) => exporter.send_due(Instant::now()),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        match self {
            Self::Files(files) => files.finish().map_err(file_error),
            Self::Collector(exporter) => exporter.finish(),
        }
    }

    fn wait(&self) -> Option<Duration> {
        match self {
            Self::Files(_) => None,
            Self::Collector(exporter) => exporter.time_until_batch(Instant::now()),
        }
    }

    fn dropped_spans(&self) -> u64 {
        match self {
            Self::Files(_) => 0,
            Self::Collector(exporter) => exporter.dropped(),
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn file_error(error: std::io::Error) -> String {
    format!("failed creating trace file: {error}")
}

/// Writes or sends queued traces until the server stops.
pub(crate) fn run(queue: &TraceQueue, mut destination: Destination, log_error: &dyn Fn(&str)) {
    let (mut traces, mut spans) = (DropReporter::default(), DropReporter::default());
    let mut failures = FailureReporter::default();
    let mut report = |result: Result<(), String>| failures.report(result, log_error);
    loop {
        for message in queue.take(destination.wait()) {
            match message {
                Message::Trace(trace) => report(destination.add(trace)),
                Message::Retired(setting) => report(destination.retire(setting)),
                Message::Stop => return report(destination.finish()),
            }
        }
        report(destination.advance());
        traces.report("traces", queue.dropped(), log_error);
        spans.report("spans", destination.dropped_spans(), log_error);
    }
}

/// Reports dropped traces at increasing intervals.
#[derive(Debug, Default)]
struct DropReporter {
    told: u64,
}

impl DropReporter {
    fn report(&mut self, what: &str, dropped: u64, log_error: &dyn Fn(&str)) {
        if dropped > self.told.saturating_mul(2) {
            self.told = dropped;
            log_error(&format!(
                "{dropped} {what} were dropped so far: requests are traced faster than traces are \
                 written or sent"
            ));
        }
    }
}

/// Reports failures, at increasing intervals while they repeat: a disk may be full, or a collector
/// unreachable, for hours.
#[derive(Debug, Default)]
struct FailureReporter {
    last: String,
    count: u64,
}

impl FailureReporter {
    fn report(&mut self, result: Result<(), String>, log_error: &dyn Fn(&str)) {
        let Err(error) = result else { return };
        if error != self.last {
            (self.last, self.count) = (error, 0);
        }
        self.count = self.count.saturating_add(1);
        match self.count {
            1 => log_error(&self.last),
            count if count.is_power_of_two() => {
                log_error(&format!("{}; it failed so {count} times", self.last));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_that_go_on_are_told_of_ever_more_seldom() {
        let lines = std::cell::RefCell::new(Vec::new());
        let mut failures = FailureReporter::default();
        let mut report = |result: Result<(), &str>| {
            let log = |line: &str| lines.borrow_mut().push(line.to_owned());
            failures.report(result.map_err(str::to_owned), &log);
        };
        (0..7).for_each(|_| report(Err("a")));
        report(Ok(()));
        report(Err("b"));
        report(Err("a"));
        let expected = ["a", "a; it failed so 2 times", "a; it failed so 4 times", "b", "a"];
        assert_eq!(lines.into_inner(), expected);
    }

    #[test]
    fn what_is_dropped_is_told_of_ever_more_seldom() {
        let lines = std::cell::RefCell::new(Vec::new());
        let mut losses = DropReporter::default();
        for dropped in [0, 1, 1, 2, 3, 6, 7, 100] {
            losses.report("traces", dropped, &|_| lines.borrow_mut().push(dropped));
        }
        assert_eq!(lines.into_inner(), [1, 3, 7, 100]);
    }
}
