//! Giving memory back after models were loaded.

/// Hands free memory back to the system.
///
/// Reading a model and optimising its graph takes several times the memory
/// that its session keeps. The C library's allocator holds on to what was
/// freed; a server that waits for requests shouldn't. While more models are
/// loaded it should: they would ask the system for the same pages again, which
/// costs two thirds of what ONNX Runtime itself takes to load small ones.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(keep: usize) -> std::ffi::c_int;
        }
        // SAFETY: glibc's function of this name and signature; it takes the
        // allocator's own locks and touches only memory that nobody owns.
        let _released = unsafe { malloc_trim(0) };
    }
}
