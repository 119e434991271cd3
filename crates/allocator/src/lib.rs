//! Tunes the C library's allocator for a program that loads models.
//!
//! # Problem
//!
//! ONNX Runtime loads a model in many small allocations and several large ones: it
//! registers its operators, reads the file, parses it, and copies weights into the layout
//! of its kernels. With glibc's defaults the start of a server with five small models spent
//! more than half of its CPU time in the kernel, most of it on page faults: 10,100 faults
//! for 4,100 pages that stay.
//!
//! - Each loading thread gets a heap of its own, which grows by one page a system call, and
//!   memory that one thread frees is no use to the others.
//! - Blocks from 128 KiB up come from `mmap` and go back when they are freed; the next one
//!   faults its pages in again.
//! - The first touch of each page of a heap is a fault of its own.
//!
//! # What is done
//!
//! | when | call | effect |
//! |---|---|---|
//! | before the program has threads | [`ServerAllocator::configure`] | at most one heap for each processor; blocks up to 24 MiB come from the heap, which keeps twice as much free at its end |
//! | before ONNX Runtime's library is opened | [`ServerAllocator::prefault`] | the heap has 8 MiB of pages, made in one system call |
//! | after the last load | [`release_free_memory`] | free pages go back to the system |
//!
//! Memory is not released between loads: the next load would take the same pages again,
//! which costs two thirds of what ONNX Runtime itself takes to load a small model.
//!
//! # Gain and cost
//!
//! The start takes 50 ms instead of 61 (medians of 17 starts in turn), with the same
//! resident memory at the end.
//!
//! The cost: threads that share a heap share its lock and its free blocks. With one heap
//! alone, identity with 16 MiB over HTTP took 17.5 ms of CPU instead of 12.2; with large
//! blocks kept as well it takes what it takes with glibc's defaults (14.3 and 14.1 ms in
//! another comparison). So the two settings belong together.
//!
//! The 8 MiB are what ONNX Runtime takes for its operators and the smallest model: 16 MiB
//! left 6 MiB more resident while the server started.
//!
//! # What it is not
//!
//! It is no allocator and replaces none. The allocator of a process that hosts the server
//! as a library belongs to that program: only the executable makes a [`ServerAllocator`].
//! Nothing happens where the C library isn't glibc.
//!
//! # Example
//!
//! ```
//! let allocator = galatea_allocator::ServerAllocator::configure();
//! allocator.prefault();
//! // Load models.
//! galatea_allocator::release_free_memory();
//! ```

/// Proof that the process's allocator is the server's to tune, and not a host program's.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerAllocator;

impl ServerAllocator {
    /// Limits the number of heaps to that of processors, where glibc's limit is eight times
    /// as many, and keeps large blocks for reuse.
    ///
    /// For a program to call before it starts threads, never in a host's process.
    #[must_use]
    pub fn configure() -> Self {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::configure();
        Self
    }

    /// Fills the heap with the pages that ONNX Runtime takes when its library is opened.
    pub fn prefault(&self) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::prefault();
    }
}

/// Gives free memory back to the system.
///
/// Loading a model takes several times the memory that its session keeps, and the
/// allocator holds on to what is freed.
pub fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::release_free_memory();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "C functions are called; each block says why it is sound")]
mod glibc {
    use std::ffi::{c_int, c_void};
    use std::hint::black_box;
    use std::num::NonZero;

    /// More than small models take at once, and less than the 32 MiB up to which glibc
    /// raises its threshold for `mmap`.
    const LARGE_BLOCK_BYTES: usize = 24 << 20;

    /// What ONNX Runtime takes for its operators and the smallest of models, so that every
    /// page is used.
    const PREFAULT_BYTES: usize = 8 << 20;

    const PAGE_BYTES: usize = 4096;

    const M_ARENA_MAX: c_int = -8;
    const MADV_POPULATE_WRITE: c_int = 23;

    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
        fn malloc_trim(keep: usize) -> c_int;
        fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int;
    }

    pub(super) fn configure() {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let heaps_max = c_int::try_from(processors).unwrap_or(c_int::MAX);
        // SAFETY: glibc's function of this name and signature; it sets a number.
        let _is_set = unsafe { mallopt(M_ARENA_MAX, heaps_max) };
        // When glibc frees a block that came from `mmap`, it raises its threshold for `mmap`
        // to the block's size, and the free memory that a heap keeps to twice as much.
        drop(black_box(Vec::<u8>::with_capacity(LARGE_BLOCK_BYTES)));
    }

    pub(super) fn prefault() {
        let mut block = Vec::<u8>::with_capacity(PREFAULT_BYTES);
        populate(&mut block);
        drop(black_box(block));
    }

    /// Makes all pages of the block in one system call (Linux 5.14), which costs less than
    /// a fault for each. Does nothing on older systems.
    fn populate(block: &mut Vec<u8>) {
        let spare = block.spare_capacity_mut();
        let address = spare.as_ptr().addr();
        let first_page = address.next_multiple_of(PAGE_BYTES) - address;
        let Some((_, pages)) = spare.split_at_mut_checked(first_page) else { return };
        let length = pages.len() / PAGE_BYTES * PAGE_BYTES;
        // SAFETY: the pages lie in a block that this function borrows exclusively, and the
        // call does not change their contents.
        let _is_populated =
            unsafe { madvise(pages.as_mut_ptr().cast(), length, MADV_POPULATE_WRITE) };
    }

    pub(super) fn release_free_memory() {
        // SAFETY: glibc's function of this name and signature; it takes the allocator's own
        // locks and touches only free memory.
        let _is_released = unsafe { malloc_trim(0) };
    }

    #[cfg(test)]
    mod tests {
        use super::super::ServerAllocator;
        use super::*;

        /// The number of minor page faults of this thread.
        fn faults() -> usize {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let (_, after_name) = stat.rsplit_once(')').unwrap();
            after_name.split_whitespace().nth(7).unwrap().parse().unwrap()
        }

        fn faults_of_writing(length: usize) -> usize {
            let before = faults();
            drop(black_box(vec![1_u8; length]));
            faults() - before
        }

        #[test]
        fn prefaulted_memory_is_populated_and_stays_in_the_heap() {
            let length = PREFAULT_BYTES / 2;
            ServerAllocator::configure().prefault();
            let (first, second) = (faults_of_writing(length), faults_of_writing(length));
            // SAFETY: for a range of no pages the call only checks whether it knows the advice.
            if unsafe { madvise(std::ptr::null_mut(), 0, MADV_POPULATE_WRITE) } == 0 {
                assert!(first < length / PAGE_BYTES / 4, "{first} faults");
            }
            assert!(second < length / PAGE_BYTES / 4, "{second} faults");
        }
    }
}
