//! Drain and stop: from a signal to the exit code.
//!
//! `startup::stop` drives the stop on the main thread; this module has its signals and its
//! countdown. Every state on the way is set once and never taken back: `Phase` of a door,
//! `Server::begin_exit`, `Plan::is_closed`, `Event::Drain` of a scheduler.
//!
//! # The steps
//!
//! 1. **Signal.** [`StopSignals`] takes SIGTERM and SIGINT over before the doors open. The first
//!    one ends the `select!` in `startup::run`, and with it the polls of repositories and gauges
//!    and the trimming of memory. While models load at start, a signal still ends the process as
//!    the system does. A second signal changes nothing.
//! 2. **HTTP.** `OpenDoors::stop` ends the streams of the dashboard and of traffic recordings,
//!    which have no end of their own. It moves the doors of clouds and the HTTP door to
//!    `Phase::Draining`. A connection accepted from now on gets no `CountedConnection` and is closed
//!    unserved. Open ones are served as before, health checks included. `wait_for_connections`
//!    waits until their clients have closed them, or until `RunningDoor::close_if_all_idle` finds all
//!    of them idle for [`PATIENCE_SECS`]. Connections of clouds are not waited for.
//! 3. **gRPC.** After that, the gRPC door drains. `ConnectionEvent::Drain` has each connection
//!    send GOAWAY and end the streams without requests in progress. `refuse_while_stopping`
//!    refuses new inferences with UNAVAILABLE, on old and new connections, and readiness is
//!    false. Calls in progress are finished.
//! 4. **Loads.** [`PATIENCE_SECS`] after the signal, or in step 6 if that comes first,
//!    `Server::give_up_loads` closes the plan. No load begins, warmups end, and orders that wait
//!    fail with `Server exiting`. Models serve on.
//! 5. **Readiness.** `Server::begin_exit`: the server is not ready, and `Server::infer` refuses
//!    every new request. `BucketConnector::give_up` ends the waits for object stores.
//! 6. **Models.** [`count_down`] calls `Server::unload` second by second, on a thread that may
//!    block, while the I/O threads write responses. Each call takes all models out of service, and
//!    waits for the pool of loads and for the reaper. Repository agents are told before, on a thread
//!    of their own (`Withdrawal`): a model whose agents don't return is left.
//! 7. **Queues and lanes.** The last `ModelHandle` of a version gives it to the reaper, which
//!    drains it (`LoadedModel::drain`). The scheduler executes its queue without waiting for
//!    fuller batches, and closes its sequences. `Action::Drained` comes when the queue is empty
//!    and all lanes are free; `Dispatcher::finish_drain` then stops the lanes.
//! 8. **Reaper.** `ReaperThread::destroy` joins the lanes, on whose threads instances are
//!    destroyed, then destroys the model and drops the lease of its repository agents. Versions
//!    are destroyed one after the other; a composing model comes after the last ensemble that
//!    pins it.
//! 9. **Last connections.** `OpenDoors::close_http` moves the HTTP door to `Phase::Closed`, which
//!    cancels what is left there. Doors of clouds have a second first. `OpenDoors::have_written`
//!    gives responses over gRPC a second.
//! 10. **Traces.** `Tracer::stop` has them written. The log needs no flush: a line is in its file
//!     when the call that logs it returns.
//! 11. **Processes.** `children::kill_all` kills the processes that backends started, unless
//!     everything ended ([`Stopped::Whole`]): then they were ended with their models.
//! 12. **Exit code.** `startup::run` drops the doors, of which the one for metrics was open until
//!     now, and `Workers` joins the I/O threads. `startup::end_with` ends the process.
//!
//! | left after step 6 | result | exit code |
//! |---|---|---|
//! | nothing | [`Stopped::Whole`] | 0, from `main` |
//! | loads alone | [`Stopped::WithLoads`] | 0, by `end_process` |
//! | versions, at the timeout | [`DrainTimeout`] | 1, by `end_process`, without step 9 |
//!
//! `end_process` runs no exit handler of a library, because that library may be executing.
//!
//! # Limits of time
//!
//! `--exit-timeout-secs` is spent once: step 2 leaves its rest to step 3, and that to step 6.
//!
//! | holds the stop | for at most |
//! |---|---|
//! | a request that arrives, waits or is executed | the exit timeout |
//! | a connection without a request | [`PATIENCE_SECS`] after the door's last request |
//! | a gRPC connection without a call, beside busy ones | `GOAWAY_TIME_MAX` of the door |
//! | a handshake of TLS or HTTP/2 | not at all: it gives its `CountedConnection` back |
//! | a load: `initialize`, a download, a slow disk | [`PATIENCE_SECS`] of step 6 |
//! | a model or instance that is being destroyed | the exit timeout |
//! | a response that its client does not read | the exit timeout, or a second in step 9 |
//! | traces | `STOP_TIME_MAX` of the tracer |
//! | a readiness check or a change of instances, which holds its version | the exit timeout |
//! | an order, which blocks for its call | [`PATIENCE_SECS`] of step 12 |
//! | a repository agent that is told of the unload in step 6 | the exit timeout |
//!
//! # Races
//!
//! - **A connection is accepted while its door begins to drain.** `Acceptor` reads the phase
//!   before it counts the connection, so step 2 or 3 may end with a count of zero in between.
//!   Over HTTP the connection is served until step 9. Over gRPC it registers before it reads the
//!   phase again (`DoorContext::register`), and `announce` reads the registrations after the
//!   phase was set: one of both tells it to drain. Its requests are served before step 5 and
//!   refused after.
//! - **A request arrives on an HTTP connection that is closed as idle.** `Activity` is one atomic
//!   word. Either the request makes the connection busy first, and it stays, or `evict` wins, and
//!   the connection ends before a byte of a response. A client repeats that request, as it must
//!   on any connection that is kept alive.
//! - **A request passes the check of step 5 before it is set.** It finds its version in a
//!   snapshot, and holds that until it is queued, so the version drains afterwards; or it finds
//!   none, and is refused by that. `Reaper::wait_idle` counts a version from its publication until
//!   it is destroyed, so step 6 waits while a snapshot, a readiness check or a change of instances
//!   still holds it. Steps 2 and 3 waited for the connections of such requests; those of clouds, or
//!   at the timeout, can be cut off by step 9.
//! - **A load ends in step 4.** `Plan::publish` and `give_up_loads` take the manager's lock:
//!   versions that were published first are withdrawn in step 6, later ones are abandoned.
//! - **An order or a scan goes on after step 4.** `Plan::set_desired` takes no model in, and
//!   `Driver::wait_until` fails. What a scan no longer finds may still go out of service.
//! - **A version is retired while another is destroyed.** The end of an ensemble retires the
//!   versions that it pinned, and the end of a version its agents. `Reaper` counts those before
//!   it counts off what held them, so `wait_idle` never reads zero in between.
//! - **The last batch ends on its lane's own thread.** The lane cannot join itself:
//!   `finish_drain` only sends a message, and the reaper joins. Another message may let the
//!   reaper see `is_drained` and destroy the version first; then this one does nothing.
//! - **An executing model calls another after step 5.** `Server::infer` refuses the call like any
//!   request. The steps of an ensemble go on, because it pins their versions (`PinnedModels`).
//! - **A decoupled model responds after its execution.** Step 7 does not wait for such responses,
//!   as `crates/engine/src/manager/mod.rs` tells; step 8 does for those of compiled backends. So
//!   does step 3: their calls are in progress.
//! - **Metrics are read while a version is destroyed.** `Snapshot::draining` shares the version
//!   for a moment, and the reader may drop the last share. The lanes are joined by then, so that
//!   thread destroys a model which nothing executes.
//! - **A scheduler breaks while it drains.** `DispatcherState::fail_all` replies to every queued
//!   request and reports the drain itself.
//!
//! A server inside another program takes steps 5 to 8 alone (`RunningServer::stop`, made in
//! `make`): its doors are closed by the program, and loads have the whole time
//! ([`LoadsAtShutdown::Awaited`]).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use galatea_engine::RemainingUnloads;
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

/// Waits for a signal on a thread of its own. The value becomes true when it comes.
pub(crate) fn stop_on_signal() -> Result<Arc<AtomicBool>, String> {
    let error = |error: io::Error| format!("can't wait for signals: {error}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.map_err(error)?;
    let mut signals = runtime.block_on(async { StopSignals::catch() }).map_err(error)?;
    let is_stopped = Arc::new(AtomicBool::new(false));
    let stopped = is_stopped.clone();
    let wait = move || {
        runtime.block_on(signals.next());
        stopped.store(true, Ordering::Release);
    };
    thread::Builder::new().name(String::from("signals")).spawn(wait).map_err(error)?;
    Ok(is_stopped)
}

/// Requests were still in flight at the timeout.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DrainTimeout;

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
pub(crate) enum LoadsAtShutdown {
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
    loads_in_progress: LoadsAtShutdown,
    mut unload: impl FnMut(Duration) -> RemainingUnloads,
) -> Result<Stopped, DrainTimeout> {
    let patience_secs = PATIENCE_SECS.min(timeout_secs);
    let mut wait = Duration::ZERO;
    for waited in 0..=timeout_secs {
        let RemainingUnloads { loads, versions } = unload(wait);
        let (remaining, busy) = (timeout_secs - waited, loads.saturating_add(versions));
        logger.info(format_args!(
            "Timeout {remaining}: Found {busy} model versions that have in-flight inferences"
        ));
        let is_patient =
            matches!(loads_in_progress, LoadsAtShutdown::Awaited) || waited < patience_secs;
        match (versions, loads) {
            (0, 0) => return Ok(Stopped::Whole),
            (0, _) if !is_patient => return Ok(Stopped::WithLoads(loads)),
            _ => wait = Duration::from_secs(1),
        }
    }
    Err(DrainTimeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        (timeout_secs, loads_in_progress): (u32, LoadsAtShutdown),
        left: &[(usize, usize)],
        expected: Result<Stopped, DrainTimeout>,
    ) {
        let mut left = left.iter().copied();
        let mut waited = Vec::new();
        let result = count_down(&Logger::discarding(), timeout_secs, loads_in_progress, |wait| {
            waited.push(wait.as_secs());
            let (loads, versions) = left.next().unwrap();
            RemainingUnloads { loads, versions }
        });
        assert_eq!(result, expected);
        assert_eq!(waited.iter().position(|wait| *wait != 0).unwrap_or(1), 1, "{waited:?}");
        assert_eq!(left.next(), None);
    }

    #[test]
    fn an_idle_server_stops_at_once() {
        check((30, LoadsAtShutdown::GivenUp), &[(0, 0)], Ok(Stopped::Whole));
        check((0, LoadsAtShutdown::GivenUp), &[(0, 0)], Ok(Stopped::Whole));
    }

    #[test]
    fn requests_in_flight_get_the_timeout_and_no_more() {
        for loads in [LoadsAtShutdown::GivenUp, LoadsAtShutdown::Awaited] {
            check((3, loads), &[(0, 2), (0, 1), (0, 0)], Ok(Stopped::Whole));
            check((2, loads), &[(0, 2), (1, 1), (0, 1)], Err(DrainTimeout));
            check((0, loads), &[(0, 1)], Err(DrainTimeout));
        }
    }

    #[test]
    fn loads_get_their_patience_unless_the_process_lives_on() {
        check((30, LoadsAtShutdown::GivenUp), &[(1, 0), (1, 0), (0, 0)], Ok(Stopped::Whole));
        check((30, LoadsAtShutdown::GivenUp), &[(2, 0), (2, 0), (1, 0)], Ok(Stopped::WithLoads(1)));
        // Requests are waited for as before.
        let busy = [(1, 1), (1, 1), (1, 1), (1, 1), (1, 0)];
        check((30, LoadsAtShutdown::GivenUp), &busy, Ok(Stopped::WithLoads(1)));
        check((3, LoadsAtShutdown::Awaited), &[(1, 0), (1, 0), (1, 0), (1, 0)], Err(DrainTimeout));
    }

    #[test]
    fn loads_that_are_left_at_the_timeout_are_no_failure() {
        check((0, LoadsAtShutdown::GivenUp), &[(1, 0)], Ok(Stopped::WithLoads(1)));
        check((1, LoadsAtShutdown::GivenUp), &[(1, 0), (1, 0)], Ok(Stopped::WithLoads(1)));
        check((0, LoadsAtShutdown::GivenUp), &[(1, 1)], Err(DrainTimeout));
    }
}
