//! The lifecycle of a worker process: when it is restarted, given up and ended.
//!
//! A worker serves one instance of a model. [`WorkerProcessLifecycle`] decides what to do about the
//! worker; its driver owns the process and performs the actions (`backend-python/supervisor.rs`,
//! which describes the protocol for a worker's death).
//!
//! - A lost worker is given up exactly once, and its requests fail. A worker that breaks the rules
//!   or takes too long is killed immediately. A worker that closes its sockets gets a moment to end
//!   by itself, so that its exit status reveals the cause.
//! - The next worker is started when the process has ended, never before. The first
//!   [`STARTS_AT_ONCE`] consecutive ends lead to an immediate start; further ones lead to pauses
//!   that double. For each [`FORGIVENESS_NS`] that a worker serves, one earlier end is forgiven, so
//!   a model that crashes now and then but responds to most requests is never kept from serving.
//! - Requests wait while a worker is being started and during pauses of up to [`SHORT_PAUSE_NS`].
//!   They fail during longer pauses and, after a failed start, until a start succeeds.
//! - When an instance ends, its worker finalizes the model. The worker is then asked to end, and is
//!   killed if it doesn't.

use crate::time::Time;

/// The time that a worker has to end by itself after its sockets have ended.
pub const EXIT_GRACE_NS: u64 = 200_000_000;
/// The time that a worker has to end after it was asked to do so.
pub const TERMINATION_NS: u64 = 1_000_000_000;
/// The number of consecutive workers that are started without a pause.
pub const STARTS_AT_ONCE: u32 = 3;
/// The first pause. Each further one is twice as long.
pub const PAUSE_MIN_NS: u64 = 100_000_000;
/// The maximum pause.
pub const PAUSE_MAX_NS: u64 = 30_000_000_000;
/// The longest pause during which requests wait.
pub const SHORT_PAUSE_NS: u64 = 1_000_000_000;
/// The serving time that makes up for one earlier end.
pub const FORGIVENESS_NS: u64 = 250_000_000;

/// An event in a worker's lifecycle.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum WorkerProcessEvent {
    /// The requested start succeeded.
    Started,
    /// The requested start failed and left no process behind.
    StartFailed,
    /// The worker's sockets ended.
    SocketsEnded,
    /// The worker broke the rules or took too long, so it can't be used any more.
    Failed,
    /// The worker's process has ended.
    Exited,
    /// The instance ends.
    Stop,
    /// Time has passed.
    Tick,
}

/// An action for the driver.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum WorkerProcessAction {
    /// Start a worker.
    Start,
    /// Fail the requests that the worker has, and close its sockets.
    GiveUp,
    /// Ask the worker to finalize its model and to end.
    Finalize,
    /// Ask the process to end.
    Terminate,
    /// End the process.
    Kill,
}

/// The worker's state as seen by a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum WorkerProcessStatus {
    /// The worker accepts the request.
    Serving,
    /// The request waits for a start that is in progress or follows immediately.
    Starting,
    /// The request fails: the next start comes later, or the last one failed.
    Broken,
    /// The request fails: the instance is ending.
    Stopped,
}

/// The events that the driver waits for, apart from time.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum WorkerProcessAwaits {
    /// Messages from the worker, and the end of its process.
    Messages,
    /// The end of the worker's process.
    Exit,
    /// Nothing, because there is no process.
    Pause,
    /// The end of a start.
    Start,
    /// Nothing, because the worker's lifecycle is over.
    Over,
}

/// The lifecycle of the successive workers of one instance.
#[derive(Clone, Debug)]
pub struct WorkerProcessLifecycle {
    state: WorkerState,
    /// The time that finalization may take.
    finalize_ns: u64,
    /// The number of ends and failed starts that haven't been made up for.
    ended_in_a_row: u32,
    has_start_failed: bool,
    is_stopping: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum WorkerState {
    Serving {
        since: Time,
    },
    Finalizing {
        until: Time,
    },
    /// The process is about to end after having served for `served_ns`.
    Ending {
        served_ns: u64,
        urgency: EndStage,
        is_given_up: bool,
    },
    Pausing {
        until: Time,
        is_short: bool,
    },
    Starting,
    Over,
}

/// The stage of ending a process.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum EndStage {
    /// The process has until this time to end by itself.
    Left {
        until: Time,
    },
    /// The process was asked to end and has until this time.
    Asked {
        until: Time,
    },
    Killed,
}

impl WorkerProcessLifecycle {
    /// Creates the lifecycle of a worker that serves from now on.
    #[must_use]
    pub const fn new_serving(now: Time, finalize_ns: u64) -> Self {
        Self {
            state: WorkerState::Serving { since: now },
            finalize_ns,
            ended_in_a_row: 0,
            has_start_failed: false,
            is_stopping: false,
        }
    }

    /// Returns the worker's current state as seen by a request.
    #[must_use]
    pub const fn status(&self) -> WorkerProcessStatus {
        match self.state {
            _ if self.is_stopping => WorkerProcessStatus::Stopped,
            WorkerState::Serving { .. } => WorkerProcessStatus::Serving,
            WorkerState::Pausing { is_short: false, .. } => WorkerProcessStatus::Broken,
            WorkerState::Pausing { .. } | WorkerState::Starting if self.has_start_failed => {
                WorkerProcessStatus::Broken
            }
            _ => WorkerProcessStatus::Starting,
        }
    }

    /// Returns the events that the driver waits for.
    #[must_use]
    pub const fn awaited_events(&self) -> WorkerProcessAwaits {
        match self.state {
            WorkerState::Serving { .. } | WorkerState::Finalizing { .. } => {
                WorkerProcessAwaits::Messages
            }
            WorkerState::Ending { .. } => WorkerProcessAwaits::Exit,
            WorkerState::Pausing { .. } => WorkerProcessAwaits::Pause,
            WorkerState::Starting => WorkerProcessAwaits::Start,
            WorkerState::Over => WorkerProcessAwaits::Over,
        }
    }

    /// Returns the time of the next change that time alone causes: a [`WorkerProcessEvent::Tick`]
    /// is due then.
    #[must_use]
    pub const fn next_wakeup(&self) -> Option<Time> {
        match self.state {
            WorkerState::Finalizing { until }
            | WorkerState::Pausing { until, .. }
            | WorkerState::Ending {
                urgency: EndStage::Left { until } | EndStage::Asked { until },
                ..
            } => Some(until),
            WorkerState::Serving { .. }
            | WorkerState::Ending { .. }
            | WorkerState::Starting
            | WorkerState::Over => None,
        }
    }

    /// Handles an event and adds the resulting actions.
    pub fn step(
        &mut self,
        now: Time,
        event: WorkerProcessEvent,
        actions: &mut Vec<WorkerProcessAction>,
    ) {
        match event {
            WorkerProcessEvent::Started => self.started(now, actions),
            WorkerProcessEvent::StartFailed => self.start_failed(now),
            WorkerProcessEvent::SocketsEnded => self.sockets_ended(now),
            WorkerProcessEvent::Failed => self.failed(now, actions),
            WorkerProcessEvent::Exited => self.exited(now, actions),
            WorkerProcessEvent::Stop => self.stop(now, actions),
            WorkerProcessEvent::Tick => self.tick(now, actions),
        }
    }

    fn started(&mut self, now: Time, actions: &mut Vec<WorkerProcessAction>) {
        if self.state != WorkerState::Starting {
            return;
        }
        self.has_start_failed = false;
        self.state = WorkerState::Serving { since: now };
        if self.is_stopping {
            self.finalize(now, actions);
        }
    }

    fn start_failed(&mut self, now: Time) {
        if self.state != WorkerState::Starting {
            return;
        }
        self.has_start_failed = true;
        if self.is_stopping {
            self.state = WorkerState::Over;
            return;
        }
        // What fails to start is never retried immediately.
        self.ended_in_a_row = self.ended_in_a_row.max(STARTS_AT_ONCE).saturating_add(1);
        self.pause(now);
    }

    fn sockets_ended(&mut self, now: Time) {
        let served_ns = match self.state {
            WorkerState::Serving { since } => now.saturating_since(since),
            WorkerState::Finalizing { .. } => 0,
            _ => return,
        };
        let urgency = EndStage::Left { until: now.saturating_add(EXIT_GRACE_NS) };
        self.state = WorkerState::Ending { served_ns, urgency, is_given_up: false };
    }

    fn failed(&mut self, now: Time, actions: &mut Vec<WorkerProcessAction>) {
        let served_ns = match self.state {
            WorkerState::Serving { since } => now.saturating_since(since),
            WorkerState::Finalizing { .. } => 0,
            _ => return,
        };
        actions.extend([WorkerProcessAction::GiveUp, WorkerProcessAction::Kill]);
        self.state =
            WorkerState::Ending { served_ns, urgency: EndStage::Killed, is_given_up: true };
    }

    fn exited(&mut self, now: Time, actions: &mut Vec<WorkerProcessAction>) {
        let (served_ns, is_given_up) = match self.state {
            WorkerState::Serving { since } => (now.saturating_since(since), false),
            WorkerState::Finalizing { .. } => (0, false),
            WorkerState::Ending { served_ns, is_given_up, .. } => (served_ns, is_given_up),
            WorkerState::Pausing { .. } | WorkerState::Starting | WorkerState::Over => return,
        };
        if !is_given_up {
            actions.push(WorkerProcessAction::GiveUp);
        }
        if self.is_stopping {
            self.state = WorkerState::Over;
            return;
        }
        let forgiven = u32::try_from(served_ns / FORGIVENESS_NS).unwrap_or(u32::MAX);
        self.ended_in_a_row = self.ended_in_a_row.saturating_sub(forgiven).saturating_add(1);
        if self.pause_ns() == 0 {
            self.start(actions);
        } else {
            self.pause(now);
        }
    }

    fn stop(&mut self, now: Time, actions: &mut Vec<WorkerProcessAction>) {
        if std::mem::replace(&mut self.is_stopping, true) {
            return;
        }
        match self.state {
            WorkerState::Serving { .. } => self.finalize(now, actions),
            WorkerState::Pausing { .. } => self.state = WorkerState::Over,
            WorkerState::Finalizing { .. }
            | WorkerState::Ending { .. }
            | WorkerState::Starting
            | WorkerState::Over => {}
        }
    }

    fn tick(&mut self, now: Time, actions: &mut Vec<WorkerProcessAction>) {
        match self.state {
            WorkerState::Finalizing { until } if now >= until => {
                actions.push(WorkerProcessAction::Terminate);
                let urgency = EndStage::Asked { until: now.saturating_add(TERMINATION_NS) };
                self.state = WorkerState::Ending { served_ns: 0, urgency, is_given_up: false };
            }
            WorkerState::Ending { served_ns, urgency, is_given_up } => {
                let urgency = urge(now, urgency, actions);
                self.state = WorkerState::Ending { served_ns, urgency, is_given_up };
            }
            WorkerState::Pausing { until, .. } if now >= until => self.start(actions),
            WorkerState::Finalizing { .. }
            | WorkerState::Pausing { .. }
            | WorkerState::Serving { .. }
            | WorkerState::Starting
            | WorkerState::Over => {}
        }
    }

    fn finalize(&mut self, now: Time, actions: &mut Vec<WorkerProcessAction>) {
        actions.push(WorkerProcessAction::Finalize);
        self.state = WorkerState::Finalizing { until: now.saturating_add(self.finalize_ns) };
    }

    fn start(&mut self, actions: &mut Vec<WorkerProcessAction>) {
        actions.push(WorkerProcessAction::Start);
        self.state = WorkerState::Starting;
    }

    fn pause(&mut self, now: Time) {
        let pause_ns = self.pause_ns();
        let until = now.saturating_add(pause_ns);
        self.state = WorkerState::Pausing { until, is_short: pause_ns <= SHORT_PAUSE_NS };
    }

    /// Returns the pause before the next start.
    fn pause_ns(&self) -> u64 {
        let Some(doublings) = self.ended_in_a_row.checked_sub(STARTS_AT_ONCE.saturating_add(1))
        else {
            return 0;
        };
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        PAUSE_MIN_NS.saturating_mul(factor).min(PAUSE_MAX_NS)
    }
}

/// Urges a process to end once it has used up its time.
fn urge(now: Time, urgency: EndStage, actions: &mut Vec<WorkerProcessAction>) -> EndStage {
    match urgency {
        EndStage::Left { until } if now >= until => {
            actions.push(WorkerProcessAction::Terminate);
            EndStage::Asked { until: now.saturating_add(TERMINATION_NS) }
        }
        EndStage::Asked { until } if now >= until => {
            actions.push(WorkerProcessAction::Kill);
            EndStage::Killed
        }
        EndStage::Left { .. } | EndStage::Asked { .. } | EndStage::Killed => urgency,
    }
}

#[cfg(test)]
mod tests {
    use super::WorkerProcessAction::{Finalize, GiveUp, Kill, Start, Terminate};
    use super::WorkerProcessEvent::{
        Exited, Failed, SocketsEnded, StartFailed, Started, Stop, Tick,
    };
    use super::*;

    const FINALIZE_NS: u64 = 30_000_000_000;

    /// A worker lifecycle with a clock that advances only on request.
    struct Script {
        life: WorkerProcessLifecycle,
        now: Time,
    }

    impl Script {
        fn new() -> Self {
            Self { life: WorkerProcessLifecycle::new_serving(Time(0), FINALIZE_NS), now: Time(0) }
        }

        fn after(
            &mut self,
            nanoseconds: u64,
            event: WorkerProcessEvent,
        ) -> Vec<WorkerProcessAction> {
            self.now = self.now.saturating_add(nanoseconds);
            let mut actions = Vec::new();
            self.life.step(self.now, event, &mut actions);
            actions
        }

        fn left_ms(&self) -> Option<u64> {
            Some(self.life.next_wakeup()?.saturating_since(self.now) / 1_000_000)
        }
    }

    #[test]
    fn pauses_grow_while_workers_end_soon() {
        let mut script = Script::new();
        let mut pauses = Vec::new();
        for _ in 0..14 {
            let actions = script.after(1, Exited);
            let pause = script.left_ms().unwrap_or_default();
            pauses.push(pause);
            assert_eq!(actions.contains(&Start), pause == 0);
            script.after(pause * 1_000_000, Tick);
            assert_eq!(script.life.awaited_events(), WorkerProcessAwaits::Start);
            script.after(0, Started);
        }
        assert_eq!(
            pauses,
            [0, 0, 0, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]
        );
        assert_eq!(script.after(14 * FORGIVENESS_NS, Exited), [GiveUp, Start]);
    }

    #[test]
    fn service_makes_up_for_ends() {
        let mut script = Script::new();
        for _ in 0..100 {
            assert_eq!(script.after(FORGIVENESS_NS, Exited), [GiveUp, Start]);
            script.after(0, Started);
        }
    }

    #[test]
    fn what_does_not_start_is_tried_after_a_pause() {
        let mut script = Script::new();
        assert_eq!(script.after(0, Exited), [GiveUp, Start]);
        assert_eq!(script.life.status(), WorkerProcessStatus::Starting);
        script.after(0, StartFailed);
        assert_eq!(
            (script.life.status(), script.left_ms()),
            (WorkerProcessStatus::Broken, Some(100))
        );
        assert_eq!(script.after(PAUSE_MIN_NS - 1, Tick), [], "not before its end");
        assert_eq!(script.after(1, Tick), [Start]);
        assert_eq!(script.life.status(), WorkerProcessStatus::Broken, "until a start succeeds");
        script.after(0, StartFailed);
        assert_eq!(script.left_ms(), Some(200));
    }

    #[test]
    fn requests_wait_during_short_pauses() {
        let mut script = Script::new();
        let mut found = Vec::new();
        for _ in 0..8 {
            script.after(1, Exited);
            found.push((script.left_ms(), script.life.status()));
            script.after(PAUSE_MAX_NS, Tick);
            script.after(0, Started);
        }
        let (wait, fail) = (WorkerProcessStatus::Starting, WorkerProcessStatus::Broken);
        assert_eq!(found[2..4], [(None, wait), (Some(100), wait)]);
        assert_eq!(found[6..], [(Some(800), wait), (Some(1600), fail)]);
    }

    #[test]
    fn sockets_that_end_leave_time_for_an_exit_status() {
        let mut script = Script::new();
        assert_eq!(script.after(5, SocketsEnded), []);
        assert_eq!(script.life.status(), WorkerProcessStatus::Starting);
        assert_eq!(script.after(EXIT_GRACE_NS, Tick), [Terminate]);
        assert_eq!(script.after(TERMINATION_NS, Tick), [Kill]);
        assert_eq!(script.after(1, Exited), [GiveUp, Start]);
    }

    #[test]
    fn who_breaks_the_rules_is_killed_at_once() {
        let mut script = Script::new();
        assert_eq!(script.after(5, Failed), [GiveUp, Kill]);
        assert_eq!(script.after(1, SocketsEnded), []);
        assert_eq!(script.after(1, Exited), [Start], "it was given up before");
    }

    #[test]
    fn a_stopped_instance_finalizes() {
        let mut script = Script::new();
        assert_eq!(script.after(5, Stop), [Finalize]);
        assert_eq!(script.life.status(), WorkerProcessStatus::Stopped);
        assert_eq!(script.after(FINALIZE_NS, Tick), [Terminate]);
        assert_eq!(script.after(TERMINATION_NS, Tick), [Kill]);
        assert_eq!(script.after(0, Exited), [GiveUp]);
        assert_eq!(script.life.awaited_events(), WorkerProcessAwaits::Over);
    }

    #[test]
    fn a_stop_during_a_start_waits_for_it() {
        for (event, expected) in [(Started, vec![Finalize]), (StartFailed, vec![])] {
            let mut script = Script::new();
            script.after(0, Exited);
            assert_eq!(script.after(1, Stop), []);
            assert_eq!(script.after(1, event), expected);
        }
    }
}
