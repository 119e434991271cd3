//! The server as a library, `libtritonserver.so`: the functions of tritonserver.h,
//! and those that backends in libraries call.
//!
//! There is no code here but what the loader runs first, and what makes the functions
//! visible to backends. The functions are those of the crates below; the linker exports
//! what they declare for C, and a test checks that it is all of the headers' functions
//! and nothing else.

#![allow(unsafe_code, reason = "the loader calls the first function, and is asked where we are")]

use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;

use galatea_capi::Reserved;
use galatea_infer::Status;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// What the loader calls when it has loaded the library, before any other function
/// of it can be called.
#[used]
// SAFETY: the section holds pointers to functions that the loader calls without
// arguments that this one would read; it only stores pointers and can't panic.
#[unsafe(link_section = ".init_array")]
static FIRST: extern "C" fn() = {
    extern "C" fn first() {
        galatea_capi::install(make);
        galatea_capi::install_log_factory(galatea::console_log);
    }
    first
};

fn make(flags: &[String], reserved: &Reserved) -> Result<(), Status> {
    make_visible()?;
    galatea::make_for_c(flags, reserved)
}

/// Lets libraries that are loaded later find our functions. A program that is linked
/// to us has seen to that; one that opens us, as Python does, keeps us to itself.
fn make_visible() -> Result<(), Status> {
    let failed = |why: &str| Status::internal(format!("the library can't show itself: {why}"));
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    let own = make as *const c_void;
    // SAFETY: the address is a function's, and the place can be written. All zeros
    // are a value of this type.
    let path = unsafe {
        if libc::dladdr(own, found.as_mut_ptr()) == 0 {
            return Err(failed("its path is not known"));
        }
        CStr::from_ptr(found.assume_init().dli_fname)
    };
    let path = path.to_str().map_err(|_| failed("its path is not UTF-8"))?;
    let flags = RTLD_NOW | RTLD_GLOBAL | libc::RTLD_NOLOAD;
    // SAFETY: it is loaded already, so no initialiser runs.
    let library = unsafe { Library::open(Some(path), flags) };
    // It must stay as long as backends do: for ever.
    std::mem::forget(library.map_err(|error| failed(&error.to_string()))?);
    Ok(())
}
