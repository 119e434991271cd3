//! Binds a thread's memory to NUMA nodes.
//!
//! # What it is not
//!
//! The crate makes no decisions. Threads are bound to processors elsewhere, through a library's
//! safe function. No library has a safe function for binding memory, so this crate exists for one
//! system call that needs `unsafe`.
//!
//! # Example
//!
//! ```
//! if let Ok(node) = galatea_numa::Node::find(0) {
//!     assert_eq!(node.number(), 0);
//! }
//! ```

use std::io;
use std::path::Path;

/// The directory in which Linux describes its NUMA nodes.
const NODES: &str = "/sys/devices/system/node";

/// An upper limit on node numbers, larger than any system's.
const NODES_MAX: u32 = 1024;

/// A NUMA node on this machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    number: u32,
}

impl Node {
    /// Finds the node with this number.
    ///
    /// # Errors
    ///
    /// The list of existing nodes if this one does not exist, or the reason why they can't be read.
    pub fn find(number: u32) -> Result<Self, String> {
        Self::find_in(Path::new(NODES), number)
    }

    fn find_in(nodes: &Path, number: u32) -> Result<Self, String> {
        let online = read_list(&nodes.join("online"))
            .map_err(|error| format!("the system doesn't say which NUMA nodes it has: {error}"))?;
        let exists = usize::try_from(number).is_ok_and(|number| online.contains(&number));
        if !exists || number >= NODES_MAX {
            let names: Vec<String> = online.iter().map(ToString::to_string).collect();
            let names = names.join(", ");
            return Err(format!("there is no NUMA node {number}, only {names}"));
        }
        Ok(Self { number })
    }

    /// The node's number.
    pub const fn number(&self) -> u32 {
        self.number
    }
}

/// Reads a list of numbers such as `0-3,8`.
fn read_list(path: &Path) -> io::Result<Vec<usize>> {
    let text = std::fs::read_to_string(path)?;
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("it says {text:?}"));
    let mut numbers = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u16>().map(usize::from).map_err(|_| wrong());
        numbers.extend(number(first)?..=number(last)?);
    }
    Ok(numbers)
}

/// The system call's arguments: one bit for each node, and the number of bits.
fn node_mask<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
) -> io::Result<(Vec<libc::c_ulong>, usize)> {
    const WORD_BITS: u32 = libc::c_ulong::BITS;
    let mut mask: Vec<libc::c_ulong> = Vec::new();
    for node in nodes {
        let word = usize::try_from(node.number / WORD_BITS).map_err(io::Error::other)?;
        if mask.len() <= word {
            mask.resize(word + 1, 0);
        }
        mask[word] |= 1 << (node.number % WORD_BITS);
    }
    // The kernel reads one bit fewer than this number.
    let bits = mask.len() * libc::c_ulong::BITS as usize + 1;
    Ok((mask, bits))
}

/// Binds future memory allocations of this thread, and of threads that it starts, to these nodes.
/// Existing memory is not moved.
///
/// # Errors
///
/// The system call's error, such as a missing permission.
pub fn bind_memory_of_this_thread<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> io::Result<()> {
    let (mask, bits) = node_mask(nodes)?;
    // SAFETY: the call reads `bits` bits of the mask, which includes its last word in full, and
    // keeps no pointer. It changes the placement of memory that this thread allocates later, not of
    // existing memory.
    #[expect(unsafe_code, reason = "no available library has this call as a safe function")]
    let outcome =
        unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_BIND, mask.as_ptr(), bits) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_from_the_system_files() {
        let folder = std::env::temp_dir().join(format!("galatea-numa-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("online"), "0-1,4\n").unwrap();
        assert_eq!(Node::find_in(&folder, 4).unwrap().number(), 4);
        let error = Node::find_in(&folder, 2).unwrap_err();
        assert_eq!(error, "there is no NUMA node 2, only 0, 1, 4");
        std::fs::write(folder.join("online"), "many").unwrap();
        let error = Node::find_in(&folder, 0).unwrap_err();
        assert!(error.ends_with("it says \"many\""), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_mask_has_one_bit_for_each_node() {
        let check = |numbers: &[u32], expected: &[libc::c_ulong]| {
            let node = |number: &u32| Node { number: *number };
            let nodes: Vec<Node> = numbers.iter().map(node).collect();
            let (mask, bits) = node_mask(&nodes).unwrap();
            assert_eq!(mask, expected, "{numbers:?}");
            // One more bit than the kernel reads.
            assert_eq!(bits, expected.len() * libc::c_ulong::BITS as usize + 1, "{numbers:?}");
        };
        let last = libc::c_ulong::BITS - 1;
        check(&[], &[]);
        check(&[0], &[1]);
        check(&[3, 0, 3], &[9]);
        check(&[last], &[1 << last]);
        check(&[last + 1], &[0, 1]);
        check(&[2 * (last + 1) + 4, 1], &[2, 0, 16]);
    }

    fn skip(why: impl std::fmt::Display) {
        eprintln!("skipped: {why}");
    }

    /// Returns true if this process may bind memory; otherwise prints a message.
    fn may_bind() -> bool {
        let Ok(node) = Node::find(0) else {
            skip("the system has no NUMA nodes");
            return false;
        };
        let outcome = std::thread::spawn(move || bind_memory_of_this_thread([&node]));
        let Err(error) = outcome.join().unwrap() else { return true };
        // `EPERM` in a container, `ENOSYS` on a system without NUMA.
        let reason = error.raw_os_error();
        assert!(matches!(reason, Some(libc::EPERM | libc::ENOSYS)), "{error}");
        skip(error);
        false
    }

    /// The memory policy of this thread's first mapping.
    fn policy_of_this_thread() -> Option<String> {
        let maps = std::fs::read_to_string("/proc/thread-self/numa_maps").ok()?;
        Some(maps.lines().next()?.split_whitespace().nth(1)?.to_owned())
    }

    #[test]
    fn binding_applies_to_the_thread_and_threads_that_it_starts() {
        if !may_bind() {
            return;
        }
        let node = Node::find(0).unwrap();
        let before = policy_of_this_thread();
        let inside = std::thread::spawn(move || {
            bind_memory_of_this_thread([&node]).unwrap();
            let inherited = std::thread::spawn(policy_of_this_thread).join().unwrap();
            Some((policy_of_this_thread()?, inherited?))
        });
        match inside.join().unwrap() {
            Some(inside) => assert_eq!(inside, ("bind:0".to_owned(), "bind:0".to_owned())),
            None => skip("the system doesn't show the policies of threads"),
        }
        assert_eq!(policy_of_this_thread(), before);
    }

    #[test]
    fn a_missing_node_is_an_error() {
        if !may_bind() {
            return;
        }
        let node = Node { number: NODES_MAX - 1 };
        let outcome = std::thread::spawn(move || bind_memory_of_this_thread([&node]));
        let error = outcome.join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");
    }
}
