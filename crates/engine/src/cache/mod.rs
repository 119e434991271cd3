//! The response cache: equal requests are answered without running the model.
//!
//! A cache is a layer before a model's scheduler, for models that ask for it in
//! their configuration. Its key covers everything that the answer can depend on:
//! model, version, each input's name, datatype, shape and contents, the outputs
//! wanted, and the request's parameters. The key is a cryptographic hash, so
//! that nobody can make a request that gets another's answer.

mod key;
mod local;

use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_infer::{
    Finality, InferenceRequest, InferenceResponse, OutputTensor, Reply, ResponseSender,
    ResponseSink,
};
use galatea_tensor::Buffer;

pub(crate) use key::CacheKey;
pub use local::LocalCache;

use crate::model::Books;

/// Keeps responses by key. Called from any thread; a cache that fails behaves
/// as one that has nothing.
pub trait ResponseCache: Send + Sync {
    /// The response to equal requests, if it is kept.
    fn lookup(&self, key: &[u8; 32]) -> Option<Arc<CachedResponse>>;
    /// Keeps a response, perhaps in place of others.
    fn insert(&self, key: [u8; 32], response: Arc<CachedResponse>);
}

/// What is kept of a response: all but the request's identifier.
#[derive(Clone, Debug)]
pub struct CachedResponse {
    /// The response, with an empty identifier. Its tensors share no memory with
    /// others that would be kept alive by it.
    pub response: InferenceResponse,
    /// The bytes that it takes up.
    pub byte_size: usize,
}

impl CachedResponse {
    /// A copy of a response; `None` if it isn't in the CPU's memory.
    fn copy_of(response: &InferenceResponse) -> Option<Self> {
        let outputs: Option<Vec<OutputTensor>> = response.outputs.iter().map(copied).collect();
        let response = InferenceResponse {
            model_name: response.model_name.clone(),
            model_version: response.model_version,
            id: String::new(),
            parameters: response.parameters.clone(),
            outputs: outputs?,
        };
        let tensor_bytes = |output: &OutputTensor| {
            let dims = output.shape.rank() * size_of::<i64>();
            output.name.len() + output.data.len() + dims + size_of::<OutputTensor>()
        };
        let tensors: usize = response.outputs.iter().map(tensor_bytes).sum();
        let byte_size = size_of::<Self>() + tensors;
        Some(Self { response, byte_size })
    }
}

/// The data may be a slice of a whole batch's tensor, which must not live on
/// with it.
fn copied(output: &OutputTensor) -> Option<OutputTensor> {
    let data = Buffer::from_vec(output.data.host()?.to_vec());
    Some(OutputTensor { data, ..output.clone() })
}

/// A model's use of the cache.
pub(crate) struct CacheLayer {
    cache: Arc<dyn ResponseCache>,
    books: Arc<Books>,
    generation: u64,
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
    pub(crate) fn new(cache: Arc<dyn ResponseCache>, books: Arc<Books>, generation: u64) -> Self {
        Self { cache, books, generation }
    }

    /// Looks for the answer to an admitted request, and counts a hit.
    pub(crate) fn look_up(&self, request: &InferenceRequest, arrival: Instant) -> Lookup {
        let start = Instant::now();
        let Some(key) = CacheKey::new(request, self.books.version, self.generation) else {
            return Lookup::Miss(None);
        };
        let found = self.cache.lookup(&key.0);
        let lookup = start.elapsed();
        match found {
            Some(cached) => {
                self.books.statistics.cache_hit(arrival, start, lookup);
                let id = request.id.clone();
                Lookup::Hit(InferenceResponse { id, ..cached.response.clone() })
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
        if let Some(cached) = CachedResponse::copy_of(response) {
            self.cache.insert(missed.key.0, Arc::new(cached));
        }
        self.books.statistics.cache_miss(missed.lookup + start.elapsed());
    }
}

impl ResponseSink for Keeping {
    fn deliver(&mut self, reply: Reply) {
        // Kept first: whoever has the response and asks again gets a hit.
        if let Reply::Response { outcome: Ok(response), finality: Finality::Final } = &reply {
            self.keep(response);
        }
        self.inner.deliver(reply);
    }
}

#[cfg(test)]
mod tests;
