//! Nodes of a machine whose memory is not equally near to all processors: which
//! processors a node has, and that a thread takes its memory from some.
//!
//! # What it is not
//!
//! Nothing is decided here. Processors are bound elsewhere, with a library that has
//! a safe function for it; for memory there is none, which is why this crate exists:
//! it makes one call of the system that needs `unsafe`, and nothing else.
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

/// Where the system describes its nodes.
const NODES: &str = "/sys/devices/system/node";

/// More nodes than any system has.
const NODES_MAX: u32 = 1024;

/// A node that the machine has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    number: u32,
    processors: Vec<usize>,
}

impl Node {
    /// Finds a node by its number.
    ///
    /// # Errors
    ///
    /// Lists the nodes if there is no such node, or says why they can't be read.
    pub fn find(number: u32) -> Result<Self, String> {
        Self::find_in(Path::new(NODES), number)
    }

    fn find_in(nodes: &Path, number: u32) -> Result<Self, String> {
        let there_is = list(&nodes.join("online"))
            .map_err(|error| format!("the system doesn't say which NUMA nodes it has: {error}"))?;
        let is_known = usize::try_from(number).is_ok_and(|number| there_is.contains(&number));
        if !is_known || number >= NODES_MAX {
            let names: Vec<String> = there_is.iter().map(ToString::to_string).collect();
            let names = names.join(", ");
            return Err(format!("there is no NUMA node {number}, only {names}"));
        }
        let processors = list(&nodes.join(format!("node{number}/cpulist"))).map_err(|error| {
            format!("the system doesn't say which processors NUMA node {number} has: {error}")
        })?;
        Ok(Self { number, processors })
    }

    /// Its number.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Its processors, in order; a node may have memory alone.
    pub fn processors(&self) -> &[usize] {
        &self.processors
    }
}

/// A list of the system's, such as `0-3,8`.
fn list(path: &Path) -> io::Result<Vec<usize>> {
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

/// Nodes as the system takes them: a bit each, and how many bits it is told of.
fn mask_of<'a>(
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
    // The system reads one bit less than it is told.
    let bits = mask.len() * libc::c_ulong::BITS as usize + 1;
    Ok((mask, bits))
}

/// From now on this thread, and those that it starts, take memory from these nodes
/// only. What they have already stays where it is.
///
/// # Errors
///
/// What the system says: among others that this process may not do so.
pub fn bind_memory_of_this_thread<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> io::Result<()> {
    let (mask, bits) = mask_of(nodes)?;
    // SAFETY: the call reads `bits` bits of the mask, whose last word is complete, and keeps
    // no pointer. It changes where later allocations of this thread come from, not memory
    // that exists.
    #[expect(unsafe_code, reason = "no library at hand has this call as a safe function")]
    let outcome =
        unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_BIND, mask.as_ptr(), bits) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_system_are_read() {
        let folder = std::env::temp_dir().join(format!("galatea-numa-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("node1")).unwrap();
        std::fs::write(folder.join("online"), "0-1\n").unwrap();
        std::fs::write(folder.join("node1/cpulist"), "0-2,8\n").unwrap();
        let node = Node::find_in(&folder, 1).unwrap();
        assert_eq!((node.number(), node.processors()), (1, &[0, 1, 2, 8][..]));
        let error = Node::find_in(&folder, 2).unwrap_err();
        assert_eq!(error, "there is no NUMA node 2, only 0, 1");
        let error = Node::find_in(&folder, 0).unwrap_err();
        assert!(error.contains("which processors NUMA node 0 has"), "{error}");
        // A node of memory alone.
        std::fs::write(folder.join("node1/cpulist"), "\n").unwrap();
        assert_eq!(Node::find_in(&folder, 1).unwrap().processors(), [0_usize; 0]);
        std::fs::write(folder.join("online"), "many").unwrap();
        let error = Node::find_in(&folder, 0).unwrap_err();
        assert!(error.ends_with("it says \"many\""), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn nodes_are_bits_of_whole_words() {
        let check = |numbers: &[u32], expected: &[libc::c_ulong]| {
            let node = |number: &u32| Node { number: *number, processors: Vec::new() };
            let nodes: Vec<Node> = numbers.iter().map(node).collect();
            let (mask, bits) = mask_of(&nodes).unwrap();
            assert_eq!(mask, expected, "{numbers:?}");
            // One more than the system reads.
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

    /// Whether the system lets this process bind memory; says so if it doesn't.
    fn may_bind() -> bool {
        let Ok(node) = Node::find(0) else {
            skip("the system has no NUMA nodes");
            return false;
        };
        let outcome = std::thread::spawn(move || bind_memory_of_this_thread([&node]));
        let Err(error) = outcome.join().unwrap() else { return true };
        // Containers forbid it with the first, systems without it say the second.
        let reason = error.raw_os_error();
        assert!(matches!(reason, Some(libc::EPERM | libc::ENOSYS)), "{error}");
        skip(error);
        false
    }

    /// What the system says of the first memory of this thread's.
    fn policy_of_this_thread() -> Option<String> {
        let maps = std::fs::read_to_string("/proc/thread-self/numa_maps").ok()?;
        Some(maps.lines().next()?.split_whitespace().nth(1)?.to_owned())
    }

    #[test]
    fn a_thread_s_memory_is_bound_and_that_of_the_threads_that_it_starts() {
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
    fn a_node_that_is_not_there_is_an_error() {
        if !may_bind() {
            return;
        }
        let node = Node { number: NODES_MAX - 1, processors: Vec::new() };
        let outcome = std::thread::spawn(move || bind_memory_of_this_thread([&node]));
        let error = outcome.join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");
    }
}
