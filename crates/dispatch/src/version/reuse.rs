//! The ways in which a version answers a request with the response to an equal one.

use std::sync::Arc;
use std::time::Instant;

use galatea_infer::{InferenceRequest, ResponseSender, Trace};
use galatea_policy::ArrivalNumber;

use super::{LoadedModel, explain};
use crate::cache::{CacheLayer, CacheLookup, CacheMiss};
use crate::coalescing::{Coalescing, CoalescingKey, coalescing_key_of};
use crate::dispatcher::AdmittedRequest;

/// A version's connection to the cache and its coalescing of equal requests. Contains at least one
/// of them.
pub(crate) struct ResponseReuse {
    /// The cache layer; `None` unless the server has a cache and the configuration enables caching.
    cache: Option<CacheLayer>,
    /// The coalescing; `None` unless the configuration enables it.
    coalescing: Option<Arc<Coalescing>>,
}

impl ResponseReuse {
    /// Combines them; `None` if there are none.
    pub(crate) fn new(
        cache: Option<CacheLayer>,
        coalescing: Option<Arc<Coalescing>>,
    ) -> Option<Box<Self>> {
        let has_any = cache.is_some() || coalescing.is_some();
        has_any.then(|| Box::new(Self { cache, coalescing }))
    }
}

/// An admitted request that has not been queued.
pub(super) struct ArrivedRequest<'request> {
    pub(super) request: &'request InferenceRequest,
    pub(super) arrival: Instant,
    pub(super) reply_number: ArrivalNumber,
}

/// The way in which a request gets its response.
pub(super) enum Reuse {
    /// It has its response.
    Replied,
    /// It is executed.
    Executes(ResponseSender),
    /// It may share an execution.
    Shares(Share, ResponseSender),
}

/// A request's way to an execution that it may share.
pub(super) struct Share {
    key: CoalescingKey,
    miss: Option<CacheMiss>,
}

impl Share {
    /// Submits the request. The cache stores the response to the request that is executed.
    pub(super) fn submit(self, reuse: &ResponseReuse, member: AdmittedRequest) {
        let ResponseReuse { cache, coalescing } = reuse;
        if let Some(coalescing) = coalescing {
            let miss = self.miss;
            coalescing.submit(self.key, member, |sender| store(cache.as_ref(), miss, sender));
        }
    }
}

impl LoadedModel {
    /// Replies to a request with a cached response, or determines how the request is executed.
    pub(super) fn find_response(
        &self,
        reuse: &ResponseReuse,
        arrived: &ArrivedRequest<'_>,
        trace: Option<&Arc<Trace>>,
        sender: ResponseSender,
    ) -> Reuse {
        let output_count = self.spec.outputs.len();
        let ArrivedRequest { request, arrival, reply_number } = *arrived;
        let cache = reuse.cache.as_ref();
        let found = cache.map(|cache| cache.look_up(request, output_count, arrival));
        let miss = match found {
            Some(CacheLookup::Hit(response)) => {
                self.dispatcher.start_reply(reply_number);
                if let Some(trace) = trace {
                    trace.record_response(&response);
                    explain(trace, |facts| facts.is_cached = true);
                }
                self.host.statistics.responding(arrival);
                sender.send_final(Ok(response));
                return Reuse::Replied;
            }
            Some(CacheLookup::Miss(miss)) => miss,
            None => None,
        };
        if reuse.coalescing.is_some() {
            let cache_key = miss.as_ref().map(CacheMiss::key);
            if let Some(key) = coalescing_key_of(request, output_count, cache_key) {
                return Reuse::Shares(Share { key, miss }, sender);
            }
        }
        Reuse::Executes(store(cache, miss, sender))
    }
}

/// Wraps a sender so that the cache stores the response that passes through it.
fn store(
    cache: Option<&CacheLayer>,
    miss: Option<CacheMiss>,
    sender: ResponseSender,
) -> ResponseSender {
    match (cache, miss) {
        (Some(cache), Some(miss)) => cache.store_response(miss, sender),
        _ => sender,
    }
}
