//! Where responses are kept for requests that come again.

use galatea_infer::{CacheStatistics, InferenceResponse};

/// What makes two requests equal: a cryptographic hash of everything that an answer
/// can depend on.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey(pub [u8; 32]);

/// Keeps responses by key.
///
/// It is called from any thread, and a request waits for each call. A cache that
/// fails behaves as one that has nothing: what went wrong is its own to report.
pub trait ResponseCache: Send + Sync {
    /// The response to equal requests, if it is kept. Whoever asks puts the
    /// request's identifier in.
    fn lookup(&self, key: &CacheKey) -> Option<InferenceResponse>;

    /// Keeps a response, perhaps in place of others: all of it but the request's
    /// identifier. One that isn't in the CPU's memory is not kept.
    ///
    /// The response's memory is a request's and often a slice of more: what is kept
    /// is a copy.
    fn insert(&self, key: &CacheKey, response: &InferenceResponse);

    /// The cache's counters. `None` if it has none, or shows them itself.
    fn statistics(&self) -> Option<CacheStatistics> {
        None
    }
}
