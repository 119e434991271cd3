//! The server as a shared library, `libtritonserver.so`, with the functions of tritonserver.h and
//! the functions that plug-ins call.
//!
//! This crate has *no* functions of its own, except one that the loader calls and one that makes
//! the library's functions visible to plug-ins. The exported functions are in `capi`, `c-objects`
//! and `backend-plugin`. The linker exports the functions that these crates declare for C, and a
//! test checks that they match the functions in the headers exactly.

#![allow(unsafe_code, reason = "the loader calls the first function, and is asked where we are")]

use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;

use galatea_capi::{ReservedServerPointer, ServerCreateOptions};
use galatea_infer::Status;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// Called by the loader after loading the library and before any other function of the library
/// runs.
#[used]
// SAFETY: the section contains pointers to functions that the loader calls with arguments that this
// function ignores. The function only stores pointers and can't panic.
#[unsafe(link_section = ".init_array")]
static FIRST: extern "C" fn() = {
    extern "C" fn first() {
        galatea_capi::install_server_factory(make);
        galatea_capi::install_log_factory(galatea::console_logger);
    }
    first
};

fn make(options: &ServerCreateOptions, reserved: &ReservedServerPointer) -> Result<(), Status> {
    make_visible()?;
    galatea::make_for_c(options, reserved)
}

/// Makes this library's functions visible to libraries that are loaded later. They are already
/// visible in a program that is linked against this library, but not in one that loads it
/// dynamically, as Python does.
fn make_visible() -> Result<(), Status> {
    let failed = |why: &str| Status::internal(format!("the library can't show itself: {why}"));
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    let own = make as *const c_void;
    // SAFETY: the address is a function's address, and the pointer is valid for a write. An
    // all-zero value of this type is valid.
    let path = unsafe {
        if libc::dladdr(own, found.as_mut_ptr()) == 0 {
            return Err(failed("its path is not known"));
        }
        CStr::from_ptr(found.assume_init().dli_fname)
    };
    let path = path.to_str().map_err(|_| failed("its path is not UTF-8"))?;
    let flags = RTLD_NOW | RTLD_GLOBAL | libc::RTLD_NOLOAD;
    // SAFETY: the library is already loaded, so no initialisers run.
    let library = unsafe { Library::open(Some(path), flags) };
    // The library must stay loaded as long as backends do, which is permanently.
    std::mem::forget(library.map_err(|error| failed(&error.to_string()))?);
    Ok(())
}
