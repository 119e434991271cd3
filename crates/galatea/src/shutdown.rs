//! Drain and stop: from a signal to the exit code.
//!
//! `startup::stop` drives the stop on the main thread; this module provides the signals and the
//! countdown. Every state along the way is set once and never reset: `Phase` of a door,
//! `Server::begin_exit`, `Plan::is_closed`, `Event::Drain` of a scheduler.
//!
//! # The steps
//!
//! 1. **Signal.** [`StopSignals`] takes over SIGTERM and SIGINT before the doors open. The first
//!    one ends the `select!` in `startup::run`, and with it repository polling, gauge polling and
//!    memory trimming. While models load at startup, a signal still terminates the process through
//!    its default action. A second signal changes nothing.
//! 2. **HTTP.** `OpenDoors::stop` ends the streams of the dashboard and of traffic recordings,
//!    which never end by themselves. It moves the cloud doors and the HTTP door to
//!    `Phase::Draining`. A connection accepted from now on gets no `CountedConnection`, and is
//!    closed without being served. Open connections are served as before, including health checks.
//!    `wait_for_connections` waits until their clients have closed them, or until
//!    `RunningDoor::close_if_all_idle` finds all of them idle for [`PATIENCE_SECS`]. The stop does
//!    not wait for cloud connections.
//! 3. **gRPC.** The gRPC door drains next. On `ConnectionEvent::Drain`, each connection sends
//!    GOAWAY and ends the streams that have no request in progress. `refuse_while_stopping` rejects
//!    new inferences with UNAVAILABLE, on old and new connections, and the server reports that it
//!    is not ready. Calls in progress run to completion.
//! 4. **Loads.** [`PATIENCE_SECS`] after the signal, or in step 6 if that comes first,
//!    `Server::cancel_pending_loads` closes the plan. No new load begins, warmups end, and waiting
//!    load or unload requests fail with `Server exiting`. Models keep serving.
//! 5. **Readiness.** `Server::begin_exit`: the server is no longer ready, and `Server::infer`
//!    rejects every new request. `BucketConnector::abort_requests` aborts waits for object stores.
//! 6. **Models.** [`count_down`] calls `Server::unload_all_detailed` once a second, on a blocking
//!    thread, while the I/O threads write responses. Each call takes all models out of service,
//!    then waits for the load pool and the reaper. Repository agents are notified first, on a
//!    separate thread (`Withdrawal`): if a model's agents don't return, the model is left alone.
//! 7. **Queues and lanes.** Dropping a version's last `ModelHandle` passes the version to the
//!    reaper, which drains it (`LoadedModel::drain`). The scheduler executes its queue without
//!    waiting for fuller batches, and closes its sequences. It emits `Action::Drained` when the
//!    queue is empty and all lanes are free; `Dispatcher::finish_drain` then stops the lanes.
//! 8. **Reaper.** `ReaperThread::destroy` joins the lanes, whose threads destroy the instances,
//!    then destroys the model and drops the lease of its repository agents. Versions are destroyed
//!    one at a time; a composing model is destroyed after the last ensemble that pins it.
//! 9. **Last connections.** `OpenDoors::close_http` moves the HTTP door to `Phase::Closed`, which
//!    cancels the remaining requests. Cloud doors get a second of grace first.
//!    `OpenDoors::have_written` allows gRPC responses a second to be written.
//! 10. **Traces.** `Tracer::stop` writes out the traces. The log needs no flush: a line is in the
//!     file by the time the logging call returns.
//! 11. **Processes.** `children::kill_all` kills the processes that backends started, unless
//!     everything stopped ([`Stopped::Whole`]): in that case they ended with their models.
//! 12. **Exit code.** `startup::run` drops the doors, and `Workers` joins the I/O threads. The
//!     metrics door stays open until this point. `startup::end_with` ends the process.
//!
//! | left after step 6 | result | exit code |
//! |---|---|---|
//! | nothing | [`Stopped::Whole`] | 0, from `main` |
//! | loads alone | [`Stopped::WithLoads`] | 0, by `exit_without_destructors` |
//! | versions, at the timeout | [`DrainTimeout`] | 1, by `exit_without_destructors`, without step 9 |
//!
//! `exit_without_destructors` skips the exit handlers of libraries, because a library may still be
//! executing.
//!
//! # Limits of time
//!
//! The steps share a single `--exit-timeout-secs`: step 3 gets what step 2 leaves, and step 6 what
//! step 3 leaves.
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
//! - **A connection is accepted while its door begins to drain.** `Acceptor` reads the phase before
//!   it counts the connection, so step 2 or 3 may end with a count of zero in between. An HTTP
//!   connection is served until step 9. A gRPC connection registers before it reads the phase again
//!   (`DoorContext::register`), and `announce` reads the registrations after the phase is set, so
//!   at least one of the two makes it drain. Its requests are served before step 5 and rejected
//!   afterwards.
//! - **A request arrives on an HTTP connection that is closed as idle.** `ConnectionActivity` is
//!   one atomic word. Either the request marks the connection busy first and the connection stays
//!   open, or `evict` wins and the connection ends before any byte of a response. The client then
//!   retries the request, as it must on any keep-alive connection.
//! - **A request passes the check of step 5 before it is set.** Either it finds its version in a
//!   snapshot and holds the snapshot until it is queued, so the version drains afterwards, or it
//!   finds no version and is rejected. `Reaper::wait_idle` counts a version from its publication
//!   until it is destroyed, so step 6 waits while a snapshot, a readiness check or a change of
//!   instances still holds it. Steps 2 and 3 have already waited for the connections of such
//!   requests; step 9 can cut off cloud connections, and any connection at the timeout.
//! - **A load ends in step 4.** `Plan::publish` and `give_up_loads` take the manager's lock:
//!   versions published first are withdrawn in step 6, and later ones are abandoned.
//! - **An order or a scan continues after step 4.** `Plan::set_desired` accepts no model, and
//!   `Driver::wait_until` fails. Models that a scan no longer finds may still go out of service.
//! - **A version is retired while another is destroyed.** Destroying an ensemble retires the
//!   versions that it pinned, and destroying a version retires its agents. `Reaper` counts the
//!   newly retired items before it stops counting their holder, so `wait_idle` never reads zero in
//!   between.
//! - **The last batch ends on its lane's own thread.** The lane cannot join itself: `finish_drain`
//!   only sends a message, and the reaper joins. If another message makes the reaper see
//!   `is_drained` and destroy the version first, this one has no effect.
//! - **An executing model calls another after step 5.** `Server::infer` rejects the call like any
//!   other request. An ensemble's steps continue, because the ensemble pins their versions
//!   (`PinnedModels`).
//! - **A decoupled model responds after its execution.** Step 7 does not wait for such responses,
//!   as `crates/engine/src/manager/mod.rs` explains. Step 8 does wait for responses of compiled
//!   backends, and so does step 3, because their calls are in progress.
//! - **Metrics are read while a version is destroyed.** `Snapshot::draining` briefly shares the
//!   version, and the reader may drop the last reference. The lanes are joined by then, so the
//!   reader's thread destroys a model that nothing executes.
//! - **A scheduler breaks while it drains.** `DispatcherState::fail_all` replies to every queued
//!   request and reports the drain itself.
//!
//! A server embedded in another program only goes through steps 5 to 8 (`RunningServer::stop`,
//! created in `make`): the program closes the doors, and loads get the whole timeout
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
    /// Takes over the signals. Must be called from within a runtime.
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the first signal and returns its number.
    pub(crate) async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        }
    }
}

/// Waits for a signal on a dedicated thread. The returned flag becomes true when the signal
/// arrives.
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

/// The error for a shutdown whose timeout passed while requests were in flight.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DrainTimeout;

/// The number of seconds that shutdown waits for loads and idle connections. No client would miss
/// them, but they may be about to end by themselves.
pub(crate) const PATIENCE_SECS: u32 = 2;

/// The result of a stop: the models are out of service, and every request has its response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// Nothing is left.
    Whole,
    /// This number of version tasks is still running. No client waits for their results, and they
    /// may be stuck.
    WithLoads(usize),
}

/// The treatment of loads that are in progress at shutdown.
#[derive(Copy, Clone, Debug)]
pub(crate) enum LoadsAtShutdown {
    /// Loads get the whole timeout, because the process lives on.
    Awaited,
    /// Loads end with the process.
    GivenUp,
}

/// Waits until no request is in flight, logging once a second.
///
/// `unload` waits up to the given time and returns what remains.
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
        // The stop still waits for requests.
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
