//! A template process, and the requests to it.

use std::ffi::OsString;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use galatea_policy::TEMPLATE_ANSWER_NS;
use galatea_stdx::Lock;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::Pid;
use serde_json::{Value, json};

use super::Template;
use super::files::Files;
use crate::interpreter::Interpreter;
use crate::process::{DESCRIPTORS_MAX, Process, WorkerResources};

/// The time limit for a template's answer.
const ANSWER_PATIENCE: Duration = Duration::from_nanos(TEMPLATE_ANSWER_NS);
/// The maximum length of an answer. The longest answer lists the files that the template has read.
const ANSWER_BYTES_MAX: u32 = 4 << 20;
/// The space for a worker's names, which replace the template's arguments.
const NAMES_BYTES: usize = 1024;

/// The reason why a template couldn't be started or couldn't fork a worker.
#[derive(Debug)]
pub(super) enum TemplateError {
    /// The interpreter can't be started. A worker can't be started either; its own start reports
    /// why.
    NotStarted,
    /// The template has ended, hangs, or can't fork.
    Lost(String),
    /// The template reports that it can't fork workers safely.
    Unsuitable(String),
}

/// A template process, and the socket for requests to it.
pub(super) struct TemplateProcess {
    process: Process,
    control: Lock<UnixStream>,
    /// Set if an answer may still arrive for an abandoned request.
    is_lost: AtomicBool,
    pub(super) files: Files,
}

impl TemplateProcess {
    /// Starts an interpreter and waits until it is ready to fork.
    pub(super) fn start(
        interpreter: &Interpreter,
        variables: Vec<(&'static str, OsString)>,
        patience: Duration,
    ) -> Result<Self, TemplateError> {
        let (own, its) = UnixStream::pair().map_err(lost)?;
        let words = ["", "", "template", &" ".repeat(NAMES_BYTES)].map(OsString::from);
        let process = Process::start_template(interpreter, words, variables, its, &own)
            .map_err(|_| TemplateError::NotStarted)?;
        Self::ready(process, own, patience)
    }

    /// Makes a template fork another template, which imports numpy.
    pub(super) fn fork_template(
        template: &Arc<Template>,
        patience: Duration,
    ) -> Result<Self, TemplateError> {
        let (own, its) = UnixStream::pair().map_err(lost)?;
        let (its_lifeline, lifeline) = io::pipe().map_err(lost)?;
        let given = [its.as_fd(), its_lifeline.as_fd()];
        let pid = template.0.fork(&json!({"do": "template"}), &given)?;
        drop((its, its_lifeline));
        let process = Process::forked(pid, template.clone(), lifeline.into()).map_err(lost)?;
        Self::ready(process, own, patience)
    }

    /// Makes a template fork a worker.
    pub(super) fn fork_worker(
        template: &Arc<Template>,
        names: [&str; 2],
        equipment: &WorkerResources<'_>,
    ) -> Result<Process, TemplateError> {
        let WorkerResources { ends, inputs, outputs } = equipment;
        let (its_lifeline, lifeline) = io::pipe().map_err(lost)?;
        let given = [
            ends.commands.as_fd(),
            ends.others.as_fd(),
            inputs.as_fd(),
            outputs.as_fd(),
            its_lifeline.as_fd(),
            ends.results.as_fd(),
        ];
        let pid = template.0.fork(&json!({"do": "worker", "names": names}), &given)?;
        Process::forked(pid, template.clone(), lifeline.into()).map_err(lost)
    }

    fn ready(
        process: Process,
        control: UnixStream,
        patience: Duration,
    ) -> Result<Self, TemplateError> {
        let answer = receive(&control, patience).map_err(lost)?;
        if let Some(why) = answer.get("unsuitable").and_then(Value::as_str) {
            return Err(TemplateError::Unsuitable(why.to_owned()));
        }
        let files = answer.get("files").and_then(Value::as_array);
        let files = files.ok_or_else(|| TemplateError::Lost(String::from("it names no files")))?;
        let files = files.iter().filter_map(Value::as_str).map(PathBuf::from);
        let files = Files::now(files);
        Ok(Self { process, control: Lock::new(control), is_lost: AtomicBool::new(false), files })
    }

    fn fork(&self, question: &Value, given: &[BorrowedFd<'_>]) -> Result<Pid, TemplateError> {
        let answer = self.ask(question, given).map_err(lost)?;
        let pid = answer.get("pid").and_then(Value::as_i64);
        let pid = pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0);
        pid.and_then(Pid::from_raw).ok_or_else(|| {
            let error = answer.get("error").and_then(Value::as_str);
            TemplateError::Lost(error.unwrap_or("it answers without a number").to_owned())
        })
    }

    /// The exit status of a process, which must have ended.
    pub(super) fn reap(&self, pid: Pid) -> Option<ExitStatus> {
        let question = json!({"do": "reap", "pid": pid.as_raw_nonzero()});
        let answer = self.ask(&question, &[]).ok()?;
        let status = answer.get("status").and_then(Value::as_i64)?;
        i32::try_from(status).ok().map(ExitStatus::from_raw)
    }

    fn ask(&self, question: &Value, given: &[BorrowedFd<'_>]) -> io::Result<Value> {
        let control = self.control.lock("ask a template");
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let answer = send(&control, question, given);
        let answer = answer.and_then(|()| receive(&control, ANSWER_PATIENCE));
        if answer.is_err() {
            self.end();
        }
        answer
    }

    /// Stops the template from accepting requests.
    pub(super) fn end(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
        self.process.signal_to_die();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.process.wait(Duration::ZERO)
    }
}

fn lost(error: io::Error) -> TemplateError {
    let why = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => String::from("it doesn't answer"),
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => String::from("it has ended"),
        _ => error.to_string(),
    };
    TemplateError::Lost(why)
}

fn send(socket: &UnixStream, message: &Value, given: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = message.to_string();
    let length = u32::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let bytes = [&length.to_le_bytes(), text.as_bytes()].concat();
    socket.set_write_timeout(Some(ANSWER_PATIENCE))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !given.is_empty() && !control.push(SendAncillaryMessage::ScmRights(given)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent =
        rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    // A request is short, and no other bytes are in transit to the template.
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

fn receive(socket: &UnixStream, patience: Duration) -> io::Result<Value> {
    let deadline = Instant::now().checked_add(patience);
    let mut length = [0; 4];
    read(socket, &mut length, deadline)?;
    let length = u32::from_le_bytes(length);
    if length > ANSWER_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    read(socket, &mut bytes, deadline)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// Fills the buffer before the deadline.
fn read(mut socket: &UnixStream, into: &mut [u8], deadline: Option<Instant>) -> io::Result<()> {
    let mut rest = into;
    while !rest.is_empty() {
        if let Some(deadline) = deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            // Zero would mean no time limit.
            socket.set_read_timeout(Some(left.max(Duration::from_micros(1))))?;
        }
        match socket.read(rest) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => rest = rest.get_mut(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
