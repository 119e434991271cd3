//! Forwards the output of a sandboxed worker. The output goes through pipes, because the server's
//! own output may be a file or a terminal.

use std::io::{self, PipeReader, Read, Write};
use std::process::Stdio;

/// The maximum number of bytes that are forwarded at once.
const PART_BYTES: usize = 8192;

/// The server's ends of the two pipes.
#[derive(Debug)]
pub(super) struct WorkerOutput {
    out: PipeReader,
    error: PipeReader,
}

impl WorkerOutput {
    /// Creates the two pipes. Also returns the worker's ends.
    pub(super) fn new() -> io::Result<(Self, [Stdio; 2])> {
        let (out, worker_out) = io::pipe()?;
        let (error, worker_error) = io::pipe()?;
        Ok((Self { out, error }, [worker_out.into(), worker_error.into()]))
    }

    /// Forwards the output until the worker and its children have ended.
    pub(super) fn pass_on(self) -> io::Result<()> {
        let Self { out, error } = self;
        let thread = || std::thread::Builder::new().name(String::from("python-output"));
        thread().spawn(move || copy(out, io::stdout()))?;
        thread().spawn(move || copy(error, io::stderr()))?;
        Ok(())
    }
}

fn copy(mut from: PipeReader, mut to: impl Write) {
    let mut part = [0; PART_BYTES];
    loop {
        let count = match from.read(&mut part) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        // Output that can't be written is lost, just like output that the worker writes itself.
        let _ = to.write_all(part.get(..count).unwrap_or_default());
        let _ = to.flush();
    }
}
