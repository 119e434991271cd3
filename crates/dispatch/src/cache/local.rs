//! A cache in this process's memory.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use galatea_backend::{CacheKey, ResponseCache};
use galatea_infer::{CacheStatistics, InferenceResponse, OutputTensor, Parameter, ParameterValue};
use galatea_tensor::Buffer;
use lru::LruCache;

/// What an entry costs beside its response: key, list links, table slot.
const ENTRY_BYTES: usize = 128;

/// Keeps the responses used last, up to a number of bytes.
pub struct LocalCache {
    byte_size_max: usize,
    state: Mutex<State>,
}

struct State {
    entries: LruCache<CacheKey, Entry>,
    byte_size: usize,
    hits: u64,
    misses: u64,
    evictions: u64,
    lookup: Duration,
    insertion: Duration,
}

struct Entry {
    /// With an empty identifier. Its tensors share no memory with others that would
    /// be kept alive by it.
    response: InferenceResponse,
    /// What it costs, in bytes.
    cost: usize,
}

impl LocalCache {
    /// A cache for so many bytes.
    #[must_use]
    pub fn new(byte_size_max: usize) -> Self {
        let state = State {
            entries: LruCache::unbounded(),
            byte_size: 0,
            hits: 0,
            misses: 0,
            evictions: 0,
            lookup: Duration::ZERO,
            insertion: Duration::ZERO,
        };
        Self { byte_size_max, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an entry in, and takes out what has no room beside it.
    fn put(&self, state: &mut State, key: CacheKey, entry: Entry) -> Vec<Entry> {
        let mut displaced = Vec::new();
        state.byte_size += entry.cost;
        if let Some(previous) = state.entries.put(key, entry) {
            state.byte_size -= previous.cost;
            displaced.push(previous);
        }
        while state.byte_size > self.byte_size_max
            && let Some((_, oldest)) = state.entries.pop_lru()
        {
            state.byte_size -= oldest.cost;
            state.evictions += 1;
            displaced.push(oldest);
        }
        displaced
    }
}

impl ResponseCache for LocalCache {
    fn lookup(&self, key: &CacheKey) -> Option<InferenceResponse> {
        let start = Instant::now();
        let mut state = self.state();
        let found = state.entries.get(key).map(|entry| entry.response.clone());
        let counter = if found.is_some() { &mut state.hits } else { &mut state.misses };
        *counter += 1;
        state.lookup += start.elapsed();
        found
    }

    fn insert(&self, key: &CacheKey, response: &InferenceResponse) {
        let start = Instant::now();
        let cost = cost(response);
        let entry = (cost <= self.byte_size_max).then(|| copied(response)).flatten();
        let mut state = self.state();
        let displaced = entry.map(|response| self.put(&mut state, *key, Entry { response, cost }));
        state.insertion += start.elapsed();
        // Dropped after the lock: freeing large responses takes a while.
        drop(state);
        drop(displaced);
    }

    fn statistics(&self) -> Option<CacheStatistics> {
        let state = self.state();
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Some(CacheStatistics {
            bytes_used: count(state.byte_size),
            bytes_max: count(self.byte_size_max),
            entries: count(state.entries.len()),
            hits: state.hits,
            misses: state.misses,
            evictions: state.evictions,
            lookup_ns: nanoseconds(state.lookup),
            insertion_ns: nanoseconds(state.insertion),
        })
    }
}

/// The bytes that a response takes up as an entry.
fn cost(response: &InferenceResponse) -> usize {
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
    all.fold(size_of::<Entry>() + ENTRY_BYTES, usize::saturating_add)
}

/// A copy to keep; `None` if the response isn't in the CPU's memory.
fn copied(response: &InferenceResponse) -> Option<InferenceResponse> {
    // The data may be a slice of a whole batch's tensor, which must not live on with
    // it.
    let copied = |output: &OutputTensor| {
        let data = Buffer::from_vec(output.data.host()?.to_vec());
        Some(OutputTensor { data, ..output.clone() })
    };
    Some(InferenceResponse {
        model_name: response.model_name.clone(),
        model_version: response.model_version,
        id: String::new(),
        parameters: response.parameters.clone(),
        outputs: response.outputs.iter().map(copied).collect::<Option<_>>()?,
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
            parameters: Vec::new(),
            outputs: vec![output],
        }
    }

    fn key(number: u8) -> CacheKey {
        CacheKey([number; 32])
    }

    fn kept(cache: &LocalCache) -> Vec<u8> {
        let is_kept = |number: &u8| {
            let state = cache.state.lock().unwrap();
            state.entries.contains(&key(*number))
        };
        (0..10).filter(is_kept).collect()
    }

    #[test]
    fn the_responses_used_last_are_kept() {
        let cost = cost(&response(1000));
        let cache = LocalCache::new(3 * cost);
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
        let cost = cost(&response(1000));
        let cache = LocalCache::new(cost);
        cache.insert(&key(1), &response(1000));
        cache.insert(&key(2), &response(1001));
        assert_eq!(kept(&cache), [1]);
    }

    #[test]
    fn parameters_need_room_too() {
        let parameter = |name: &str, value| Parameter { name: name.repeat(300), value };
        let with = |parameters| InferenceResponse { parameters, ..response(1000) };
        let long = with(vec![parameter("n", ParameterValue::String("v".repeat(500)))]);
        assert!(cost(&long) >= cost(&response(1000)) + 800);
        let number = with(vec![parameter("n", ParameterValue::Int64(1))]);
        assert_eq!(cost(&long), cost(&number) + 500);
        let cache = LocalCache::new(cost(&long) - 1);
        cache.insert(&key(1), &long);
        cache.insert(&key(2), &number);
        assert_eq!(kept(&cache), [2]);
    }

    #[test]
    fn a_response_that_replaces_another_is_counted_once() {
        let cost = cost(&response(1000));
        let cache = LocalCache::new(2 * cost);
        for _ in 0..5 {
            cache.insert(&key(1), &response(1000));
        }
        cache.insert(&key(2), &response(1000));
        assert_eq!(kept(&cache), [1, 2]);
        assert_eq!(cache.state.lock().unwrap().byte_size, 2 * cost);
    }
    #[test]
    fn everything_is_counted() {
        let cost = cost(&response(1000));
        let cache = LocalCache::new(2 * cost);
        for number in [1, 2, 2, 3] {
            assert!(cache.lookup(&key(number)).is_none() || number == 2);
            cache.insert(&key(number), &response(1000));
        }
        let found = cache.statistics().unwrap();
        assert_eq!((found.hits, found.misses, found.entries, found.evictions), (1, 3, 2, 1));
        let bytes = u64::try_from(2 * cost).unwrap();
        assert_eq!((found.bytes_used, found.bytes_max), (bytes, bytes));
        assert!(found.lookup_ns > 0 && found.insertion_ns > 0);
    }
}
