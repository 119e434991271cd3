//! Hosts response caches: shared libraries `libtritoncache_NAME.so`.
//!
//! A cache knows only keys and byte buffers. The server defines the byte format of a response
//! (`format`). Each call passes an entry and an allocator (`entry`) to the cache. The cache adds
//! its buffer to the entry, requests a copy into or out of the buffer, and keeps the buffer valid
//! until then.
//!
//! Every thread that handles a request or a response may call a cache, and several threads may do
//! so concurrently. A cache error is logged and counts as a miss or as a response that isn't
//! stored.

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
use galatea_c_objects::error::{take_c_error, to_c_string};
use galatea_c_objects::log;
use galatea_infer::{Code, InferenceResponse, Status};
use galatea_stdx::{Lock, run_foreign_code};
use libloading::os::unix::Library;

use crate::exports;
use crate::library::search::check_component;
use crate::library::{LibraryOpener, function};
use crate::owned::Owned;
use entry::{AllocatorObject, CacheEntryObject};
use format::EncodedResponse;

/// A response cache from a library. Dropping it finalises it.
pub struct PluginResponseCache {
    name: String,
    entry_points: CacheEntryPoints,
    cache: *mut TRITONCACHE_Cache,
    failed_lookups: AtomicU64,
    failed_insertions: AtomicU64,
}

// SAFETY: the interface requires that caches can be called from any thread. The other fields are
// counters and an address that never changes.
unsafe impl Send for PluginResponseCache {}
// SAFETY: as above; the interface also requires that several threads can call concurrently.
unsafe impl Sync for PluginResponseCache {}

/// A cache's functions. As with a backend, the library is never unloaded.
struct CacheEntryPoints {
    initialize: TRITONCACHE_CacheInitialize,
    finalize: TRITONCACHE_CacheFinalize,
    lookup: TRITONCACHE_CacheLookup,
    insert: TRITONCACHE_CacheInsert,
}

impl PluginResponseCache {
    /// The path of the library for the cache `name`, if the file exists.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the name points to another directory.
    pub fn find_library(directory: &Path, name: &str) -> Result<Option<PathBuf>, Status> {
        check_component("response cache", name)?;
        let path = path(directory, name);
        // A dangling link counts as existing, so that the attempt to open it reports the problem.
        Ok(path.symlink_metadata().is_ok().then_some(path))
    }

    /// Opens and initialises the cache `name` with `config`.
    ///
    /// # Errors
    ///
    /// The reason why the cache can't be used. The message names the library.
    pub fn open(directory: &Path, name: &str, config: &str) -> Result<Self, Status> {
        let path = Self::find_library(directory, name)?.ok_or_else(|| {
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
            log::ApiLogLevel::Info,
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
        // SAFETY: the strings and objects outlive the call.
        let status = run_foreign_code(|| unsafe {
            take_c_error(lookup(self.cache, text.as_ptr(), entry.address(), allocator.address()))
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
        // SAFETY: the strings and objects outlive the call.
        let status = run_foreign_code(|| unsafe {
            take_c_error(insert(self.cache, text.as_ptr(), entry.address(), allocator.address()))
        });
        match status {
            // An identical request was executed concurrently and its response was cached first.
            Err(status) if status.code() == Code::AlreadyExists => Ok(()),
            other => other,
        }
    }

    /// Logs a failure. A failing cache may fail on every request, so only the first, second,
    /// fourth, eighth, … failures are logged.
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

impl ResponseCache for PluginResponseCache {
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

impl Drop for PluginResponseCache {
    fn drop(&mut self) {
        // SAFETY: the cache was initialised, and no caller remains.
        if let Err(status) = unsafe { take_c_error((self.entry_points.finalize)(self.cache)) } {
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
                // SAFETY: the function has the type that the header declares for its name.
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
        // SAFETY: the string and the pointer outlive the call.
        let error: *mut TRITONSERVER_Error =
            unsafe { (self.initialize)(&raw mut cache, config.as_ptr()) };
        // SAFETY: the error, if any, belongs to us.
        unsafe { take_c_error(error) }?;
        if cache.is_null() {
            return Err(Status::internal("TRITONCACHE_CacheInitialize made no cache"));
        }
        Ok(cache)
    }
}

fn path(directory: &Path, name: &str) -> PathBuf {
    directory.join(name).join(format!("libtritoncache_{name}.so"))
}

/// The string form of a key, which caches require.
fn key_text(key: &CacheKey) -> CString {
    to_c_string(&blake3::Hash::from_bytes(key.0).to_hex())
}

#[cfg(test)]
mod tests;
