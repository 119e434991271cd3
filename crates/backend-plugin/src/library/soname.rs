//! Empty libraries that only provide a name.
//!
//! The loader searches for each library that a plug-in requires, unless a library with that name is
//! already loaded. This module therefore loads an empty library under the required name. The
//! plug-in's functions are then resolved in this executable.

use std::fs::File;
use std::io::Write;
use std::os::fd::IntoRawFd;

use galatea_backend::empty_library;
use rustix::fs::{MemfdFlags, memfd_create};

/// Permanently loads an empty library named `soname`.
pub(super) fn provide(soname: &str) -> Result<(), String> {
    let descriptor = memfd_create("empty library", MemfdFlags::CLOEXEC)
        .map_err(|error| format!("no memory for a library: {error}"))?;
    let mut file = File::from(descriptor);
    file.write_all(&empty_library(soname)).map_err(|error| error.to_string())?;
    // The file is left open: the loader identifies libraries by path, so no path may be reused.
    let path = format!("/proc/self/fd/{}", file.into_raw_fd());
    // SAFETY: the library has no code, so opening it runs none.
    let library = unsafe { libloading::Library::new(path) };
    // The library must stay loaded as long as plug-ins do, which is permanently.
    std::mem::forget(library.map_err(|error| error.to_string())?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Folder, compile};

    #[test]
    fn a_library_that_needs_the_name_can_be_opened() {
        let folder = Folder::new();
        let place = folder.path().display().to_string();
        let names = ["libgalatea_one.so", "libgalatea_two.so"];
        for name in names {
            let source = format!("int a{}(void) {{ return 1; }}", name.len());
            compile(&folder, name, &source, &[&format!("-Wl,-soname,{name}")]);
        }
        let flags = ["-Wl,--no-as-needed", "-L", &place, "-lgalatea_one", "-lgalatea_two"];
        let library = compile(&folder, "libuser.so", "int b(void) { return 2; }", &flags);
        for name in names {
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
        for name in names {
            // SAFETY: opening these libraries executes no code.
            let error = unsafe { libloading::Library::new(&library) }.unwrap_err();
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains(name), "{cause}");
            provide(name).unwrap();
        }
        // SAFETY: as above.
        unsafe { libloading::Library::new(&library) }.unwrap();
    }
}
