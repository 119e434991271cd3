//! The built-in response cache, in this process's memory.

use std::time::{Duration, Instant};

use galatea_backend::{CacheKey, ResponseCache};
use galatea_infer::{CacheStatistics, InferenceResponse, OutputTensor, Parameter, ParameterValue};
use galatea_stdx::{Lock, len64};
use galatea_tensor::Buffer;
use lru::LruCache;

/// The size of an entry's overhead in bytes: key, list links and table slot.
const ENTRY_OVERHEAD_BYTES: usize = 128;

/// Keeps the most recently used responses, up to a maximum number of bytes.
pub struct LocalCache {
    byte_size_max: usize,
    state: Lock<CacheState>,
}

struct CacheState {
    entries: LruCache<CacheKey, LocalEntry>,
    byte_size: usize,
    hits: u64,
    misses: u64,
    evictions: u64,
    lookup: Duration,
    insertion: Duration,
}

struct LocalEntry {
    /// The response without its request identifier. It has its own memory, so it does not keep a
    /// batch's tensor alive.
    response: InferenceResponse,
    byte_size: usize,
}

impl LocalCache {
    /// Creates a cache that stores at most this many bytes.
    #[must_use]
    pub fn new(byte_size_max: usize) -> Self {
        let state = CacheState {
            entries: LruCache::unbounded(),
            byte_size: 0,
            hits: 0,
            misses: 0,
            evictions: 0,
            lookup: Duration::ZERO,
            insertion: Duration::ZERO,
        };
        Self { byte_size_max, state: Lock::new(state) }
    }

    /// Inserts an entry, and returns the entries that it evicts.
    fn put(&self, state: &mut CacheState, key: CacheKey, entry: LocalEntry) -> Vec<LocalEntry> {
        let mut displaced = Vec::new();
        state.byte_size += entry.byte_size;
        if let Some(previous) = state.entries.put(key, entry) {
            state.byte_size -= previous.byte_size;
            displaced.push(previous);
        }
        while state.byte_size > self.byte_size_max
            && let Some((_, oldest)) = state.entries.pop_lru()
        {
            state.byte_size -= oldest.byte_size;
            state.evictions += 1;
            displaced.push(oldest);
        }
        displaced
    }
}

impl ResponseCache for LocalCache {
    fn lookup(&self, key: &CacheKey) -> Option<InferenceResponse> {
        let start = Instant::now();
        let mut state = self.state.lock("look up a response");
        let found = state.entries.get(key).map(|entry| entry.response.clone());
        let counter = if found.is_some() { &mut state.hits } else { &mut state.misses };
        *counter += 1;
        state.lookup += start.elapsed();
        found
    }

    fn insert(&self, key: &CacheKey, response: &InferenceResponse) {
        let start = Instant::now();
        let byte_size = byte_size(response);
        let entry = (byte_size <= self.byte_size_max).then(|| copy(response)).flatten();
        let mut state = self.state.lock("insert a response");
        let displaced =
            entry.map(|response| self.put(&mut state, *key, LocalEntry { response, byte_size }));
        state.insertion += start.elapsed();
        // The entries are dropped outside the lock, because freeing large responses takes time.
        drop(state);
        drop(displaced);
    }

    fn statistics(&self) -> Option<CacheStatistics> {
        let state = self.state.lock("read the statistics");
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Some(CacheStatistics {
            bytes_used: len64(state.byte_size),
            bytes_max: len64(self.byte_size_max),
            entries: len64(state.entries.len()),
            hits: state.hits,
            misses: state.misses,
            evictions: state.evictions,
            lookup_ns: nanoseconds(state.lookup),
            insertion_ns: nanoseconds(state.insertion),
        })
    }
}

/// The size of a response as a cache entry.
fn byte_size(response: &InferenceResponse) -> usize {
    let tensor = |output: &OutputTensor| {
        let dims = output.shape.rank() * size_of::<i64>();
        output.name.len() + output.data.len() + dims + size_of::<OutputTensor>()
    };
    let parameter = |one: &Parameter| {
        let text = match &one.value {
            ParameterValue::String(value) => value.len(),
            ParameterValue::Bool(_) | ParameterValue::Int64(_) | ParameterValue::Double(_) => 0,
        };
        one.name.len() + text + size_of::<Parameter>()
    };
    let tensors = response.outputs.iter().map(tensor);
    let all = tensors.chain(response.parameters.iter().map(parameter));
    all.fold(size_of::<LocalEntry>() + ENTRY_OVERHEAD_BYTES, usize::saturating_add)
}

/// Copies a response into its own memory. Returns `None` if the response is not in CPU memory.
fn copy(response: &InferenceResponse) -> Option<InferenceResponse> {
    // The data may be a slice of a whole batch's tensor, which must not be kept alive.
    let copy_output = |output: &OutputTensor| {
        let data = Buffer::from_vec(output.data.host_bytes()?.to_vec());
        Some(OutputTensor { data, ..output.clone() })
    };
    Some(InferenceResponse {
        model_name: response.model_name.clone(),
        model_version: response.model_version,
        id: String::new(),
        parameters: response.parameters.clone(),
        outputs: response.outputs.iter().map(copy_output).collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use galatea_tensor::{DataType, Shape};

    use super::*;

    fn response(bytes: usize) -> InferenceResponse {
        let shape = Shape::new(&[i64::try_from(bytes).unwrap()]).unwrap();
        let output = OutputTensor {
            name: "X".into(),
            datatype: DataType::Int8,
            shape,
            data: Buffer::from_vec(vec![0; bytes]),
        };
        InferenceResponse {
            model_name: "m".into(),
            model_version: 1,
            id: String::from("dropped"),
            parameters: Default::default(),
            outputs: vec![output],
        }
    }

    fn key(number: u8) -> CacheKey {
        CacheKey([number; 32])
    }

    fn kept(cache: &LocalCache) -> Vec<u8> {
        let is_kept = |number: &u8| {
            let state = cache.state.lock("look at the entries");
            state.entries.contains(&key(*number))
        };
        (0..10).filter(is_kept).collect()
    }

    #[test]
    fn the_most_recently_used_responses_are_kept() {
        let size = byte_size(&response(1000));
        let cache = LocalCache::new(3 * size);
        for number in 0..3 {
            cache.insert(&key(number), &response(1000));
        }
        assert!(cache.lookup(&key(0)).is_some());
        cache.insert(&key(3), &response(1000));
        assert_eq!(kept(&cache), [0, 2, 3]);
        cache.insert(&key(4), &response(2000));
        assert_eq!(kept(&cache), [3, 4]);
        assert_eq!(cache.lookup(&key(3)).unwrap().id, "");
    }

    #[test]
    fn a_response_larger_than_the_cache_displaces_nothing() {
        let size = byte_size(&response(1000));
        let cache = LocalCache::new(size);
        cache.insert(&key(1), &response(1000));
        cache.insert(&key(2), &response(1001));
        assert_eq!(kept(&cache), [1]);
    }

    #[test]
    fn parameters_count_as_well() {
        let parameter = |name: &str, value| Parameter { name: name.repeat(300), value };
        let with = |parameters: Vec<_>| InferenceResponse {
            parameters: parameters.into(),
            ..response(1000)
        };
        let long = with(vec![parameter("n", ParameterValue::String("v".repeat(500)))]);
        assert!(byte_size(&long) >= byte_size(&response(1000)) + 800);
        let number = with(vec![parameter("n", ParameterValue::Int64(1))]);
        assert_eq!(byte_size(&long), byte_size(&number) + 500);
        let cache = LocalCache::new(byte_size(&long) - 1);
        cache.insert(&key(1), &long);
        cache.insert(&key(2), &number);
        assert_eq!(kept(&cache), [2]);
    }

    #[test]
    fn a_replaced_response_is_counted_once() {
        let size = byte_size(&response(1000));
        let cache = LocalCache::new(2 * size);
        for _ in 0..5 {
            cache.insert(&key(1), &response(1000));
        }
        cache.insert(&key(2), &response(1000));
        assert_eq!(kept(&cache), [1, 2]);
        assert_eq!(cache.state.lock("look at the entries").byte_size, 2 * size);
    }

    #[test]
    fn lookups_insertions_and_sizes_are_counted() {
        let size = byte_size(&response(1000));
        let cache = LocalCache::new(2 * size);
        for number in [1, 2, 2, 3] {
            assert!(cache.lookup(&key(number)).is_none() || number == 2);
            cache.insert(&key(number), &response(1000));
        }
        let found = cache.statistics().unwrap();
        assert_eq!((found.hits, found.misses, found.entries, found.evictions), (1, 3, 2, 1));
        let bytes = u64::try_from(2 * size).unwrap();
        assert_eq!((found.bytes_used, found.bytes_max), (bytes, bytes));
        assert!(found.lookup_ns > 0 && found.insertion_ns > 0);
    }
}
