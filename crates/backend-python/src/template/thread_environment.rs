//! The environment that a process inherits from the thread that starts it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use rustix::thread::CpuSet;

/// A thread's environment. A template forks only for threads with the environment that it was
/// started in.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ThreadEnvironment {
    variables: Vec<(OsString, OsString)>,
    folder: Option<PathBuf>,
    processors: Option<CpuSet>,
    /// The memory nodes that memory is allocated from.
    memory: Option<String>,
}

impl ThreadEnvironment {
    /// The calling thread's environment, with these variables of the server.
    pub(super) fn of_this_thread(mut variables: Vec<(OsString, OsString)>) -> Self {
        variables.sort();
        Self {
            variables,
            folder: std::env::current_dir().ok(),
            processors: rustix::thread::sched_getaffinity(None).ok(),
            memory: memory_policy(),
        }
    }
}

/// The thread's memory policy, taken from the start of an arbitrary mapping's line.
fn memory_policy() -> Option<String> {
    let mut line = String::new();
    BufReader::new(File::open("/proc/thread-self/numa_maps").ok()?).read_line(&mut line).ok()?;
    line.split_whitespace().nth(1).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> ThreadEnvironment {
        ThreadEnvironment::of_this_thread(vec![("A".into(), "1".into())])
    }

    #[test]
    fn a_thread_that_is_bound_has_other_surroundings() {
        let own = here();
        assert!(own == here());
        assert!(own != ThreadEnvironment::of_this_thread(vec![("A".into(), "2".into())]));
        let processors = rustix::thread::sched_getaffinity(None).unwrap();
        if processors.count() < 2 {
            return;
        }
        let first = (0..CpuSet::MAX_CPU).find(|one| processors.is_set(*one)).unwrap();
        let bound = std::thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set(first);
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            here()
        });
        assert!(own != bound.join().unwrap());
    }
}
