//! The response cache: equal requests are answered without running the model.
//!
//! A cache is a layer before a model's scheduler, for models that ask for it in
//! their configuration. Its key covers what the answer can depend on: the model as
//! it was loaded ([`Origin`] says what of it, and what can't be told), each input's
//! name, datatype, shape and contents, the outputs wanted, and the request's
//! parameters. The key is a cryptographic hash, so that nobody can make a request
//! that gets another's answer.

mod key;
mod local;
mod origin;

use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_backend::{CacheKey, ResponseCache};
use galatea_infer::{
    Finality, InferenceRequest, InferenceResponse, Reply, ResponseSender, ResponseSink,
};

use key::key_of;
pub use local::LocalCache;
pub(crate) use origin::{Ingredients, Marks, Origin, Origins};

use crate::model::Books;

/// A model's use of the cache.
pub(crate) struct CacheLayer {
    cache: Arc<dyn ResponseCache>,
    books: Arc<Books>,
    origin: Origin,
}

/// What a look into the cache found.
pub(crate) enum Lookup {
    Hit(InferenceResponse),
    /// What is needed to keep the response when it comes; none if the request
    /// can't be cached.
    Miss(Option<Missed>),
}

/// A request that was looked up in vain.
pub(crate) struct Missed {
    key: CacheKey,
    lookup: Duration,
}

impl CacheLayer {
    pub(crate) fn new(cache: Arc<dyn ResponseCache>, books: Arc<Books>, origin: Origin) -> Self {
        Self { cache, books, origin }
    }

    /// Looks for the answer to a request that was admitted to a model with so many
    /// outputs, and counts a hit.
    pub(crate) fn look_up(
        &self,
        request: &InferenceRequest,
        output_count: usize,
        arrival: Instant,
    ) -> Lookup {
        let start = Instant::now();
        let Some(key) = key_of(request, output_count, &self.origin) else {
            return Lookup::Miss(None);
        };
        let found = self.cache.lookup(&key);
        let lookup = start.elapsed();
        match found {
            Some(cached) => {
                self.books.statistics.cache_hit(arrival, start, lookup);
                Lookup::Hit(InferenceResponse { id: request.id.clone(), ..cached })
            }
            None => Lookup::Miss(Some(Missed { key, lookup })),
        }
    }

    /// A sender that keeps the response that passes through it.
    pub(crate) fn keep(&self, missed: Missed, sender: ResponseSender) -> ResponseSender {
        let (cache, books) = (self.cache.clone(), self.books.clone());
        let missed = Some(missed);
        sender.wrap(move |inner| Box::new(Keeping { cache, books, missed, inner }))
    }
}

struct Keeping {
    cache: Arc<dyn ResponseCache>,
    books: Arc<Books>,
    missed: Option<Missed>,
    inner: Box<dyn ResponseSink>,
}

impl Keeping {
    fn keep(&mut self, response: &InferenceResponse) {
        let Some(missed) = self.missed.take() else { return };
        let start = Instant::now();
        self.cache.insert(&missed.key, response);
        self.books.statistics.cache_miss(missed.lookup + start.elapsed());
    }
}

impl ResponseSink for Keeping {
    fn deliver(&mut self, reply: Reply) {
        // Kept first: whoever has the response and asks again gets a hit.
        if let Reply::Response { result: Ok(response), finality: Finality::Final } = &reply {
            self.keep(response);
        }
        self.inner.deliver(reply);
    }
}

#[cfg(test)]
mod tests;
