//! The server as a library, `libtritonserver.so`: the functions of tritonserver.h,
//! and those that backends in libraries call.
//!
//! There is no code here but what the loader runs first. The functions are those of
//! the crates below; the linker exports what they declare for C, and a test checks
//! that it is all of the headers' functions and nothing else.

#![allow(unsafe_code, reason = "the loader finds the first function by its section")]

/// What the loader calls when it has loaded the library, before any other function
/// of it can be called.
#[used]
// SAFETY: the section holds pointers to functions that the loader calls without
// arguments that this one would read; it only stores a pointer and can't panic.
#[unsafe(link_section = ".init_array")]
static FIRST: extern "C" fn() = {
    extern "C" fn first() {
        galatea::install_for_c();
    }
    first
};
