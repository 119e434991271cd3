//! Ends a process while libraries are still executing.

/// Ends the process at once with this exit code. No destructor and no exit handler of a
/// library runs, and the C library's streams aren't flushed.
///
/// Meant for a process in which a library, such as ONNX Runtime or a plug-in, may still be
/// executing: its threads run until the last moment and must not find its objects destroyed.
pub fn end_process(code: i32) -> ! {
    // SAFETY: it takes any number, doesn't return, and accesses no memory of this
    // process.
    unsafe { libc::_exit(code) }
}
