//! Tunes the C library's allocator for a program that loads models.
//!
//! # Problem
//!
//! ONNX Runtime loads a model with many small allocations and several large ones: it registers its
//! operators, reads the file, parses it, and copies weights into its kernels' layout. With glibc's
//! defaults, a server with five small models spent more than half of its startup CPU time in the
//! kernel, most of it on page faults: 10,100 faults for 4,100 pages that remain in use.
//!
//! - Each loading thread gets its own heap, which grows by one page per system call, and other
//!   threads can't use the memory that it frees.
//! - Blocks of 128 KiB and more come from `mmap` and are returned when they are freed; the next
//!   block faults in its pages again.
//! - The first access to each heap page causes a separate fault.
//!
//! # What is done
//!
//! | when | call | effect |
//! |---|---|---|
//! | before the program has threads | [`GlibcMallocTuner::configure`] | at most one heap for each processor; blocks below 32 MiB come from a heap, which keeps up to 64 MiB free at its end |
//! | before ONNX Runtime's library is opened | [`GlibcMallocTuner::prefault_heap`] | the heap has 8 MiB of pages, made in one system call |
//! | after the last load | [`release_free_memory`] | free pages go back to the system |
//! | after a burst of requests | [`GlibcMallocTuner::release_free_memory`] | the same, and the free ends of all heaps |
//!
//! `malloc_trim` releases free pages inside all heaps, and the free end of the first heap. It never
//! releases the ends of the other heaps: they shrink only when a block is freed while their end is
//! longer than the threshold, so each heap would keep up to 64 MiB of a burst forever. To release
//! these ends, the server's allocator briefly lowers the threshold and frees a block in every heap.
//!
//! Memory is not released between loads: the next load would need the same pages again, which costs
//! two thirds of ONNX Runtime's own time for loading a small model.
//!
//! # Gain and cost
//!
//! Startup takes 50 ms instead of 61 (medians of 17 interleaved starts), with the same resident
//! memory at the end.
//!
//! The cost is that threads that share a heap also share its lock and its free blocks. With only
//! one heap, a 16 MiB identity request over HTTP took 17.5 ms of CPU time instead of 12.2. If large
//! blocks are kept as well, it takes about the same as with glibc's defaults (14.3 and 14.1 ms in
//! another comparison). The two settings therefore belong together.
//!
//! The 8 MiB match ONNX Runtime's needs for its operators and the smallest model: 16 MiB left 6 MiB
//! more resident during startup.
//!
//! # Short blocks
//!
//! [`ThreadCachingAllocator`], in front of the C library's allocator, keeps freed short blocks for
//! the thread that freed them.
//!
//! # What it is not
//!
//! In a process that hosts the server as a library, the allocator belongs to the host program: only
//! the executable creates an [`GlibcMallocTuner`] and uses [`ThreadCachingAllocator`]. Nothing is
//! tuned if the C library isn't glibc.
//!
//! # Example
//!
//! ```
//! let allocator = galatea_allocator::GlibcMallocTuner::configure();
//! allocator.prefault_heap();
//! // Load models.
//! galatea_allocator::release_free_memory();
//! ```

#[allow(unsafe_code, reason = "an allocator hands out memory; each block says why it is sound")]
mod kept_blocks;

pub use self::kept_blocks::ThreadCachingAllocator;

/// The minimum size of blocks that come from `mmap`. glibc allows no larger value.
const MMAP_THRESHOLD_BYTES: usize = 32 << 20;
/// The minimum for that size under a memory limit: smaller blocks are allocated too often.
const MMAP_THRESHOLD_BYTES_MIN: usize = 1 << 20;
/// The number of such blocks that fit in the usable memory, if it is limited.
const MMAP_SHARE: usize = 256;

/// Tunes glibc's malloc. Having one proves that the process's allocator belongs to the server and
/// not to a host program.
#[derive(Clone, Debug)]
pub struct GlibcMallocTuner {
    /// The minimum size of blocks that come from `mmap`.
    mmap_threshold: usize,
}

impl GlibcMallocTuner {
    /// Limits the number of heaps to the number of processors (glibc's limit is eight times that)
    /// and keeps large blocks for reuse.
    ///
    /// A program must call this before it starts threads, and never in a host's process.
    #[must_use]
    pub fn configure() -> Self {
        let allocator = Self { mmap_threshold: MMAP_THRESHOLD_BYTES };
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::configure(&allocator);
        allocator
    }

    /// Makes the heaps keep less free memory, for a program that may use at most this many bytes:
    /// blocks of at least one `MMAP_SHARE`th of that number come from `mmap`.
    ///
    /// Such a block leaves the process as soon as it is freed. In a heap, short blocks take up the
    /// space of a freed long block, so the next long block needs new space: 64 clients with 16 MiB
    /// messages grew the heaps to 430 MiB despite a limit of 256 MiB.
    #[must_use]
    pub fn for_memory_limit(self, bytes_max: usize) -> Self {
        let mmap_threshold =
            (bytes_max / MMAP_SHARE).clamp(MMAP_THRESHOLD_BYTES_MIN, MMAP_THRESHOLD_BYTES);
        let allocator = Self { mmap_threshold };
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::set_thresholds(&allocator);
        allocator
    }

    /// Fills the heap with the pages that ONNX Runtime needs when its library is opened.
    pub fn prefault_heap(&self) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::prefault();
    }

    /// Returns free memory to the system after a burst of requests: everything that
    /// [`release_free_memory`] returns, and the free ends of all heaps.
    ///
    /// Starts one thread for each heap and waits for it to finish.
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
/// Loading a model needs several times the memory that its session keeps, and the allocator retains
/// the freed memory.
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

    use super::GlibcMallocTuner;

    /// The size of a block whose release makes glibc examine the end of a heap; glibc does so at 64
    /// KiB or more.
    const TRIMMING_BLOCK_BYTES: usize = 128 << 10;

    /// The stack size of a thread that allocates a single block.
    const STACK_BYTES: usize = 256 << 10;

    /// The memory that ONNX Runtime needs for its operators and the smallest models, so that every
    /// page is used.
    const PREFAULT_BYTES: usize = 8 << 20;

    const PAGE_BYTES: usize = 4096;

    const M_TRIM_THRESHOLD: c_int = -1;
    const M_MMAP_THRESHOLD: c_int = -3;
    /// The `mallopt` option that limits the number of heaps.
    const M_ARENA_MAX: c_int = -8;
    const MADV_POPULATE_WRITE: c_int = 23;

    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
        fn malloc_trim(keep: usize) -> c_int;
        fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int;
    }

    pub(super) fn configure(allocator: &GlibcMallocTuner) {
        set(M_ARENA_MAX, heaps_max());
        set_thresholds(allocator);
    }

    /// Sets the thresholds. Each heap's end keeps the amount of free memory that glibc itself would
    /// choose.
    pub(super) fn set_thresholds(allocator: &GlibcMallocTuner) {
        set(M_MMAP_THRESHOLD, allocator.mmap_threshold);
        set(M_TRIM_THRESHOLD, allocator.mmap_threshold.saturating_mul(2));
    }

    fn heaps_max() -> usize {
        thread::available_parallelism().map_or(1, NonZero::get)
    }

    fn set(parameter: c_int, value: usize) {
        let value = c_int::try_from(value).unwrap_or(c_int::MAX);
        // SAFETY: this is glibc's function with this name and signature; it sets a number.
        let _is_set = unsafe { mallopt(parameter, value) };
    }

    pub(super) fn prefault() {
        let mut block = Vec::<u8>::with_capacity(PREFAULT_BYTES);
        populate(&mut block);
        drop(black_box(block));
    }

    /// Populates all pages of the block in one system call (Linux 5.14), which is cheaper than one
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
        // SAFETY: this is glibc's function with this name and signature; it takes the allocator's
        // own locks and touches only free memory.
        let _is_released = unsafe { malloc_trim(0) };
    }

    /// Frees a block in every heap while the heaps' ends may not keep any memory.
    pub(super) fn release_ends_of_heaps(allocator: &GlibcMallocTuner) {
        let blocks = blocks_of_all_heaps();
        set(M_TRIM_THRESHOLD, 0);
        drop(black_box(blocks));
        set_thresholds(allocator);
    }

    /// Allocates a block from each heap. Once the maximum number of heaps exists, glibc assigns
    /// them to new threads in turn. A heap whose threads have ended comes first, so no thread ends
    /// before all have begun.
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

        /// This is a single test because another test's thread would take a heap out of turn.
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

        /// This process's resident memory in bytes.
        fn resident_bytes() -> usize {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * PAGE_BYTES
        }

        /// Tests that each heap returns its free end. The threads each leave 40 MiB free and keep
        /// running.
        fn the_free_ends_of_all_heaps_go_back() {
            const KEPT_BYTES: usize = 20 << 20;
            let allocator = GlibcMallocTuner::configure();
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
            GlibcMallocTuner::configure().prefault_heap();
            let (first, second) = (faults_of_writing(length), faults_of_writing(length));
            // SAFETY: for an empty range, the call only checks whether it knows the advice.
            if unsafe { madvise(std::ptr::null_mut(), 0, MADV_POPULATE_WRITE) } == 0 {
                assert!(first < length / PAGE_BYTES / 4, "{first} faults");
            }
            assert!(second < length / PAGE_BYTES / 4, "{second} faults");
        }
    }
}
