//! Processes that backends started.

use std::fs;
use std::path::Path;

use galatea_telemetry::Logger;
use rustix::process::{Pid, Signal, kill_process};

/// Kills the processes that this one started and that still run. A server that ends before
/// its models are unloaded needs it: the backends will not end their processes.
pub(crate) fn kill_all(logger: &Logger) {
    for child in children(Path::new("/proc/self/task")) {
        let result = match kill_process(child, Signal::KILL) {
            Ok(()) => String::from("was killed"),
            Err(error) => format!("could not be killed: {error}"),
        };
        let number = child.as_raw_nonzero();
        logger.warning(format_args!("process {number}, which a backend had started, {result}"));
    }
}

/// The children of all threads. It is empty if the kernel doesn't report them.
fn children(threads: &Path) -> Vec<Pid> {
    let mut found = Vec::new();
    for thread in fs::read_dir(threads).into_iter().flatten().flatten() {
        let Ok(text) = fs::read_to_string(thread.path().join("children")) else { continue };
        let numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
        found.extend(numbers.filter_map(Pid::from_raw));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn child_processes_are_found_and_can_be_killed() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let number = i32::try_from(child.id()).unwrap();
        let all = children(Path::new("/proc/self/task"));
        assert!(all.iter().any(|one| one.as_raw_nonzero().get() == number), "{all:?}");
        kill_process(Pid::from_raw(number).unwrap(), Signal::KILL).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        let all = children(Path::new("/proc/self/task"));
        assert!(!all.iter().any(|one| one.as_raw_nonzero().get() == number), "{all:?}");
        assert!(children(Path::new("/nowhere")).is_empty());
    }
}
