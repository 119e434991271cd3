//! The response cache, which answers a repeated request without an execution.
//!
//! The cache is a layer in front of a model's scheduler, for models whose configuration enables it.
//! A request found in the cache never reaches the scheduler. Any other request gets a sender that
//! stores the response as it passes through.
//!
//! The key is a cryptographic hash of everything that the response depends on, as far as the server
//! knows: the loaded version ([`VersionFingerprint`]), each input's name, datatype, shape and
//! contents, the requested outputs, and the request parameters. No client can construct a request
//! that gets the response to a different one.
//!
//! Responses are stored in a [`ResponseCache`]: the built-in [`LocalCache`] or a plug-in.

mod fingerprint;
mod hashing;
mod key;
mod local;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_backend::{CacheKey, ResponseCache};
use galatea_infer::{
    Finality, InferenceRequest, InferenceResponse, Reply, ResponseSender, ResponseSink, Status,
};

pub(crate) use self::fingerprint::{
    FilesFingerprint, FingerprintInputs, VersionFingerprint, VersionFingerprints,
};
pub(crate) use self::key::equality_key_of;
use self::key::key_of;
pub use self::local::LocalCache;
use crate::statistics::Statistics;

/// A model version's connection to the cache.
pub(crate) struct CacheLayer {
    cache: Arc<dyn ResponseCache>,
    statistics: Arc<Statistics>,
    fingerprint: VersionFingerprint,
}

/// The result of a lookup.
pub(crate) enum CacheLookup {
    Hit(InferenceResponse),
    /// The response was not found. Contains `None` if the request can't be cached.
    Miss(Option<CacheMiss>),
}

/// The key and the times needed to store the response after a miss.
pub(crate) struct CacheMiss {
    key: CacheKey,
    lookup: Duration,
}

impl CacheMiss {
    /// The request's key.
    pub(crate) const fn key(&self) -> CacheKey {
        self.key
    }
}

impl CacheLayer {
    pub(crate) fn new(
        cache: Arc<dyn ResponseCache>,
        statistics: Arc<Statistics>,
        fingerprint: VersionFingerprint,
    ) -> Self {
        Self { cache, statistics, fingerprint }
    }

    /// Looks up the response to an admitted request, and counts a hit. The model has `output_count`
    /// outputs.
    pub(crate) fn look_up(
        &self,
        request: &InferenceRequest,
        output_count: usize,
        arrival: Instant,
    ) -> CacheLookup {
        let start = Instant::now();
        let Some(key) = key_of(request, output_count, &self.fingerprint) else {
            return CacheLookup::Miss(None);
        };
        let found = self.cache.lookup(&key);
        let lookup = start.elapsed();
        match found {
            Some(cached) => {
                self.statistics.cache_hit(arrival, start, lookup);
                CacheLookup::Hit(InferenceResponse { id: request.id.clone(), ..cached })
            }
            None => CacheLookup::Miss(Some(CacheMiss { key, lookup })),
        }
    }

    /// Wraps a sender so that the response is stored as it passes through.
    pub(crate) fn store_response(&self, miss: CacheMiss, sender: ResponseSender) -> ResponseSender {
        let (cache, statistics) = (self.cache.clone(), self.statistics.clone());
        let miss = Some(miss);
        sender.wrap(move |inner| Box::new(CachingSink { cache, statistics, miss, inner }))
    }
}

struct CachingSink {
    cache: Arc<dyn ResponseCache>,
    statistics: Arc<Statistics>,
    miss: Option<CacheMiss>,
    inner: Box<dyn ResponseSink>,
}

impl CachingSink {
    fn store(&mut self, response: &InferenceResponse) {
        let Some(miss) = self.miss.take() else { return };
        let start = Instant::now();
        self.cache.insert(&miss.key, response);
        let end = Instant::now();
        self.statistics.cache_miss(end, miss.lookup + end.saturating_duration_since(start));
    }
}

impl ResponseSink for CachingSink {
    fn deliver(&mut self, reply: Reply) {
        // The response is stored before it is delivered, so a client that repeats its request gets
        // a hit.
        if let Reply::Response {
            result: Ok(response),
            finality: Finality::Final | Finality::EndApart,
        } = &reply
        {
            self.store(response);
        }
        self.inner.deliver(reply);
    }

    fn refuse(&mut self, status: Status) {
        self.inner.refuse(status);
    }
}
