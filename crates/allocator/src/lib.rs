//! Tunes the C library's allocator for a program that loads models.
//!
//! # Problem
//!
//! ONNX Runtime loads a model in many small allocations and several large ones: it registers its
//! operators, reads the file, parses it, and copies weights into the layout of its kernels. With
//! glibc's defaults, the startup of a server with five small models spent more than half of its CPU
//! time in the kernel, most of it on page faults: 10,100 faults for 4,100 pages that remain in use.
//!
//! - Each loading thread gets a heap of its own, which grows by one page per system call, and
//!   memory that one thread frees is useless to the others.
//! - Blocks of 128 KiB and more come from `mmap` and are returned when they are freed; the next one
//!   faults its pages in again.
//! - The first touch of each page of a heap is a fault of its own.
//!
//! # What is done
//!
//! | when | call | effect |
//! |---|---|---|
//! | before the program has threads | [`ServerAllocator::configure`] | at most one heap for each processor; blocks below 32 MiB come from a heap, which keeps up to 64 MiB free at its end |
//! | before ONNX Runtime's library is opened | [`ServerAllocator::prefault`] | the heap has 8 MiB of pages, made in one system call |
//! | after the last load | [`release_free_memory`] | free pages go back to the system |
//! | after a burst of requests | [`ServerAllocator::release_free_memory`] | the same, and the free ends of all heaps |
//!
//! `malloc_trim` releases free pages inside all heaps, and the free end of the first one. It never
//! releases the ends of the others: they shrink only when a block is freed while their end is
//! longer than the threshold, so each would keep up to 64 MiB of a burst forever. That is why the
//! server's allocator briefly lowers the threshold and frees a block in every heap.
//!
//! Memory is not released between loads: the next load would take the same pages again,
//! which costs two thirds of what ONNX Runtime itself takes to load a small model.
//!
//! # Gain and cost
//!
//! Startup takes 50 ms instead of 61 (medians of 17 interleaved starts), with the same resident
//! memory at the end.
//!
//! The cost is that threads that share a heap share its lock and its free blocks. With only one
//! heap, identity with 16 MiB over HTTP took 17.5 ms of CPU instead of 12.2. If large blocks are
//! kept as well, it takes as much as with glibc's defaults (14.3 and 14.1 ms in another
//! comparison). The two settings therefore belong together.
//!
//! The 8 MiB correspond to what ONNX Runtime takes for its operators and the smallest model: 16 MiB
//! left 6 MiB more resident while the server was starting.
//!
//! # Short blocks
//!
//! [`ThreadCachingAllocator`] keeps short blocks that are freed for the thread that freed them, in front of
//! the C library's allocator.
//!
//! # What it is not
//!
//! The allocator of a process that hosts the server as a library belongs to that program: only the
//! executable makes a [`ServerAllocator`] and has [`ThreadCachingAllocator`]. Nothing is tuned where the C
//! library isn't glibc.
//!
//! # Example
//!
//! ```
//! let allocator = galatea_allocator::AllocatorTuning::configure();
//! allocator.prefault();
//! // Load models.
//! galatea_allocator::release_free_memory();
//! ```

#[allow(unsafe_code, reason = "an allocator hands out memory; each block says why it is sound")]
mod kept_blocks;

pub use self::kept_blocks::ThreadCachingAllocator;

/// The minimum size of blocks that come from `mmap`. glibc allows no larger value.
const MMAP_THRESHOLD_BYTES: usize = 32 << 20;
/// The lowest value of that size where little memory may be used: smaller blocks are allocated too
/// often.
const MMAP_THRESHOLD_BYTES_MIN: usize = 1 << 20;
/// The number of such blocks that the usable memory holds, where it is limited.
const MMAP_SHARE: usize = 256;

/// Proof that the process's allocator is the server's to tune, and not a host program's.
#[derive(Clone, Debug)]
pub struct AllocatorTuning {
    /// The minimum size of blocks that come from `mmap`.
    mmap_threshold: usize,
}

impl AllocatorTuning {
    /// Limits the number of heaps to the number of processors, whereas glibc's limit is eight times
    /// as high, and keeps large blocks for reuse.
    ///
    /// A program must call this before it starts threads, and never in a host's process.
    #[must_use]
    pub fn configure() -> Self {
        let allocator = Self { mmap_threshold: MMAP_THRESHOLD_BYTES };
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::configure(&allocator);
        allocator
    }

    /// Makes the heaps keep less free memory, for a program that may hold at most this many bytes:
    /// blocks of at least a `MMAP_SHARE`th of that number come from `mmap`.
    ///
    /// Such a block leaves the process as soon as it is freed. In a heap, short blocks settle in
    /// the place of a long one, so that the next long one needs another place: 64 clients with
    /// messages of 16 MiB made heaps of 430 MiB despite a limit of 256 MiB.
    #[must_use]
    pub fn for_memory_limit(self, bytes_max: usize) -> Self {
        let mmap_threshold =
            (bytes_max / MMAP_SHARE).clamp(MMAP_THRESHOLD_BYTES_MIN, MMAP_THRESHOLD_BYTES);
        let allocator = Self { mmap_threshold };
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::set_thresholds(&allocator);
        allocator
    }

    /// Fills the heap with the pages that ONNX Runtime takes when its library is opened.
    pub fn prefault(&self) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::prefault();
    }

    /// Returns free memory to the system after a burst of requests: everything that
    /// [`release_free_memory`] returns, and the free ends of all heaps.
    ///
    /// Starts and ends a thread for each heap.
    pub fn release_free_memory(&self) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        {
            glibc::release_free_memory();
            glibc::release_ends_of_heaps(self);
        }
    }
}

/// Returns free memory to the system.
///
/// Loading a model takes several times the memory that its session keeps, and the allocator holds
/// on to the freed memory.
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
    use std::sync::mpsc::channel;
    use std::thread;

    use super::AllocatorTuning;

    /// The size of a block whose release makes glibc examine the end of a heap; glibc does so at 64
    /// KiB or more.
    const TRIMMING_BLOCK_BYTES: usize = 128 << 10;

    /// The stack size of a thread that allocates a single block.
    const STACK_BYTES: usize = 256 << 10;

    /// The memory that ONNX Runtime takes for its operators and the smallest models, so that every
    /// page is used.
    const PREFAULT_BYTES: usize = 8 << 20;

    const PAGE_BYTES: usize = 4096;

    const M_TRIM_THRESHOLD: c_int = -1;
    const M_MMAP_THRESHOLD: c_int = -3;
    /// The option of `mallopt` that bounds the number of heaps.
    const M_ARENA_MAX: c_int = -8;
    const MADV_POPULATE_WRITE: c_int = 23;

    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
        fn malloc_trim(keep: usize) -> c_int;
        fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int;
    }

    pub(super) fn configure(allocator: &AllocatorTuning) {
        set(M_ARENA_MAX, heaps_max());
        set_thresholds(allocator);
    }

    /// Sets the thresholds. The end of a heap keeps as much memory as glibc itself would choose.
    pub(super) fn set_thresholds(allocator: &AllocatorTuning) {
        set(M_MMAP_THRESHOLD, allocator.mmap_threshold);
        set(M_TRIM_THRESHOLD, allocator.mmap_threshold.saturating_mul(2));
    }

    fn heaps_max() -> usize {
        thread::available_parallelism().map_or(1, NonZero::get)
    }

    fn set(parameter: c_int, value: usize) {
        let value = c_int::try_from(value).unwrap_or(c_int::MAX);
        // SAFETY: glibc's function of this name and signature; it sets a number.
        let _is_set = unsafe { mallopt(parameter, value) };
    }

    pub(super) fn prefault() {
        let mut block = Vec::<u8>::with_capacity(PREFAULT_BYTES);
        populate(&mut block);
        drop(black_box(block));
    }

    /// Populates all pages of the block in one system call (Linux 5.14), which costs less than one
    /// fault per page. Does nothing on older systems.
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

    /// Frees a block in every heap while the heaps' ends must not keep any memory.
    pub(super) fn release_ends_of_heaps(allocator: &AllocatorTuning) {
        let blocks = blocks_of_all_heaps();
        set(M_TRIM_THRESHOLD, 0);
        drop(black_box(blocks));
        set_thresholds(allocator);
    }

    /// A block from each heap. Once the maximum number of heaps exists, glibc assigns them to new
    /// threads in turn. A heap whose threads have ended comes first, so no thread ends before all
    /// have begun.
    fn blocks_of_all_heaps() -> Vec<Vec<u8>> {
        thread::scope(|scope| {
            let mut blocks = Vec::new();
            let mut threads = Vec::new();
            for _ in 0..heaps_max() {
                let (sender, receiver) = channel();
                let allocate = move || {
                    let _ = sender.send(Vec::<u8>::with_capacity(TRIMMING_BLOCK_BYTES));
                    thread::park();
                };
                let builder = thread::Builder::new().stack_size(STACK_BYTES);
                let Ok(thread) = builder.spawn_scoped(scope, allocate) else { break };
                blocks.extend(receiver.recv());
                threads.push(thread);
            }
            threads.iter().for_each(|thread| thread.thread().unpark());
            blocks
        })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// A single test, because a thread of another test would take a heap out of turn.
        #[test]
        fn heaps_give_back_what_is_free_and_keep_what_is_prefaulted() {
            the_free_ends_of_all_heaps_go_back();
            prefaulted_memory_is_populated_and_stays_in_the_heap();
        }

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

        /// The resident memory of this process in bytes.
        fn resident_bytes() -> usize {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * PAGE_BYTES
        }

        /// Tests that each heap returns its free end, with threads that each leave 40 MiB free and
        /// live on.
        fn the_free_ends_of_all_heaps_go_back() {
            const KEPT_BYTES: usize = 20 << 20;
            let allocator = AllocatorTuning::configure();
            let before = resident_bytes();
            thread::scope(|scope| {
                let (sender, receiver) = channel();
                let threads: Vec<_> = (0..heaps_max().max(2))
                    .map(|_| {
                        let sender = sender.clone();
                        scope.spawn(move || {
                            let blocks = [vec![1_u8; KEPT_BYTES], vec![1_u8; KEPT_BYTES]];
                            drop(black_box(blocks));
                            sender.send(()).unwrap();
                            thread::park();
                        })
                    })
                    .collect();
                threads.iter().for_each(|_| receiver.recv().unwrap());
                let kept = resident_bytes().saturating_sub(before);
                allocator.release_free_memory();
                let left = resident_bytes().saturating_sub(before);
                threads.iter().for_each(|thread| thread.thread().unpark());
                assert!(kept > KEPT_BYTES && left < KEPT_BYTES / 8, "{kept}, then {left}");
            });
        }

        fn prefaulted_memory_is_populated_and_stays_in_the_heap() {
            let length = PREFAULT_BYTES / 2;
            AllocatorTuning::configure().prefault();
            let (first, second) = (faults_of_writing(length), faults_of_writing(length));
            // SAFETY: for a range of no pages the call only checks whether it knows the advice.
            if unsafe { madvise(std::ptr::null_mut(), 0, MADV_POPULATE_WRITE) } == 0 {
                assert!(first < length / PAGE_BYTES / 4, "{first} faults");
            }
            assert!(second < length / PAGE_BYTES / 4, "{second} faults");
        }
    }
}
