//! Ends a process while libraries are still executing.

/// Ends the process immediately with this exit code. Libraries' destructors and exit handlers don't
/// run, and the C library's streams aren't flushed.
///
/// Intended for a process in which a library, such as ONNX Runtime or a plug-in, may still be
/// executing: its threads run until the last moment and must not find their objects destroyed.
pub fn exit_without_destructors(code: i32) -> ! {
    // SAFETY: `_exit` accepts any number, doesn't return, and doesn't access this process's memory.
    unsafe { libc::_exit(code) }
}
