//! Applies restrictions to the calling thread and its child processes.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, CpuSet};

use super::calls;

/// The Landlock version that the sandbox needs. It is available since Linux 6.12 and covers signals
/// and abstract sockets.
const LANDLOCK: ABI = ABI::V6;
const NEEDED: &str = "the sandbox of Python models needs Linux 6.12 or later with Landlock and \
    seccomp";
/// The file system type of procfs.
const PROC: rustix::fs::FsWord = 0x9fa0;
/// Files that programs use to discard output.
const SINKS: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];

/// Puts the calling thread into the sandbox. From then on, it may write only below `writable`.
pub(super) fn enter_sandbox(writable: &[&Path]) -> Result<(), String> {
    drop_capabilities().map_err(|error| {
        format!("the sandbox of Python models can't drop the privileges of root: {error}")
    })?;
    restrict_files(writable)?;
    let filters = calls::filters().map_err(|error| format!("{NEEDED}: {error}"))?;
    for filter in &filters {
        seccompiler::apply_filter(filter).map_err(|error| format!("{NEEDED}: {error}"))?;
    }
    Ok(())
}

/// Drops the capabilities. They are also removed from the bounding set, or root would regain them
/// by executing a program.
fn drop_capabilities() -> Result<(), Errno> {
    let is_root = rustix::process::geteuid().is_root() || rustix::process::getuid().is_root();
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Older kernels don't know the capability.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(_) if !is_root => {}
            Err(error) => {
                if rustix::thread::capability_is_in_bounding_set(capability)? {
                    return Err(error);
                }
            }
        }
    }
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, none)
}

fn restrict_files(writable: &[&Path]) -> Result<(), String> {
    let read = AccessFs::from_read(LANDLOCK);
    let mut rules = readable(read)?;
    for path in writable {
        rules.push(rule(path, read | write_access())?);
    }
    let sinks = SINKS.map(Path::new).into_iter().filter(|path| path.exists());
    for path in sinks {
        let access = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
        rules.push(rule(path, access)?);
    }
    let restrict = || -> Result<RulesetStatus, RulesetError> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(LANDLOCK))?
            // A second barrier: sockets can't be created anyway.
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?;
        for rule in rules {
            ruleset = ruleset.add_rule(rule)?;
        }
        Ok(ruleset.restrict_self()?.ruleset)
    };
    match restrict() {
        Ok(RulesetStatus::FullyEnforced) => Ok(()),
        Ok(_) => Err(String::from(NEEDED)),
        Err(error) => Err(format!("{NEEDED}: {error}")),
    }
}

/// The readable paths. Everything is readable, except that procfs can't be listed, because the
/// listing would reveal which descriptors other processes have open. The root directory can't be
/// listed either, because its rights extend to everything below it.
fn readable(read: BitFlags<AccessFs>) -> Result<Vec<PathBeneath<PathFd>>, String> {
    let failed = |error: std::io::Error| format!("failed to list '/' for the sandbox: {error}");
    let mut rules = Vec::new();
    for entry in std::fs::read_dir("/").map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        // There is nothing to read behind a dangling link.
        let Ok(metadata) = path.metadata() else { continue };
        let access = if !metadata.is_dir() {
            read & AccessFs::from_file(LANDLOCK)
        } else if is_of_processes(&path) {
            read & !BitFlags::from(AccessFs::ReadDir)
        } else {
            read
        };
        rules.push(rule(&path, access)?);
    }
    Ok(rules)
}

/// Returns true if the path is on procfs.
fn is_of_processes(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|status| status.f_type == PROC)
}

fn rule(path: &Path, access: BitFlags<AccessFs>) -> Result<PathBeneath<PathFd>, String> {
    let folder = PathFd::new(path)
        .map_err(|error| format!("failed to open '{}' for the sandbox: {error}", path.display()))?;
    Ok(PathBeneath::new(folder, access))
}

/// Write access to files, directories and links, but not to devices or sockets.
fn write_access() -> BitFlags<AccessFs> {
    let special =
        AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSock | AccessFs::IoctlDev;
    AccessFs::from_write(LANDLOCK) & !special
}

/// Restricts the calling thread to at most `count` of the available processors. `turn` distributes
/// workers over the processors.
pub(super) fn limit_processors(count: usize, turn: &AtomicUsize) -> Result<(), String> {
    let failed = |error: Errno| format!("failed to limit the processors of a worker: {error}");
    let allowed = rustix::thread::sched_getaffinity(None).map_err(failed)?;
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|one| allowed.is_set(*one)).collect();
    if count >= allowed.len() {
        return Ok(());
    }
    let first = turn.fetch_add(count, Ordering::Relaxed).checked_rem(allowed.len());
    let mut chosen = CpuSet::new();
    let in_turn = allowed.iter().cycle().skip(first.unwrap_or_default()).take(count);
    in_turn.for_each(|one| chosen.set(*one));
    rustix::thread::sched_setaffinity(None, &chosen).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_takes_on_itself_is_its_own() {
        let path = std::env::temp_dir().join(format!("galatea-restricted-{}", std::process::id()));
        let allowed = path.join("allowed");
        std::fs::create_dir_all(&allowed).unwrap();
        let (outside, inside) = (path.join("file"), allowed.join("file"));
        let thread = std::thread::scope(|scope| {
            let restricted = scope.spawn(|| {
                enter_sandbox(&[&allowed]).unwrap();
                (std::fs::write(&outside, "a").is_err(), std::fs::write(&inside, "a").is_ok())
            });
            restricted.join().unwrap()
        });
        assert_eq!(thread, (true, true));
        assert!(std::fs::write(&outside, "a").is_ok());
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn workers_are_spread_over_processors() {
        let turn = AtomicUsize::new(0);
        let mut seen = Vec::new();
        for _ in 0..2 {
            let set = std::thread::scope(|scope| {
                let limited = scope.spawn(|| {
                    limit_processors(1, &turn).unwrap();
                    rustix::thread::sched_getaffinity(None).unwrap()
                });
                limited.join().unwrap()
            });
            seen.push(set);
        }
        assert_eq!(seen[0].count(), 1);
        let all = rustix::thread::sched_getaffinity(None).unwrap().count();
        assert_eq!(seen[0] == seen[1], all == 1);
    }
}
