//! The memory that the server and the processes of its backends use.
//!
//! The proportional set size counts a page that several processes share once, divided among them,
//! so the workers that were forked by one template are not counted several times.

use std::fs;
use std::path::Path;

use crate::children;

/// The proportional set size of the server and of all its descendants, in bytes; `None` if the
/// kernel doesn't report it.
pub(super) fn memory_bytes(proc: &Path) -> Option<u64> {
    let own = proportional_bytes(&proc.join("self"))?;
    let others = children::descendants().into_iter().filter_map(|process| {
        // A process may have ended in the meantime.
        proportional_bytes(&proc.join(process.as_raw_nonzero().to_string()))
    });
    Some(others.fold(own, u64::saturating_add))
}

fn proportional_bytes(process: &Path) -> Option<u64> {
    let text = fs::read_to_string(process.join("smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_own_memory_is_measured() {
        let before = memory_bytes(Path::new("/proc")).unwrap();
        let block = vec![1_u8; 64 << 20];
        let after = memory_bytes(Path::new("/proc")).unwrap();
        assert!(after > before + (48 << 20), "{before} {after} {}", block.len());
        assert_eq!(memory_bytes(Path::new("/nowhere")), None);
    }
}
