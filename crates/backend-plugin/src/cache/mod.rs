//! Hosts response caches: shared libraries `libtritoncache_NAME.so`.
//!
//! A cache knows only keys and buffers of bytes. The byte format of a response is the server's
//! (`format`). In each call, the cache receives an entry and an allocator (`entry`): it gives the
//! entry its buffer, asks for the copy in either direction, and keeps the buffer valid until then.
//!
//! Caches are called from every thread that has a request or a response, by several threads
//! concurrently. An error of a cache counts as a miss, or as a response that isn't kept, and is
//! logged.

pub(crate) mod entry;
mod format;

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use galatea_abi::cache::{
    TRITONCACHE_CacheFinalize, TRITONCACHE_CacheInitialize, TRITONCACHE_CacheInsert,
    TRITONCACHE_CacheLookup,
};
use galatea_abi::{TRITONCACHE_Cache, TRITONSERVER_Error};
use galatea_backend::{CacheKey, ResponseCache};
use galatea_c_objects::error::{take_c, to_c_string};
use galatea_c_objects::log;
use galatea_infer::{Code, InferenceResponse, Status};
use galatea_stdx::{Lock, run_foreign};
use libloading::os::unix::Library;

use crate::exports;
use crate::library::search::check_component;
use crate::library::{LibraryOpener, function};
use crate::owned::Owned;
use entry::{AllocatorObject, CacheEntryObject};
use format::EncodedResponse;

/// A response cache in a library. Dropping it finalises it.
pub struct PluginCache {
    name: String,
    entry_points: CacheEntryPoints,
    cache: *mut TRITONCACHE_Cache,
    failed_lookups: AtomicU64,
    failed_insertions: AtomicU64,
}

// SAFETY: the interface requires caches that can be called from any thread. The other
// fields are an address that never changes and counters.
unsafe impl Send for PluginCache {}
// SAFETY: as above, by several threads at a time.
unsafe impl Sync for PluginCache {}

/// The functions of a cache. Its library is never closed, just like that of a backend.
struct CacheEntryPoints {
    initialize: TRITONCACHE_CacheInitialize,
    finalize: TRITONCACHE_CacheFinalize,
    lookup: TRITONCACHE_CacheLookup,
    insert: TRITONCACHE_CacheInsert,
}

impl PluginCache {
    /// The path of the library of the cache `name`, if it exists.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the name points to another directory.
    pub fn find(directory: &Path, name: &str) -> Result<Option<PathBuf>, Status> {
        check_component("response cache", name)?;
        let path = path(directory, name);
        // A dangling link counts as existing, because opening it reports what is wrong.
        Ok(path.symlink_metadata().is_ok().then_some(path))
    }

    /// Opens and initialises the cache `name` with `config`.
    ///
    /// # Errors
    ///
    /// The reason why the cache can't be used. The message names the library.
    pub fn open(directory: &Path, name: &str, config: &str) -> Result<Self, Status> {
        let path = Self::find(directory, name)?.ok_or_else(|| {
            Status::invalid_argument(format!(
                "unable to find the library of response cache '{name}': there is no '{}'; is \
                 --cache-directory right?",
                path(directory, name).display()
            ))
        })?;
        let about = format!("response cache '{name}', '{}': ", path.display());
        let entry_points =
            CacheEntryPoints::open(&path).map_err(|status| status.prefixed(&about))?;
        let cache = entry_points.initialize(config).map_err(|status| status.prefixed(&about))?;
        log::write(
            log::Level::Info,
            None,
            &format!("response cache '{name}' is the library '{}'", path.display()),
        );
        Ok(Self {
            name: name.to_owned(),
            entry_points,
            cache,
            failed_lookups: AtomicU64::new(0),
            failed_insertions: AtomicU64::new(0),
        })
    }

    fn try_lookup(&self, key: &CacheKey) -> Result<Option<InferenceResponse>, Status> {
        let entry = Owned::new(CacheEntryObject::default());
        let allocator = Owned::new(AllocatorObject::Lookup { key: *key, found: Lock::default() });
        let (text, lookup) = (key_text(key), self.entry_points.lookup);
        // SAFETY: text and objects live longer than the call.
        let status = run_foreign(|| unsafe {
            take_c(lookup(self.cache, text.as_ptr(), entry.address(), allocator.address()))
        });
        match status {
            Ok(()) => {}
            Err(status) if status.code() == Code::NotFound => return Ok(None),
            Err(status) => return Err(status),
        }
        match allocator.into_inner() {
            Some(AllocatorObject::Lookup { found, .. }) => {
                found.into_inner().map(Some).ok_or_else(|| {
                    Status::internal("TRITONCACHE_CacheLookup succeeded without TRITONCACHE_Copy")
                })
            }
            _ => Err(Status::internal("TRITONCACHE_CacheLookup gave no response")),
        }
    }

    fn try_insert(&self, key: &CacheKey, encoded: EncodedResponse) -> Result<(), Status> {
        let entry = Owned::new(CacheEntryObject::requesting(encoded.byte_size()));
        let allocator = Owned::new(AllocatorObject::Insertion(encoded));
        let (text, insert) = (key_text(key), self.entry_points.insert);
        // SAFETY: text and objects live longer than the call.
        let status = run_foreign(|| unsafe {
            take_c(insert(self.cache, text.as_ptr(), entry.address(), allocator.address()))
        });
        match status {
            // Another equal request was in flight and was cached first.
            Err(status) if status.code() == Code::AlreadyExists => Ok(()),
            other => other,
        }
    }

    /// Logs a failure. A cache that fails may fail with every request, so only the first
    /// failure, the second, the fourth, the eighth and so on are logged.
    fn log_failure(&self, what: &str, failures: &AtomicU64, status: &Status) {
        let count = failures.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            log::error(&format!(
                "response cache '{}': {what} failed, for the {count}. time: {status}",
                self.name
            ));
        }
    }
}

impl ResponseCache for PluginCache {
    fn lookup(&self, key: &CacheKey) -> Option<InferenceResponse> {
        self.try_lookup(key).unwrap_or_else(|status| {
            self.log_failure("a lookup", &self.failed_lookups, &status);
            None
        })
    }

    fn insert(&self, key: &CacheKey, response: &InferenceResponse) {
        let Some(encoded) = EncodedResponse::new(key, response) else { return };
        if let Err(status) = self.try_insert(key, encoded) {
            self.log_failure("an insertion", &self.failed_insertions, &status);
        }
    }
}

impl Drop for PluginCache {
    fn drop(&mut self) {
        // SAFETY: it was initialised, and no other caller is left.
        if let Err(status) = unsafe { take_c((self.entry_points.finalize)(self.cache)) } {
            log::error(&format!("failed finalizing response cache '{}': {status}", self.name));
        }
    }
}

impl CacheEntryPoints {
    fn open(path: &Path) -> Result<Self, Status> {
        let library = LibraryOpener::new(exports::all).library(path)?;
        let entry_points = Self::of(&library);
        std::mem::forget(library);
        entry_points.map_err(|missing| {
            Status::not_found(format!("unable to find required entrypoint '{missing}'"))
        })
    }

    fn of(library: &Library) -> Result<Self, &'static str> {
        macro_rules! required {
            ($name:ident) => {{
                const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => panic!("a function's name has no zero byte"),
                };
                // SAFETY: by its name, the function has the type that the header gives
                // it.
                unsafe { function::<$name>(library, NAME) }.ok_or(stringify!($name))?
            }};
        }
        Ok(Self {
            initialize: required!(TRITONCACHE_CacheInitialize),
            finalize: required!(TRITONCACHE_CacheFinalize),
            lookup: required!(TRITONCACHE_CacheLookup),
            insert: required!(TRITONCACHE_CacheInsert),
        })
    }

    fn initialize(&self, config: &str) -> Result<*mut TRITONCACHE_Cache, Status> {
        let (config, mut cache) = (to_c_string(config), core::ptr::null_mut());
        // SAFETY: text and pointer live longer than the call.
        let error: *mut TRITONSERVER_Error =
            unsafe { (self.initialize)(&raw mut cache, config.as_ptr()) };
        // SAFETY: the error, if it is one, is ours.
        unsafe { take_c(error) }?;
        if cache.is_null() {
            return Err(Status::internal("TRITONCACHE_CacheInitialize made no cache"));
        }
        Ok(cache)
    }
}

fn path(directory: &Path, name: &str) -> PathBuf {
    directory.join(name).join(format!("libtritoncache_{name}.so"))
}

/// The text form of a key, which is the form that caches take.
fn key_text(key: &CacheKey) -> CString {
    to_c_string(&blake3::Hash::from_bytes(key.0).to_hex())
}

#[cfg(test)]
mod tests;
