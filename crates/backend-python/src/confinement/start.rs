//! Starts a confined worker.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use galatea_infer::Status;
use rustix::process::{Pid, Resource, Rlimit};

use super::output::WorkerOutput;
use super::{Confinement, PassedVariables, restrict};
use crate::folders;

/// A shell that waits for a line, sets the variables that are listed before `--`, and executes the
/// program that is listed after it.
const SHELL: &str = "/bin/sh";
const WAITING: &str = "read -r begin || exit 1\n\
    while [ \"$1\" != -- ]; do export \"$1\"; shift; done\n\
    shift\nexec \"$@\"";

/// The confinement of a model version's workers.
#[derive(Clone, Debug)]
pub(crate) struct VersionConfinement {
    pub(crate) confinement: Confinement,
    /// The version's directory, which its worker may write to.
    pub(super) own: PathBuf,
    pub(super) temporary_folder: PathBuf,
    /// A counter that distributes workers over processors.
    pub(super) turn: Arc<AtomicUsize>,
    /// The server's environment variables that the sandbox passes on.
    pub(super) variables: PassedVariables,
}

/// A process to start.
pub(crate) struct ProcessStart<'a> {
    /// The program and its arguments.
    pub(crate) words: Vec<OsString>,
    /// The variables to add to its environment.
    pub(crate) variables: Vec<(&'static str, OsString)>,
    /// The server's variables that are left out of its environment.
    pub(crate) withheld: &'static [&'static str],
    /// The process's standard input. The server holds the other end.
    pub(crate) input: UnixStream,
    pub(crate) server_end: &'a UnixStream,
}

impl ProcessStart<'_> {
    /// Starts the process without confinement.
    pub(crate) fn spawn(self) -> io::Result<Child> {
        let mut words = self.words.into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).envs(self.variables);
        withhold(&mut command, self.withheld);
        command.stdin(Stdio::from(OwnedFd::from(self.input))).process_group(0);
        command.spawn()
    }
}

/// A directory for one worker's temporary files. Dropping the value removes the directory.
#[derive(Debug)]
pub(crate) struct ScratchDirectory(PathBuf);

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        // If this fails, the system cleans up its temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl VersionConfinement {
    /// Starts a process that is confined before its program runs.
    pub(crate) fn start(
        &self,
        start: ProcessStart<'_>,
    ) -> Result<(Child, Option<ScratchDirectory>), Status> {
        let failed = |what: &str, error: io::Error| {
            Status::internal(format!("failed to {what} of a confined worker: {error}"))
        };
        let ProcessStart { words, variables, withheld, input, server_end } = start;
        let mut command = waiting(&words, &variables);
        command.stdin(Stdio::from(OwnedFd::from(input))).process_group(0);
        let mut scratch = None;
        let mut output = None;
        if self.confinement.sandbox {
            let folder = folders::private(&self.temporary_folder, "galatea_python_tmp")
                .map_err(|error| failed("make the temporary folder", error))?;
            command.env_clear().envs(self.variables.allowed()).env("TMPDIR", &folder);
            scratch = Some(ScratchDirectory(folder));
            let (ends, [out, error]) =
                WorkerOutput::new().map_err(|error| failed("make the pipes", error))?;
            command.stdout(out).stderr(error);
            output = Some(ends);
        }
        withhold(&mut command, withheld);
        let mut child = self.spawn(command, scratch.as_ref())?;
        let begin = || -> io::Result<()> {
            self.limit_memory(&child)?;
            if let Some(output) = output {
                output.pass_on()?;
            }
            let mut server_end = server_end;
            server_end.write_all(b"\n")
        };
        if let Err(error) = begin() {
            // The worker has not started its program yet.
            let _ = (child.kill(), child.wait());
            return Err(failed("begin the work", error));
        }
        Ok((child, scratch))
    }

    /// Starts a command from a short-lived, confined thread.
    fn spawn(
        &self,
        mut command: Command,
        scratch: Option<&ScratchDirectory>,
    ) -> Result<Child, Status> {
        let confined_spawn = || {
            if let Some(count) = self.confinement.processors {
                restrict::limit_processors(count, &self.turn)?;
            }
            if let Some(ScratchDirectory(folder)) = scratch {
                restrict::enter_sandbox(&[&self.own, folder])?;
            }
            command.spawn().map_err(|error| format!("failed to start '{SHELL}': {error}"))
        };
        let spawned = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name(String::from("python-start"));
            let thread = thread
                .spawn_scoped(scope, confined_spawn)
                .map_err(|error| format!("failed to start a thread: {error}"))?;
            thread.join().unwrap_or_else(|_| Err(String::from("a thread ended by a panic")))
        });
        spawned.map_err(Status::internal)
    }

    fn limit_memory(&self, child: &Child) -> io::Result<()> {
        let Some(bytes) = self.confinement.memory_bytes() else { return Ok(()) };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        rustix::process::prlimit(pid, Resource::Data, limit)?;
        Ok(())
    }
}

fn withhold(command: &mut Command, variables: &[&str]) {
    for variable in variables {
        command.env_remove(variable);
    }
}

/// A shell that waits for the server before it executes the program. It doesn't have the model's
/// variables yet, because `LD_LIBRARY_PATH` could load a library into it.
fn waiting(words: &[OsString], variables: &[(&'static str, OsString)]) -> Command {
    let mut command = Command::new(SHELL);
    command.args(["-c", WAITING, "sh"]);
    for (name, value) in variables {
        let mut variable = OsString::from(name);
        variable.push("=");
        variable.push(value);
        command.arg(variable);
    }
    command.arg("--").args(words);
    command
}

/// Returns true if there can't be a program at this path. The shell's own error would be less
/// helpful.
pub(crate) fn is_missing(program: &Path) -> bool {
    program.components().count() > 1 && !program.exists()
}
