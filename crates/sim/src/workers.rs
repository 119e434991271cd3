//! Random worker lifecycles: processes start, serve, misbehave and end, and instances end at any
//! time. Each decision is checked against rules that know the process state.

use std::fmt::Write;

use galatea_policy::{
    EXIT_GRACE_NS, FORGIVENESS_NS, PAUSE_MAX_NS, PAUSE_MIN_NS, SHORT_PAUSE_NS, STARTS_AT_ONCE,
    TERMINATION_NS, Time, WorkerProcessAction, WorkerProcessAwaits, WorkerProcessEvent,
    WorkerProcessLifecycle, WorkerProcessStatus,
};

use crate::check::{Check, ensure};
use crate::random::Random;

/// The maximum number of steps that a lifecycle takes after its instance has ended.
const STEPS_TO_END_MAX: u64 = 50;

/// The world's knowledge of a worker, in addition to the value under test.
#[derive(Debug, Default)]
struct KnownWorker {
    /// The time at which the worker began to serve.
    begun: Time,
    /// The time at which the worker was lost or asked to finalize.
    lost: Option<Time>,
    /// The time at which the worker was asked to finalize.
    finalizing: Option<Time>,
    is_given_up: bool,
    /// True if the worker broke the rules, so that it gets no time to end by itself.
    has_failed: bool,
    terminated: Option<Time>,
    is_killed: bool,
}

/// The state of the process: a start in progress, a worker with a live process, or none.
#[derive(Debug)]
enum Process {
    None,
    Starting,
    Lives(KnownWorker),
}

struct WorkerWorld {
    life: WorkerProcessLifecycle,
    now: Time,
    finalize_ns: u64,
    process: Process,
    /// The time at which the last process ended or start failed, and the required pause before the
    /// next start.
    ended: Option<(Time, u64)>,
    /// The number of ends that haven't been made up for, by the rules.
    ended_in_a_row: u32,
    has_start_failed: bool,
    is_stopped: bool,
    actions: Vec<WorkerProcessAction>,
    /// The events so far, for error messages.
    log: String,
}

/// Runs the random worker lifecycle of a seed.
///
/// # Errors
///
/// Returns the broken rule with the preceding events.
pub fn fuzz_workers(seed: u64) -> Check {
    let mut random = Random::new(seed);
    let finalize_ns = random.pick(&[0, 1_000_000, 30_000_000_000]);
    let mut world = WorkerWorld {
        life: WorkerProcessLifecycle::new_serving(Time(0), finalize_ns),
        now: Time(0),
        finalize_ns,
        process: Process::Lives(KnownWorker::default()),
        ended: None,
        ended_in_a_row: 0,
        has_start_failed: false,
        is_stopped: false,
        actions: Vec::new(),
        log: String::new(),
    };
    world.live(&mut random).map_err(|message| format!("workers: {message}, after{}", world.log))
}

impl WorkerWorld {
    fn live(&mut self, random: &mut Random) -> Check {
        self.check_state()?;
        for _ in 0..random.between(1, 60) {
            self.happen(random)?;
        }
        self.send(WorkerProcessEvent::Stop)?;
        for _ in 0..STEPS_TO_END_MAX {
            if self.life.awaited_events() == WorkerProcessAwaits::Over {
                ensure!(matches!(self.process, Process::None), "it is over and a process is left");
                return Ok(());
            }
            self.end_something(random)?;
        }
        Err(String::from("the life does not end"))
    }

    /// Lets either time pass or the process act.
    fn happen(&mut self, random: &mut Random) -> Check {
        if random.percent(2) {
            return self.send(WorkerProcessEvent::Stop);
        }
        match (&self.process, random.between(1, 6)) {
            (Process::Starting, 1..=3) => self.send(WorkerProcessEvent::Started),
            (Process::Starting, 4) => self.send(WorkerProcessEvent::StartFailed),
            (Process::Lives(_), 1) => self.send(WorkerProcessEvent::SocketsEnded),
            (Process::Lives(_), 2) => self.send(WorkerProcessEvent::Failed),
            (Process::Lives(_), 3) => self.send(WorkerProcessEvent::Exited),
            _ => self.pass_time(random),
        }
    }

    /// Delivers the event that the lifecycle awaits after the instance has ended, or lets time
    /// pass.
    fn end_something(&mut self, random: &mut Random) -> Check {
        match &self.process {
            Process::Starting if random.percent(50) => self.send(WorkerProcessEvent::Started),
            Process::Starting => self.send(WorkerProcessEvent::StartFailed),
            Process::Lives(worker) if worker.is_killed || random.percent(10) => {
                self.send(WorkerProcessEvent::Exited)
            }
            Process::Lives(_) | Process::None => self.pass_time(random),
        }
    }

    fn pass_time(&mut self, random: &mut Random) -> Check {
        let wakeup = self.life.next_wakeup();
        let passed = match wakeup {
            // A timer may be late, and something else may wake the driver first.
            Some(wakeup) if random.percent(70) => {
                wakeup.saturating_since(self.now) + random.pick(&[0, 0, 1, 5_000_000])
            }
            _ => random.pick(&[0, 1, 1_000_000, 150_000_000, FORGIVENESS_NS, 5 * FORGIVENESS_NS]),
        };
        self.now = self.now.saturating_add(passed);
        let is_due = wakeup.is_some_and(|wakeup| wakeup <= self.now);
        self.send(WorkerProcessEvent::Tick)?;
        let still = self.life.next_wakeup();
        ensure!(still.is_none_or(|time| time > self.now), "a wake-up is in the past");
        ensure!(!is_due || still != wakeup, "a wake-up changed nothing");
        Ok(())
    }

    /// Sends an event to the lifecycle and checks the resulting actions.
    fn send(&mut self, event: WorkerProcessEvent) -> Check {
        let _ = write!(self.log, " {event:?}@{}", self.now.0);
        self.life.step(self.now, event, &mut self.actions);
        let _ = write!(self.log, "->{:?}", self.actions);
        self.apply(event);
        let actions = std::mem::take(&mut self.actions);
        let mut has_started = false;
        for action in actions {
            has_started |= action == WorkerProcessAction::Start;
            self.judge(action, event)?;
        }
        if event == WorkerProcessEvent::Exited {
            self.bury_if_given_up();
            ensure!(!matches!(self.process, Process::Lives(_)), "its requests never fail");
        }
        let is_due = self.start_is_due();
        ensure!(!is_due || has_started, "a start is due and does not come");
        self.check_state()
    }

    /// Applies an event to the world.
    fn apply(&mut self, event: WorkerProcessEvent) {
        let now = self.now;
        match (event, &mut self.process) {
            (WorkerProcessEvent::Stop, process) => {
                if let (false, Process::Lives(worker)) = (self.is_stopped, process) {
                    // The worker is asked to finalize if it is still serving.
                    if worker.lost.is_none() {
                        worker.finalizing = Some(now);
                    }
                }
                self.is_stopped = true;
            }
            (WorkerProcessEvent::Started, process @ Process::Starting) => {
                let finalizing = self.is_stopped.then_some(now);
                *process = Process::Lives(KnownWorker {
                    begun: now,
                    finalizing,
                    ..KnownWorker::default()
                });
                self.has_start_failed = false;
            }
            (WorkerProcessEvent::StartFailed, process @ Process::Starting) => {
                *process = Process::None;
                self.has_start_failed = true;
                self.ended_in_a_row = self.ended_in_a_row.max(STARTS_AT_ONCE) + 1;
                self.ended = Some((now, self.pause_ns()));
            }
            (WorkerProcessEvent::SocketsEnded, Process::Lives(worker)) => {
                worker.lost.get_or_insert(now);
            }
            (WorkerProcessEvent::Failed, Process::Lives(worker)) => {
                // A worker that is already about to end is left alone.
                if worker.lost.is_none() && worker.terminated.is_none() {
                    worker.has_failed = true;
                }
                worker.lost.get_or_insert(now);
            }
            _ => {}
        }
    }

    /// Checks that an action is allowed and applies it to the world.
    fn judge(&mut self, action: WorkerProcessAction, event: WorkerProcessEvent) -> Check {
        let (now, finalize_ns, is_stopped) = (self.now, self.finalize_ns, self.is_stopped);
        if action == WorkerProcessAction::Start {
            return self.judge_start(event);
        }
        let has_exited = event == WorkerProcessEvent::Exited;
        let Process::Lives(worker) = &mut self.process else {
            return Err(format!("{action:?} without a process"));
        };
        ensure!(!has_exited || action == WorkerProcessAction::GiveUp, "{action:?} after the end");
        match action {
            WorkerProcessAction::GiveUp => {
                ensure!(!worker.is_given_up, "given up twice");
                ensure!(worker.has_failed || has_exited, "given up without a reason");
                worker.is_given_up = true;
                if has_exited {
                    self.bury();
                }
            }
            WorkerProcessAction::Finalize => {
                ensure!(is_stopped && worker.finalizing == Some(now), "finalized out of turn");
                ensure!(worker.lost.is_none(), "a lost worker finalizes");
            }
            WorkerProcessAction::Terminate => {
                ensure!(worker.terminated.is_none() && !worker.has_failed, "asked once more");
                let patience = match (worker.lost, worker.finalizing) {
                    (Some(lost), _) => lost.saturating_add(EXIT_GRACE_NS),
                    (None, Some(asked)) => asked.saturating_add(finalize_ns),
                    (None, None) => return Err(String::from("a worker that serves shall end")),
                };
                ensure!(now >= patience, "asked to end too early");
                worker.terminated = Some(now);
            }
            WorkerProcessAction::Kill => {
                let asked = worker.terminated.map(|time| time.saturating_add(TERMINATION_NS));
                let may = worker.has_failed || asked.is_some_and(|time| now >= time);
                ensure!(may && !worker.is_killed, "killed too early or twice");
                worker.is_killed = true;
            }
            WorkerProcessAction::Start => {}
        }
        Ok(())
    }

    fn judge_start(&mut self, event: WorkerProcessEvent) -> Check {
        if event == WorkerProcessEvent::Exited {
            self.bury_if_given_up();
        }
        ensure!(matches!(self.process, Process::None), "two processes at once");
        ensure!(!self.is_stopped, "a start after the end of the instance");
        let Some((ended, pause)) = self.ended.take() else {
            return Err(String::from("a start while none is needed"));
        };
        ensure!(self.now >= ended.saturating_add(pause), "a start during a pause");
        self.process = Process::Starting;
        Ok(())
    }

    /// Handles the end of the process. A process that was given up earlier ends without an action.
    fn bury_if_given_up(&mut self) {
        if matches!(&self.process, Process::Lives(worker) if worker.is_given_up) {
            self.bury();
        }
    }

    fn bury(&mut self) {
        let Process::Lives(worker) = &self.process else { return };
        let end = worker.lost.unwrap_or(self.now);
        let served =
            if worker.finalizing.is_some() { 0 } else { end.saturating_since(worker.begun) };
        let forgiven = u32::try_from(served / FORGIVENESS_NS).unwrap_or(u32::MAX);
        self.ended_in_a_row = self.ended_in_a_row.saturating_sub(forgiven) + 1;
        self.ended = Some((self.now, self.pause_ns()));
        self.process = Process::None;
    }

    /// Returns the pause before the next start, found by doubling step by step.
    fn pause_ns(&self) -> u64 {
        let mut pause = 0;
        for _ in STARTS_AT_ONCE..self.ended_in_a_row {
            pause = if pause == 0 { PAUSE_MIN_NS } else { (pause * 2).min(PAUSE_MAX_NS) };
        }
        pause
    }

    fn start_is_due(&self) -> bool {
        let due = |(ended, pause): (Time, u64)| self.now >= ended.saturating_add(pause);
        // A pause ends with a wake-up, which may be late; an immediate start is never late.
        !self.is_stopped
            && matches!(self.process, Process::None)
            && self.ended.is_some_and(|ended| due(ended) && ended.1 == 0)
    }

    /// Checks that the state reported by the lifecycle agrees with the world.
    fn check_state(&self) -> Check {
        let (status, wait) = (self.life.status(), self.life.awaited_events());
        let expected = match &self.process {
            _ if self.is_stopped => WorkerProcessStatus::Stopped,
            Process::Lives(worker) if worker.lost.is_none() => WorkerProcessStatus::Serving,
            Process::Lives(_) => WorkerProcessStatus::Starting,
            Process::Starting | Process::None if self.has_start_failed => {
                WorkerProcessStatus::Broken
            }
            Process::None if self.ended.is_some_and(|(_, pause)| pause > SHORT_PAUSE_NS) => {
                WorkerProcessStatus::Broken
            }
            Process::Starting | Process::None => WorkerProcessStatus::Starting,
        };
        ensure!(status == expected, "requests meet {status:?} instead of {expected:?}");
        let expected = match &self.process {
            Process::Lives(worker) if worker.lost.is_none() && worker.terminated.is_none() => {
                WorkerProcessAwaits::Messages
            }
            Process::Lives(_) => WorkerProcessAwaits::Exit,
            Process::Starting => WorkerProcessAwaits::Start,
            Process::None if self.is_stopped => WorkerProcessAwaits::Over,
            Process::None => WorkerProcessAwaits::Pause,
        };
        ensure!(wait == expected, "it waits for {wait:?} instead of {expected:?}");
        if let (Process::None, false, Some((ended, pause))) =
            (&self.process, self.is_stopped, self.ended)
        {
            let wakeup = self.life.next_wakeup();
            let due = ended.saturating_add(pause);
            ensure!(wakeup == Some(due), "the pause ends at {wakeup:?} instead of {due:?}");
        }
        if let Process::Lives(worker) = &self.process {
            let is_ended = worker.is_given_up && worker.is_killed;
            ensure!(!worker.has_failed || is_ended, "who breaks the rules goes on");
        }
        let has_wakeup = self.life.next_wakeup().is_some();
        let needs = match &self.process {
            Process::Lives(worker) => {
                (worker.lost.is_some() || worker.finalizing.is_some())
                    && !worker.is_killed
                    && !worker.has_failed
            }
            Process::Starting => false,
            Process::None => !self.is_stopped,
        };
        ensure!(has_wakeup == needs, "a wake-up is missing, or too much");
        Ok(())
    }
}
