//! The stop: signals, and the wait for requests in flight.

use std::io;
use std::time::Duration;

use galatea_telemetry::Logger;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that stop the server.
#[derive(Debug)]
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Takes the signals over; must be called inside a runtime.
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the first of them and returns its number.
    pub(crate) async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        }
    }
}

/// Requests were still in flight at the timeout.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expired;

/// Waits until no request is in flight, second by second, and logs each second.
/// Returns the remaining seconds.
///
/// `unload` waits up to the given time and returns how many model versions
/// still have requests.
pub(crate) fn count_down(
    logger: &Logger,
    timeout_secs: u32,
    mut unload: impl FnMut(Duration) -> usize,
) -> Result<u32, Expired> {
    let mut wait = Duration::ZERO;
    for remaining in (0..=timeout_secs).rev() {
        let busy = unload(wait);
        logger.info(format_args!(
            "Timeout {remaining}: Found {busy} model versions that have in-flight inferences"
        ));
        if busy == 0 {
            return Ok(remaining);
        }
        wait = Duration::from_secs(1);
    }
    Err(Expired)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(timeout_secs: u32, busy: &[usize], expected: Result<u32, Expired>, waits: &[u64]) {
        let mut counts = busy.iter().copied();
        let mut waited = Vec::new();
        let result = count_down(&Logger::discarding(), timeout_secs, |wait| {
            waited.push(wait.as_secs());
            counts.next().unwrap()
        });
        assert_eq!(result, expected);
        assert_eq!(waited, waits);
        assert_eq!(counts.next(), None);
    }

    #[test]
    fn an_idle_server_stops_at_once() {
        check(30, &[0], Ok(30), &[0]);
        check(0, &[0], Ok(0), &[0]);
    }

    #[test]
    fn requests_in_flight_get_the_timeout_and_no_more() {
        check(3, &[2, 1, 0], Ok(1), &[0, 1, 1]);
        check(2, &[2, 1, 1], Err(Expired), &[0, 1, 1]);
        check(0, &[1], Err(Expired), &[0]);
    }
}
