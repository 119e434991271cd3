//! The memory that this process may use: the machine's memory, or less if a control group has a
//! limit.

use std::path::{Path, PathBuf};

/// The number of bytes that this process may use. `root` is the directory above `proc` and `sys`.
pub(super) fn usable_bytes(root: &Path) -> Option<usize> {
    let machine = machine_bytes(root);
    let groups = group_limits(root);
    machine.into_iter().chain(groups).min()
}

/// The size of the machine's memory.
fn machine_bytes(root: &Path) -> Option<usize> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The limits of the process's control groups and their ancestors.
fn group_limits(root: &Path) -> Vec<usize> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    text.lines().flat_map(|line| limits_of(root, line)).collect()
}

/// The limits for the control group in a line of `/proc/self/cgroup`. The line has the form
/// `ID:CONTROLLERS:PATH`, where the controllers are empty in version 2.
fn limits_of(root: &Path, line: &str) -> Vec<usize> {
    let mut fields = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
    else {
        return Vec::new();
    };
    let groups = root.join("sys/fs/cgroup");
    let (mount, files): (PathBuf, &[&str]) = if controllers.is_empty() {
        // If both versions are in use, version 2 has a separate directory.
        let unified = groups.join("unified");
        (if unified.is_dir() { unified } else { groups }, &["memory.max", "memory.high"])
    } else if controllers.split(',').any(|controller| controller == "memory") {
        (groups.join("memory"), &["memory.limit_in_bytes"])
    } else {
        return Vec::new();
    };
    // In a container, the path may be the host's, with only its tail mounted: missing directories
    // have no limits.
    let mut group = mount.join(path.trim_start_matches('/'));
    let mut limits = Vec::new();
    while group.starts_with(&mount) {
        limits.extend(files.iter().filter_map(|file| read_limit(&group.join(file))));
        if !group.pop() {
            break;
        }
    }
    limits
}

/// Reads a limit; `None` if the file doesn't exist or says `max`.
fn read_limit(path: &Path) -> Option<usize> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the result for a machine with these files.
    fn check(files: &[(&str, &str)], expected: Option<usize>) {
        let name = format!("galatea-machine-{}-{:p}", std::process::id(), &files);
        let root = std::env::temp_dir().join(name);
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let found = usable_bytes(&root);
        let _ = std::fs::remove_dir_all(&root);
        assert_eq!(found, expected, "{files:?}");
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:        1000 kB\nMemFree:          10 kB\n");

    #[test]
    fn without_groups_it_is_what_the_machine_has() {
        check(&[], None);
        check(&[MEMINFO], Some(1_024_000));
        check(&[MEMINFO, ("proc/self/cgroup", "0::/a\n")], Some(1_024_000));
    }

    #[test]
    fn the_tightest_group_above_the_process_counts() {
        let group = ("proc/self/cgroup", "0::/a/b\n");
        let unlimited = ("sys/fs/cgroup/a/b/memory.max", "max\n");
        check(&[MEMINFO, group, unlimited], Some(1_024_000));
        check(&[MEMINFO, group, ("sys/fs/cgroup/a/memory.max", "5000\n")], Some(5000));
        let own = ("sys/fs/cgroup/a/b/memory.max", "7000\n");
        check(&[MEMINFO, group, own, ("sys/fs/cgroup/a/memory.max", "5000\n")], Some(5000));
        check(&[MEMINFO, group, own, ("sys/fs/cgroup/a/b/memory.high", "6000\n")], Some(6000));
        check(&[MEMINFO, group, own, ("sys/fs/cgroup/memory.max", "4000\n")], Some(4000));
        check(&[MEMINFO, ("proc/self/cgroup", "0::/\n"), own], Some(1_024_000));
        check(&[MEMINFO, group, ("sys/fs/cgroup/c/memory.max", "5\n")], Some(1_024_000));
    }

    #[test]
    fn groups_of_version_one_count_too() {
        let group = ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/a/b\n1:name=systemd:/a\n");
        let unlimited = ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712");
        check(&[MEMINFO, group, unlimited], Some(1_024_000));
        let parent = ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000");
        check(&[MEMINFO, group, unlimited, parent], Some(5000));
        // In a container, the path is the host's.
        let mounted = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "6000");
        check(&[MEMINFO, group, mounted], Some(6000));
        let other = ("sys/fs/cgroup/cpu/x/memory.limit_in_bytes", "5");
        check(&[MEMINFO, group, other], Some(1_024_000));
    }
}
