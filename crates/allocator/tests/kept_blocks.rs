//! Blocks that threads keep. The tests run in a separate process: their threads would take heaps
//! out of turn, and other tests count those heaps.

#![allow(unsafe_code, reason = "an allocator is called as collections do")]

use std::alloc::{GlobalAlloc as _, Layout};
use std::cell::Cell;
use std::ptr;
use std::sync::mpsc::{Sender, channel};

use galatea_allocator::ThreadCachingAllocator;

fn allocate(length: usize) -> *mut u8 {
    // SAFETY: the layout isn't empty.
    unsafe { ThreadCachingAllocator.alloc(layout(length)) }
}

fn free(block: *mut u8, length: usize) {
    // SAFETY: the block comes from `allocate` with the same length.
    unsafe { ThreadCachingAllocator.dealloc(block, layout(length)) };
}

fn layout(length: usize) -> Layout {
    Layout::from_size_align(length, 8).expect("a length and an alignment")
}

#[test]
fn the_last_freed_block_of_a_length_is_taken_first() {
    // The first block that a thread frees is not kept.
    free(allocate(1), 1);
    let blocks = [allocate(17), allocate(32)];
    free(blocks[0], 17);
    free(blocks[1], 32);
    assert_eq!(ThreadCachingAllocator::cached_block_count(20), 2);
    assert_ne!(allocate(16), blocks[1]);
    assert_eq!([allocate(20), allocate(31)], [blocks[1], blocks[0]]);
    assert_eq!(ThreadCachingAllocator::cached_block_count(20), 0);
}

#[test]
fn blocks_do_not_overlap() {
    let lengths = || (1..=1024 + 20).chain([1, 1024, 1025]);
    for _ in 0..3 {
        let blocks: Vec<_> = lengths().map(|length| (allocate(length), length)).collect();
        for (number, (block, length)) in (0..=u8::MAX).cycle().zip(&blocks) {
            assert_eq!(block.addr() % 16, 0);
            // SAFETY: the block has this length.
            unsafe { block.write_bytes(number, *length) };
        }
        for (number, (block, length)) in (0..=u8::MAX).cycle().zip(blocks) {
            // SAFETY: its bytes have been written.
            let bytes = unsafe { std::slice::from_raw_parts(block, length) };
            assert!(bytes.iter().all(|byte| *byte == number), "{length}");
            free(block, length);
        }
    }
}

#[test]
fn a_thread_keeps_a_bounded_number_of_short_blocks() {
    let blocks: Vec<_> = (0..=32).map(|_| allocate(100)).collect();
    blocks.into_iter().for_each(|block| free(block, 100));
    assert_eq!(ThreadCachingAllocator::cached_block_count(100), 8);
    free(allocate(1025), 1025);
    assert_eq!(ThreadCachingAllocator::cached_block_count(1025), 0);
}

#[test]
fn blocks_of_other_threads_are_kept_too() {
    let block = allocate(48).expose_provenance();
    let thread = std::thread::spawn(move || {
        free(allocate(1), 1);
        free(ptr::with_exposed_provenance_mut(block), 48);
        let again = allocate(48);
        free(again, 48);
        again.addr()
    });
    assert_eq!(thread.join().unwrap(), block);
}

/// Frees a block when its thread ends, after the kept blocks are gone.
struct Late(Cell<Option<Sender<usize>>>);

impl Drop for Late {
    fn drop(&mut self) {
        free(allocate(64), 64);
        let sender = self.0.take().expect("the thread has set it");
        sender.send(ThreadCachingAllocator::cached_block_count(64)).expect("the test receives it");
    }
}

thread_local! {
    static LATE: Late = const { Late(Cell::new(None)) };
}

#[test]
fn a_thread_that_ends_keeps_nothing() {
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(|| {
        // Destructors run in reverse order.
        LATE.with(|late| late.0.set(Some(sender)));
        free(allocate(1), 1);
        free(allocate(64), 64);
        ThreadCachingAllocator::cached_block_count(64)
    });
    assert_eq!((thread.join().unwrap(), receiver.recv().unwrap()), (1, 0));
}

#[test]
fn contents_survive_another_length() {
    let lengths = [1, 16, 17, 1024, 1025, 5000, 1024, 40, 48, 1];
    let mut block = allocate(1);
    // SAFETY: the block has at least one byte, and each call gets the previous call's length.
    unsafe {
        block.write(7);
        for pair in lengths.windows(2) {
            let before = block;
            block = ThreadCachingAllocator.realloc(block, layout(pair[0]), pair[1]);
            assert_eq!(block.read(), 7);
            assert!(pair != [40, 48] || before == block);
        }
    }
    free(block, 1);
}

#[test]
fn zeroed_blocks_are_zeros() {
    let used = allocate(64);
    // SAFETY: the block has this length.
    unsafe { used.write_bytes(1, 64) };
    free(allocate(64), 64);
    free(used, 64);
    // SAFETY: the layout isn't empty, and the block has its length.
    let zeros = unsafe {
        let block = ThreadCachingAllocator.alloc_zeroed(layout(64));
        let zeros = std::slice::from_raw_parts(block, 64).to_vec();
        ThreadCachingAllocator.dealloc(block, layout(64));
        zeros
    };
    assert_eq!(zeros, [0; 64]);
}
