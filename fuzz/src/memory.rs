//! The memory that an input takes.

use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The most memory that an input may take for each of its bytes.
const PER_BYTE_MAX: usize = 64;
/// The memory that an input may take beside that.
const BYTES_MAX: usize = 1 << 20;

/// Calls a function with an input, and panics if that takes too much memory. Targets that call
/// it have one thread.
pub fn bounded_by_length<T: AsRef<[u8]> + ?Sized>(input: &T, read: impl FnOnce(&T)) {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    read(input);
    let taken = ALLOCATOR.peak_usage().saturating_sub(before);
    let length = input.as_ref().len();
    let most = length * PER_BYTE_MAX + BYTES_MAX;
    assert!(taken <= most, "{taken} bytes were taken for {length}");
}
