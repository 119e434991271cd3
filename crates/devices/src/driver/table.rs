//! Tables of a library's functions.

/// Declares a table of functions. Each function is looked up when the library is loaded, so a
/// library that lacks any of them is rejected as a whole, and no call can fail for that reason.
macro_rules! functions {
    (
        $(#[$about:meta])*
        $table:ident from $library:literal {
            $($function:ident($($argument:ident: $kind:ty),* $(,)?);)*
        }
    ) => {
        $(#[$about])*
        #[allow(non_snake_case, reason = "the functions have their names in C")]
        pub(crate) struct $table {
            $($function: unsafe extern "C" fn($($kind),*) -> std::ffi::c_int,)*
            /// The functions exist for as long as the library is loaded, which is forever, because
            /// its threads and handlers can't be removed.
            _library: std::mem::ManuallyDrop<libloading::Library>,
        }

        #[allow(non_snake_case, reason = "the functions have their names in C")]
        impl $table {
            /// Loads the library. Returns `None` if the machine doesn't have it.
            ///
            /// # Errors
            ///
            /// Returned if the library lacks a function.
            pub(crate) fn load() -> Result<Option<Self>, String> {
                // SAFETY: The library is NVIDIA's or a replacement for it, and the person who
                // installed it is responsible for what it does when it is loaded.
                let Ok(library) = (unsafe { libloading::Library::new($library) }) else {
                    return Ok(None);
                };
                let library = std::mem::ManuallyDrop::new(library);
                $(
                    let name = concat!(stringify!($function), "\0");
                    // SAFETY: NVIDIA documents the function with these arguments and this result,
                    // and never changes the ABI of a function name.
                    let $function = *unsafe { library.get(name.as_bytes()) }.map_err(|_| {
                        concat!($library, " has no function ", stringify!($function)).to_owned()
                    })?;
                )*
                Ok(Some(Self { $($function,)* _library: library }))
            }

            $(
                /// Calls the function with this name.
                ///
                /// # Safety
                ///
                /// As documented by NVIDIA: pointers must be valid for the call, and handles and
                /// addresses must come from the driver and be alive.
                pub(crate) unsafe fn $function(&self, $($argument: $kind),*) -> std::ffi::c_int {
                    // SAFETY: guaranteed by the caller.
                    unsafe { (self.$function)($($argument),*) }
                }
            )*
        }
    };
}

pub(crate) use functions;
