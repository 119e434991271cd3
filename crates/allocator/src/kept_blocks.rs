//! Short blocks that a thread has freed and will allocate again.
//!
//! A small request allocates some twenty blocks of less than a kilobyte, which live for
//! microseconds. `malloc` and `free` take 130 instructions per block, most of which check for
//! program errors. Rust returns blocks with their lengths, so a thread can keep one list per
//! length, and allocate and free blocks in a dozen instructions.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

/// The difference between consecutive lengths of kept blocks, which is also their alignment.
const STEP_BYTES: usize = 16;
/// Longer blocks are not kept.
const KEPT_BYTES_MAX: usize = 1024;
const LENGTHS: usize = KEPT_BYTES_MAX / STEP_BYTES;
/// The maximum number of blocks of each length that a thread keeps: at most 260 KiB in total.
const KEPT_MAX: usize = 8;

/// The system allocator, behind the blocks that each thread keeps.
///
/// Only for the executable: in a process that hosts the server, the memory belongs to the host.
#[derive(Debug)]
pub struct ThreadCachingAllocator;

/// The free blocks of one length. The first word of each block is the next block's address.
struct FreeList {
    first: Cell<*mut u8>,
    count: Cell<usize>,
}

/// A thread's free blocks.
struct FreeBlocks {
    lists: [FreeList; LENGTHS],
    /// The maximum number of blocks of each length to keep now: 0 before the thread has freed a
    /// block, and when the thread ends.
    kept_max: Cell<usize>,
    has_begun: Cell<bool>,
}

/// Returns a thread's blocks to the system when the thread ends.
struct ReleaseAtThreadExit;

// The blocks have no destructor, so accesses to them need not check for one.
thread_local! {
    static FREE: FreeBlocks = const { FreeBlocks::new() };
    static END: ReleaseAtThreadExit = const { ReleaseAtThreadExit };
}

impl ThreadCachingAllocator {
    /// The number of blocks of this length that this thread keeps.
    #[must_use]
    pub fn cached_block_count(length: usize) -> usize {
        let index = Layout::from_size_align(length, 1).ok().and_then(index_of);
        let count =
            |index: usize| FREE.with(|free| free.lists.get(index).map(|list| list.count.get()));
        index.and_then(count).unwrap_or(0)
    }
}

impl FreeList {
    const fn new() -> Self {
        Self { first: Cell::new(ptr::null_mut()), count: Cell::new(0) }
    }

    /// Takes a free block; null if there is none.
    #[inline]
    fn take(&self) -> *mut u8 {
        let block = self.first.get();
        if !block.is_null() {
            // SAFETY: `put` wrote this word into the block, which is in no other list.
            self.first.set(unsafe { block.cast::<*mut u8>().read() });
            self.count.set(self.count.get().wrapping_sub(1));
        }
        block
    }

    /// Puts a block into the list unless the list is full.
    ///
    /// # Safety
    ///
    /// The block has the list's length, and the caller owns it.
    #[inline]
    unsafe fn put(&self, block: *mut u8, kept_max: usize) -> bool {
        let count = self.count.get();
        if count >= kept_max {
            return false;
        }
        // SAFETY: the shortest block is longer than an address and has its alignment, and nothing
        // else refers to it.
        unsafe { block.cast::<*mut u8>().write(self.first.get()) };
        self.first.set(block);
        self.count.set(count.wrapping_add(1));
        true
    }
}

impl FreeBlocks {
    const fn new() -> Self {
        let lists = [const { FreeList::new() }; LENGTHS];
        Self { lists, kept_max: Cell::new(0), has_begun: Cell::new(false) }
    }

    /// Handles the thread's first freed block; later ones are kept.
    fn begin(&self) {
        if !self.has_begun.replace(true) && END.try_with(|_| ()).is_ok() {
            self.kept_max.set(KEPT_MAX);
        }
    }

    fn end(&self) {
        self.kept_max.set(0);
        for (list, length) in self.lists.iter().zip((STEP_BYTES..).step_by(STEP_BYTES)) {
            let Ok(layout) = Layout::from_size_align(length, STEP_BYTES) else { return };
            loop {
                let block = list.take();
                if block.is_null() {
                    break;
                }
                // SAFETY: the system allocator allocated it with this layout.
                unsafe { System.dealloc(block, layout) };
            }
        }
    }
}

impl Drop for ReleaseAtThreadExit {
    fn drop(&mut self) {
        FREE.with(FreeBlocks::end);
    }
}

/// The list for blocks with this layout, if they are kept.
#[inline]
const fn index_of(layout: Layout) -> Option<usize> {
    let index = layout.size().wrapping_sub(1) / STEP_BYTES;
    if index < LENGTHS && layout.align() <= STEP_BYTES { Some(index) } else { None }
}

/// The layout that the system allocator uses for a block.
#[inline]
fn fitted(layout: Layout) -> Layout {
    let is_short = layout.size() <= KEPT_BYTES_MAX;
    let size = if is_short { layout.size().next_multiple_of(STEP_BYTES) } else { layout.size() };
    Layout::from_size_align(size, layout.align().max(STEP_BYTES)).unwrap_or(layout)
}

/// Allocates a block from the system.
///
/// # Safety
///
/// The layout isn't empty.
#[cold]
#[inline(never)]
unsafe fn allocate_anew(layout: Layout) -> *mut u8 {
    // SAFETY: the fitted layout isn't empty, because the caller's is not.
    unsafe { System.alloc(fitted(layout)) }
}

/// Returns a block to the system because it is long or enough blocks are kept.
///
/// # Safety
///
/// Same requirements as for [`GlobalAlloc::dealloc`].
#[cold]
#[inline(never)]
unsafe fn give_back(block: *mut u8, layout: Layout) {
    FREE.with(FreeBlocks::begin);
    // SAFETY: the system allocator allocated it with this layout.
    unsafe { System.dealloc(block, fitted(layout)) };
}

// SAFETY: each block comes from the system allocator with the layout `fitted` to the caller's,
// which has at least the same size and alignment, and is returned with the same layout. In between,
// the block is in one list of one thread, which hands it to one caller.
unsafe impl GlobalAlloc for ThreadCachingAllocator {
    // If this were inlined at each call, the program would be a tenth larger.
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let kept = |index: usize| FREE.with(|free| free.lists.get(index).map(FreeList::take));
        match index_of(layout).and_then(kept) {
            Some(block) if !block.is_null() => block,
            // SAFETY: the caller's layout isn't empty.
            _ => unsafe { allocate_anew(layout) },
        }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let keep = |index: usize| {
            FREE.with(|free| {
                let list = free.lists.get(index)?;
                // SAFETY: the caller gives up the block, which has this list's length.
                Some(unsafe { list.put(block, free.kept_max.get()) })
            })
        };
        if index_of(layout).and_then(keep) != Some(true) {
            // SAFETY: the caller guarantees it.
            unsafe { give_back(block, layout) };
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout isn't empty. Blocks from the system are often already zeroed.
        unsafe { System.alloc_zeroed(fitted(layout)) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else {
            return ptr::null_mut();
        };
        if index_of(layout).is_some() && index_of(layout) == index_of(wanted) {
            return block;
        }
        // SAFETY: the system allocator allocated the block with the layout fitted to the old one.
        // The new one has the same alignment.
        unsafe { System.realloc(block, fitted(layout), fitted(wanted).size()) }
    }
}
