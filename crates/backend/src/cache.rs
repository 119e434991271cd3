//! The response cache.

use galatea_infer::{CacheStatistics, InferenceResponse};

/// Identifies equal requests: a cryptographic hash of everything that a response can
/// depend on.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey(pub [u8; 32]);

/// Keeps responses by key.
///
/// Any thread may call the cache, and a request waits for each call. A cache that fails behaves
/// like an empty one and reports the failure itself.
pub trait ResponseCache: Send + Sync {
    /// The cached response to equal requests, if there is one. The caller sets the request's
    /// identifier in it.
    fn lookup(&self, key: &CacheKey) -> Option<InferenceResponse>;

    /// Caches a response without the request's identifier, possibly evicting others. A response
    /// outside CPU memory is not cached.
    ///
    /// The cache makes a copy, because the response's memory belongs to its request and is often a
    /// slice of a larger buffer.
    fn insert(&self, key: &CacheKey, response: &InferenceResponse);

    /// The cache's counters. `None` if it has none or publishes them itself.
    fn statistics(&self) -> Option<CacheStatistics> {
        None
    }
}
