//! Processes started by backends.

use std::fs;
use std::path::Path;

use galatea_telemetry::Logger;
use rustix::process::{Pid, Signal, kill_process};

/// Kills the child processes that are still running. A server that exits before its models are
/// unloaded needs this, because the backends will not end their own processes.
pub(crate) fn kill_all(logger: &Logger) {
    for child in descendants() {
        let result = match kill_process(child, Signal::KILL) {
            Ok(()) => String::from("was killed"),
            Err(error) => format!("could not be killed: {error}"),
        };
        let number = child.as_raw_nonzero();
        logger.warning(format_args!("process {number}, which a backend had started, {result}"));
    }
}

/// All descendants of this process. Processes that end disappear from the system's lists, so all
/// descendants are collected before any of them is killed.
pub(crate) fn descendants() -> Vec<Pid> {
    let mut found = children(Path::new("/proc/self/task"));
    let mut next = 0;
    while let Some(one) = found.get(next) {
        let threads = format!("/proc/{}/task", one.as_raw_nonzero());
        found.extend(children(Path::new(&threads)));
        next += 1;
    }
    found
}

/// The children of all threads. The list is empty if the kernel doesn't report them.
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
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn child_processes_are_found_and_can_be_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let number = i32::try_from(child.id()).unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let grandchild: i32 = line.trim().parse().unwrap();
        let all = descendants();
        for number in [number, grandchild] {
            assert!(all.iter().any(|one| one.as_raw_nonzero().get() == number), "{all:?}");
        }
        kill_process(Pid::from_raw(grandchild).unwrap(), Signal::KILL).unwrap();
        kill_process(Pid::from_raw(number).unwrap(), Signal::KILL).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        let all = children(Path::new("/proc/self/task"));
        assert!(!all.iter().any(|one| one.as_raw_nonzero().get() == number), "{all:?}");
        assert!(children(Path::new("/nowhere")).is_empty());
    }
}
