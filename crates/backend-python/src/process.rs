//! A worker process. It is started, stopped, and never left behind.

use std::ffi::OsString;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_infer::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, waitid};

use crate::arena::Arena;
use crate::confinement::{ProcessStart, ScratchDirectory, VersionConfinement, is_missing};
use crate::interpreter::Interpreter;
use crate::link::WorkerEnds;
use crate::sources;

/// Python code that reads the worker's first source from standard input and executes it.
const BOOTSTRAP: &str = "import socket;s=socket.socket(fileno=0);\
    n=int.from_bytes(s.recv(4,socket.MSG_WAITALL),'little');\
    exec(compile(s.recv(n,socket.MSG_WAITALL),'<galatea worker>','exec'))";

/// The time that a process has to terminate after being asked to.
const TERMINATION_MAX: Duration = Duration::from_nanos(galatea_policy::TERMINATION_NS);
/// The interval at which a terminating process is checked.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The maximum number of descriptors that are passed to a process.
pub(crate) const DESCRIPTORS_MAX: usize = 6;

/// A running worker, or a template for workers. Dropping the value kills the process.
#[derive(Debug)]
pub(crate) struct Process {
    origin: ProcessOrigin,
    /// True if the process ID may now belong to another process.
    is_reaped: bool,
    /// A handle that signals the end of the process; `None` if the system doesn't provide one.
    pub(crate) handle: Option<OwnedFd>,
    /// A descriptor. When it is closed, the system kills the worker.
    _lifeline: OwnedFd,
    /// The process's temporary files. They are removed after the process has ended.
    _scratch: Option<ScratchDirectory>,
}

/// The parent of a process.
#[derive(Debug)]
enum ProcessOrigin {
    /// The process is a child of the server.
    Server(Child),
    /// The process is a child of a template. The template keeps the process ID reserved until it is
    /// asked how the process ended. The process has a handle.
    Template(Pid, Arc<dyn Parent>),
}

/// A process whose children work for the server.
pub(crate) trait Parent: std::fmt::Debug + Send + Sync {
    /// Returns the exit status of a child, if the parent knows it. The child must have ended; its
    /// process ID is freed.
    fn reap(&self, pid: Pid) -> Option<ExitStatus>;
    /// Returns true if the parent has ended, in which case its children belong to another process.
    fn has_ended(&self) -> bool;
}

/// The sockets and memory that a worker receives when it starts.
pub(crate) struct WorkerResources<'a> {
    pub(crate) ends: WorkerEnds,
    pub(crate) inputs: &'a Arena,
    pub(crate) outputs: &'a Arena,
}

impl Process {
    /// Starts a worker, and sends it its sources and descriptors through `server_end`, the server's
    /// end of the worker's standard input. `variables` are added to its environment. If the worker
    /// is `confined`, the confinement takes effect before any of its code runs.
    ///
    /// # Errors
    ///
    /// `Internal` if the interpreter doesn't exist or can't be started.
    pub(crate) fn start(
        interpreter: &Interpreter,
        names: [&str; 2],
        variables: Vec<(&'static str, OsString)>,
        confined: Option<&VersionConfinement>,
        equipment: WorkerResources<'_>,
        server_end: &UnixStream,
    ) -> Result<Self, Status> {
        let WorkerResources { ends, inputs, outputs } = equipment;
        let WorkerEnds { commands, results, others } = ends;
        let mut arguments = names.map(OsString::from).to_vec();
        if confined.is_some_and(|confined| confined.confinement.sandbox) {
            // The worker closes descriptors that it inherited by mistake.
            arguments.push(OsString::from("sandbox"));
        }
        let words = words(interpreter, arguments);
        let withheld = interpreter.withheld;
        let start = ProcessStart { words, variables, withheld, input: commands, server_end };
        let given = |lifeline: &io::PipeReader| {
            let fds = [
                others.as_fd(),
                inputs.as_fd(),
                outputs.as_fd(),
                lifeline.as_fd(),
                results.as_fd(),
            ];
            send_descriptors(server_end, &fds)
        };
        Self::begin(interpreter, start, confined, given)
    }

    /// Starts a template with these arguments. `input` becomes its standard input.
    ///
    /// # Errors
    ///
    /// `Internal` if the interpreter doesn't exist or can't be started.
    pub(crate) fn start_template(
        interpreter: &Interpreter,
        arguments: [OsString; 4],
        variables: Vec<(&'static str, OsString)>,
        input: UnixStream,
        server_end: &UnixStream,
    ) -> Result<Self, Status> {
        let words = words(interpreter, arguments.to_vec());
        let withheld = interpreter.withheld;
        let start = ProcessStart { words, variables, withheld, input, server_end };
        let given = |lifeline: &io::PipeReader| send_descriptors(server_end, &[lifeline.as_fd()]);
        Self::begin(interpreter, start, None, given)
    }

    fn begin(
        interpreter: &Interpreter,
        start: ProcessStart<'_>,
        confined: Option<&VersionConfinement>,
        give: impl FnOnce(&io::PipeReader) -> io::Result<()>,
    ) -> Result<Self, Status> {
        let program = &interpreter.program;
        let failed = |what: &str, error: io::Error| {
            Status::internal(format!("failed to {what} '{}': {error}", program.display()))
        };
        let not_started = |error| failed("start the interpreter", error);
        let server_end = start.server_end;
        let (child, scratch) = match confined {
            None => (start.spawn().map_err(not_started)?, None),
            Some(_) if is_missing(program) => {
                return Err(not_started(io::ErrorKind::NotFound.into()));
            }
            Some(confined) => confined.start(start)?,
        };
        let equip = || -> io::Result<OwnedFd> {
            let (its_lifeline, lifeline) = io::pipe()?;
            send_sources(server_end)?;
            give(&its_lifeline)?;
            Ok(lifeline.into())
        };
        let equipped = equip();
        let handle = pid_of(&child).and_then(handle_of);
        match equipped {
            Ok(lifeline) => Ok(Self {
                origin: ProcessOrigin::Server(child),
                is_reaped: false,
                handle,
                _lifeline: lifeline,
                _scratch: scratch,
            }),
            Err(error) => {
                let mut child = child;
                let (_, ended) = (child.kill(), child.wait());
                let how = ended.map_or_else(|error| error.to_string(), describe);
                Err(failed("set up the worker of", error)).map_err(|status: Status| {
                    Status::internal(format!("{} (it {how})", status.message()))
                })
            }
        }
    }

    /// Wraps a process that a template has forked.
    ///
    /// # Errors
    ///
    /// Fails if the system doesn't provide process handles, or if the template has ended.
    pub(crate) fn forked(
        pid: Pid,
        template: Arc<dyn Parent>,
        lifeline: OwnedFd,
    ) -> io::Result<Self> {
        let handle = Some(rustix::process::pidfd_open(pid, PidfdFlags::empty())?);
        if template.has_ended() {
            // The process ID may already have been reassigned.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let origin = ProcessOrigin::Template(pid, template);
        Ok(Self { origin, is_reaped: false, handle, _lifeline: lifeline, _scratch: None })
    }

    /// Waits until the process has ended. After `patience`, asks it to terminate and then kills it.
    /// Returns how the process ended.
    pub(crate) fn stop(&mut self, patience: Duration) -> String {
        if !self.wait(patience) {
            self.terminate();
            self.wait(TERMINATION_MAX);
        }
        self.kill()
    }

    /// Asks the process to terminate.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills the process without waiting for it to end.
    pub(crate) fn signal_to_die(&self) {
        self.signal(Signal::KILL);
    }

    /// Kills the process, unless it has ended, and the remaining processes in its group. Returns
    /// how the process ended.
    pub(crate) fn kill(&mut self) -> String {
        // The signal must be sent before the process ID is returned to the system.
        self.signal_to_die();
        self.is_reaped = true;
        match &mut self.origin {
            ProcessOrigin::Server(child) => {
                child.wait().map_or_else(|error| error.to_string(), describe)
            }
            ProcessOrigin::Template(pid, template) => {
                let Some(handle) = &self.handle else { return String::from("ended") };
                // Only a signal interrupts the wait.
                while poll(&mut [PollFd::new(handle, PollFlags::IN)], None) == Err(Errno::INTR) {}
                let status = template.reap(*pid).or_else(|| adopted(handle));
                status.map_or_else(|| String::from("ended"), describe)
            }
        }
    }

    /// Waits until the process has ended; returns false if it doesn't end in time. The process ID
    /// stays reserved.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if self.has_ended() {
                return true;
            }
            let now = Instant::now();
            let left = deadline.map_or(timeout, |end| end.saturating_duration_since(now));
            if left.is_zero() {
                return false;
            }
            let Some(handle) = &self.handle else {
                std::thread::sleep(EXIT_CHECK_INTERVAL.min(left));
                continue;
            };
            let timeout = Timespec::try_from(left).ok();
            // The process is checked afterwards, however the wait ended.
            let _ = poll(&mut [PollFd::new(handle, PollFlags::IN)], timeout.as_ref());
        }
    }

    fn has_ended(&self) -> bool {
        let flags = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match (&self.origin, &self.handle) {
            (ProcessOrigin::Template(..), Some(handle)) => {
                let now = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
                poll(&mut [PollFd::new(handle, PollFlags::IN)], now) == Ok(1)
            }
            _ => {
                let Some(pid) = self.pid() else { return true };
                // A process that can't be waited for is gone.
                !matches!(waitid(WaitId::Pid(pid), flags), Ok(None))
            }
        }
    }

    fn pid(&self) -> Option<Pid> {
        match &self.origin {
            ProcessOrigin::Server(child) => pid_of(child),
            ProcessOrigin::Template(pid, _) => Some(*pid),
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().filter(|pid| self.has_number(*pid)) {
            // The process may already have ended.
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }

    /// Returns true if the process ID still belongs to the process's group. Once the template has
    /// ended, the system may reap the process and reassign its ID.
    fn has_number(&self, pid: Pid) -> bool {
        let (ProcessOrigin::Template(..), Some(handle)) = (&self.origin, &self.handle) else {
            return true;
        };
        // A process that has ended keeps its ID until it is reaped, and signals don't affect it.
        !self.has_ended()
            || rustix::process::pidfd_send_signal(handle, Signal::KILL) != Err(Errno::SRCH)
            // No other process has the ID or will get it while the group has members.
            || rustix::process::test_kill_process(pid) == Err(Errno::SRCH)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_reaped {
            let _ = self.kill();
        }
    }
}

/// Describes how a process ended, in words that follow "it".
fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => String::from("ended"),
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

fn handle_of(pid: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// The exit status of a process whose template is gone, if the process has become the server's
/// child. This happens in containers, where the first process adopts orphans.
fn adopted(handle: &OwnedFd) -> Option<ExitStatus> {
    let flags = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let ended = waitid(WaitId::PidFd(handle.as_fd()), flags).ok()??;
    let code = ended.exit_status().map(|code| code << 8);
    code.or_else(|| ended.terminating_signal()).map(ExitStatus::from_raw)
}

/// The command line of a process with these arguments.
fn words(interpreter: &Interpreter, arguments: Vec<OsString>) -> Vec<OsString> {
    let mut words = interpreter.command();
    words.extend(["-c", BOOTSTRAP].map(OsString::from));
    words.extend(arguments);
    words
}

fn send_sources(mut socket: &UnixStream) -> io::Result<()> {
    for text in [sources::BOOTSTRAP, &sources::bundle()] {
        let length = u32::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        socket.write_all(&length.to_le_bytes())?;
        socket.write_all(text.as_bytes())?;
    }
    Ok(())
}

fn send_descriptors(
    socket: &UnixStream,
    descriptors: &[std::os::fd::BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(b"f")], &mut control, flags)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    /// A template that has ended. Another process may reap its workers.
    #[derive(Debug)]
    struct Ended;

    impl Parent for Ended {
        fn reap(&self, _: Pid) -> Option<ExitStatus> {
            None
        }

        fn has_ended(&self) -> bool {
            true
        }
    }

    /// A shell that is the leader of a process group.
    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// A worker whose template has ended: the process ID, and the handle of the process that had
    /// it.
    fn orphan(pid: Pid, handle: Option<OwnedFd>) -> Process {
        let (_, lifeline) = io::pipe().unwrap();
        Process {
            origin: ProcessOrigin::Template(pid, Arc::new(Ended)),
            is_reaped: false,
            handle,
            _lifeline: lifeline.into(),
            _scratch: None,
        }
    }

    fn said(child: &mut Child) -> String {
        drop(child.stdin.take());
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_number_that_another_process_has_got_is_not_signalled() {
        let mut worker = shell("exit 0");
        let handle = handle_of(pid_of(&worker).unwrap());
        worker.wait().unwrap();
        let mut other = shell("read line; echo alive");
        let process = orphan(pid_of(&other).unwrap(), handle);
        process.terminate();
        drop(process);
        assert_eq!(said(&mut other), "alive\n");
        other.wait().unwrap();
    }

    #[test]
    fn what_a_worker_has_left_running_ends_with_its_group() {
        for is_reaped in [false, true] {
            let mut worker = shell("exec 3<&0; (read line <&3; echo alive) & exit 0");
            let pid = pid_of(&worker).unwrap();
            let process = orphan(pid, handle_of(pid));
            assert!(process.wait(Duration::MAX));
            if is_reaped {
                // The worker's input stays open.
                let input = worker.stdin.take();
                worker.wait().unwrap();
                worker.stdin = input;
            }
            process.signal_to_die();
            assert_eq!(said(&mut worker), "", "reaped: {is_reaped}");
            worker.wait().unwrap();
        }
    }
}
