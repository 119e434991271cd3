//! The interface to response caches.

use galatea_infer::{CacheStatistics, InferenceResponse};

/// A key that identifies identical requests: a cryptographic hash of everything that a response can
/// depend on.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey(pub [u8; 32]);

/// Stores responses by key.
///
/// Any thread may call the cache, and the request waits for each call. A cache that fails behaves
/// like an empty one and reports the failure itself.
pub trait ResponseCache: Send + Sync {
    /// Returns the cached response to identical requests, if there is one. The caller then sets the
    /// request's identifier in the response.
    fn lookup(&self, key: &CacheKey) -> Option<InferenceResponse>;

    /// Caches a response without the request's identifier, possibly evicting other responses. A
    /// response outside CPU memory isn't cached.
    ///
    /// The cache copies the response, because the response's memory belongs to its request and is
    /// often a slice of a larger buffer.
    fn insert(&self, key: &CacheKey, response: &InferenceResponse);

    /// The cache's counters. `None` if it has none or publishes them itself.
    fn statistics(&self) -> Option<CacheStatistics> {
        None
    }
}
