//! A program's verdict on a planted bug.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A program's verdict on a planted bug.
#[derive(Copy, Clone)]
pub(crate) enum Verdict {
    Found,
    Endless,
    Missed,
}

impl Verdict {
    pub(crate) fn is_found(self) -> bool {
        match self {
            Verdict::Found | Verdict::Endless => true,
            Verdict::Missed => false,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Verdict::Found => "found",
            Verdict::Endless => "endless",
            Verdict::Missed => "MISSED",
        }
    }
}

/// Runs a program. A program that fails or never ends has found the bug.
pub(crate) fn verdict(command: &mut Command, time_max: Duration) -> Result<Verdict, String> {
    let start = Instant::now();
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    while start.elapsed() < time_max {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(Verdict::Missed),
            Ok(Some(_)) => return Ok(Verdict::Found),
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error.to_string()),
        }
    }
    child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
    Ok(Verdict::Endless)
}
