//! The C library's allocator before and after models are loaded.
//!
//! Loading takes memory in many small pieces and several times over: ONNX Runtime
//! registers its operators, reads a file, parses it, and copies weights into the order
//! that its kernels like. Left alone the allocator asks the system for these pages one
//! by one, gives those of larger pieces back when they are freed, and asks for them
//! again; a sixth of the time to ready went there. So it is told what is to come:
//! [`OwnHeap::claim`] when a program starts, [`OwnHeap::expect_library`] before the first
//! model, [`return_free_memory`] when the last one is loaded.
//!
//! What is particular to glibc does nothing elsewhere.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::ffi::{c_int, c_void};
    use std::hint::black_box;
    use std::num::NonZero;

    /// Larger than what small models take at once, and less than the 32 MiB up to which
    /// glibc learns.
    const LARGE: usize = 24 << 20;

    /// What ONNX Runtime takes for its operators and the smallest of models: no page of
    /// it is found in vain.
    const SOON: usize = 8 << 20;

    const PAGE: usize = 4096;

    const M_ARENA_MAX: c_int = -8;
    const MADV_POPULATE_WRITE: c_int = 23;

    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
        fn malloc_trim(keep: usize) -> c_int;
        fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int;
    }

    pub(super) fn claim() {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let heaps = c_int::try_from(processors).unwrap_or(c_int::MAX);
        // SAFETY: glibc's function of this name and signature; it sets a number.
        let _is_set = unsafe { mallopt(M_ARENA_MAX, heaps) };
        // From a large block that is freed glibc learns that such blocks come and go: it
        // takes them from the heap from then on, and keeps twice as much at its end.
        drop(black_box(Vec::<u8>::with_capacity(LARGE)));
    }

    pub(super) fn expect_library() {
        let mut block = Vec::<u8>::with_capacity(SOON);
        fill_with_pages(&mut block);
        drop(black_box(block));
    }

    /// Has the system find all pages of the block at once, if it can (Linux 5.14), which
    /// costs less than when each of them is touched.
    fn fill_with_pages(block: &mut Vec<u8>) {
        let spare = block.spare_capacity_mut();
        let before_first = spare.as_ptr().addr().next_multiple_of(PAGE) - spare.as_ptr().addr();
        let Some((_, pages)) = spare.split_at_mut_checked(before_first) else { return };
        let length = pages.len() / PAGE * PAGE;
        // SAFETY: the pages lie in a block that is ours, and what they hold stays.
        let _are_there = unsafe { madvise(pages.as_mut_ptr().cast(), length, MADV_POPULATE_WRITE) };
    }

    pub(super) fn return_free_memory() {
        // SAFETY: glibc's function of this name and signature; it takes the
        // allocator's own locks and touches only memory that nobody owns.
        let _released = unsafe { malloc_trim(0) };
    }

    #[cfg(test)]
    mod tests {
        use super::super::OwnHeap;
        use super::*;

        /// How often this thread touched a page that was not there.
        fn faults() -> usize {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let (_, after_name) = stat.rsplit_once(')').unwrap();
            after_name.split_whitespace().nth(7).unwrap().parse().unwrap()
        }

        fn faults_of(length: usize) -> usize {
            let before = faults();
            drop(black_box(vec![1_u8; length]));
            faults() - before
        }

        #[test]
        fn memory_for_loads_is_there_before_it_is_touched_and_stays() {
            let length = SOON / 2;
            OwnHeap::claim().expect_library();
            let (first, again) = (faults_of(length), faults_of(length));
            // SAFETY: asked about no pages at all, it says whether it knows the advice.
            if unsafe { madvise(std::ptr::null_mut(), 0, MADV_POPULATE_WRITE) } == 0 {
                assert!(first < length / PAGE / 4, "{first} faults");
            }
            assert!(again < length / PAGE / 4, "{again} faults");
        }
    }
}

/// That the process's allocator is the server's, and no host program's.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OwnHeap;

impl OwnHeap {
    /// Sets the process's allocator up for a server: no more heaps than there are
    /// processors, where it would have eight times as many, and large blocks are kept
    /// for reuse from the beginning.
    ///
    /// Threads that load models side by side on one processor then share what is freed.
    /// To be called by a program, not in a host's process, and before there are threads.
    #[must_use]
    pub fn claim() -> Self {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::claim();
        Self
    }

    /// Fills the heap with the pages that ONNX Runtime is about to take.
    pub fn expect_library(&self) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::expect_library();
    }
}

/// Hands free memory back to the system.
///
/// Reading a model and optimising its graph takes several times the memory
/// that its session keeps. The C library's allocator holds on to what was
/// freed; a server that waits for requests shouldn't. While more models are
/// loaded it should: they would ask the system for the same pages again, which
/// costs two thirds of what ONNX Runtime itself takes to load small ones.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::return_free_memory();
}
