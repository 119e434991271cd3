//! The end of a process whose libraries are still at work.

/// Ends the process at once, with this exit code: no destructor runs, no handler that a
/// library has left for the end, and the C library's streams aren't flushed.
///
/// For a process in which a library, ONNX Runtime's or a plug-in's, may still execute
/// something: its other threads go on until the last moment, and must not find its
/// objects destroyed.
pub fn end_process(code: i32) -> ! {
    // SAFETY: it takes any number, doesn't come back, and touches nothing of this process.
    unsafe { libc::_exit(code) }
}
