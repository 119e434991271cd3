//! The stop: signals, and the wait for requests in flight.

use std::io;
use std::time::Duration;

use galatea_engine::Remainder;
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

/// For how many seconds the end waits for what no client can lose: loads, and connections
/// that are idle. Both may be about to end by themselves.
pub(crate) const PATIENCE_SECS: u32 = 2;

/// The models are out of service, and every request has its response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// Nothing is left.
    Whole,
    /// So much work on versions goes on, whose results no client waits for. It may be stuck.
    WithLoads(usize),
}

/// The fate of loads that are in progress.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Loads {
    /// They have the whole time: the process lives on.
    Awaited,
    /// They end with the process.
    GivenUp,
}

/// Waits until no request is in flight, second by second, and logs each second.
///
/// `unload` waits up to the given time and returns what is left.
pub(crate) fn count_down(
    logger: &Logger,
    timeout_secs: u32,
    loads_in_progress: Loads,
    mut unload: impl FnMut(Duration) -> Remainder,
) -> Result<Stopped, Expired> {
    let mut wait = Duration::ZERO;
    for waited in 0..=timeout_secs {
        let Remainder { loads, versions } = unload(wait);
        let (remaining, busy) = (timeout_secs - waited, loads.saturating_add(versions));
        logger.info(format_args!(
            "Timeout {remaining}: Found {busy} model versions that have in-flight inferences"
        ));
        let is_patient = matches!(loads_in_progress, Loads::Awaited) || waited < PATIENCE_SECS;
        match (versions, loads) {
            (0, 0) => return Ok(Stopped::Whole),
            (0, _) if !is_patient => return Ok(Stopped::WithLoads(loads)),
            _ => wait = Duration::from_secs(1),
        }
    }
    Err(Expired)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        (timeout_secs, loads_in_progress): (u32, Loads),
        left: &[(usize, usize)],
        expected: Result<Stopped, Expired>,
    ) {
        let mut left = left.iter().copied();
        let mut waited = Vec::new();
        let result = count_down(&Logger::discarding(), timeout_secs, loads_in_progress, |wait| {
            waited.push(wait.as_secs());
            let (loads, versions) = left.next().unwrap();
            Remainder { loads, versions }
        });
        assert_eq!(result, expected);
        assert_eq!(waited.iter().position(|wait| *wait != 0).unwrap_or(1), 1, "{waited:?}");
        assert_eq!(left.next(), None);
    }

    #[test]
    fn an_idle_server_stops_at_once() {
        check((30, Loads::GivenUp), &[(0, 0)], Ok(Stopped::Whole));
        check((0, Loads::GivenUp), &[(0, 0)], Ok(Stopped::Whole));
    }

    #[test]
    fn requests_in_flight_get_the_timeout_and_no_more() {
        for loads in [Loads::GivenUp, Loads::Awaited] {
            check((3, loads), &[(0, 2), (0, 1), (0, 0)], Ok(Stopped::Whole));
            check((2, loads), &[(0, 2), (1, 1), (0, 1)], Err(Expired));
            check((0, loads), &[(0, 1)], Err(Expired));
        }
    }

    #[test]
    fn loads_get_their_patience_unless_the_process_lives_on() {
        check((30, Loads::GivenUp), &[(1, 0), (1, 0), (0, 0)], Ok(Stopped::Whole));
        check((30, Loads::GivenUp), &[(2, 0), (2, 0), (1, 0)], Ok(Stopped::WithLoads(1)));
        // Requests are waited for as before.
        let busy = [(1, 1), (1, 1), (1, 1), (1, 1), (1, 0)];
        check((30, Loads::GivenUp), &busy, Ok(Stopped::WithLoads(1)));
        check((3, Loads::Awaited), &[(1, 0), (1, 0), (1, 0), (1, 0)], Err(Expired));
    }
}
