//! A cache in this process's memory.

use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;

use super::{CachedResponse, ResponseCache};

/// What an entry costs beside its response: key, list links, table slot.
const ENTRY_BYTES: usize = 128;

/// Keeps the responses used last, up to a number of bytes.
pub struct LocalCache {
    byte_size_max: usize,
    state: Mutex<State>,
}

struct State {
    entries: LruCache<[u8; 32], Arc<CachedResponse>>,
    byte_size: usize,
}

impl LocalCache {
    /// A cache for so many bytes.
    #[must_use]
    pub fn new(byte_size_max: usize) -> Self {
        let state = State { entries: LruCache::unbounded(), byte_size: 0 };
        Self { byte_size_max, state: Mutex::new(state) }
    }

    fn cost(response: &CachedResponse) -> usize {
        response.byte_size.saturating_add(ENTRY_BYTES)
    }
}

impl ResponseCache for LocalCache {
    fn lookup(&self, key: &[u8; 32]) -> Option<Arc<CachedResponse>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.entries.get(key).cloned()
    }

    fn insert(&self, key: [u8; 32], response: Arc<CachedResponse>) {
        let cost = Self::cost(&response);
        if cost > self.byte_size_max {
            return;
        }
        // Dropped after the lock: freeing large responses takes a while.
        let mut displaced = Vec::new();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(previous) = state.entries.put(key, response) {
            state.byte_size -= Self::cost(&previous);
            displaced.push(previous);
        }
        state.byte_size += cost;
        while state.byte_size > self.byte_size_max
            && let Some((_, oldest)) = state.entries.pop_lru()
        {
            state.byte_size -= Self::cost(&oldest);
            displaced.push(oldest);
        }
        drop(state);
    }
}

#[cfg(test)]
mod tests {
    use galatea_infer::{InferenceResponse, OutputTensor};
    use galatea_tensor::{Buffer, DataType, Shape};

    use super::*;

    fn response(bytes: usize) -> Arc<CachedResponse> {
        let shape = Shape::new(&[i64::try_from(bytes).unwrap()]).unwrap();
        let output = OutputTensor {
            name: "X".into(),
            datatype: DataType::Int8,
            shape,
            data: Buffer::from_vec(vec![0; bytes]),
        };
        let response = InferenceResponse {
            model_name: "m".into(),
            model_version: 1,
            id: String::from("dropped"),
            parameters: Vec::new(),
            outputs: vec![output],
        };
        Arc::new(CachedResponse::copy_of(&response).unwrap())
    }

    fn kept(cache: &LocalCache) -> Vec<u8> {
        let is_kept = |number: &u8| {
            let state = cache.state.lock().unwrap();
            state.entries.contains(&[*number; 32])
        };
        (0..10).filter(is_kept).collect()
    }

    #[test]
    fn the_responses_used_last_are_kept() {
        let cost = LocalCache::cost(&response(1000));
        let cache = LocalCache::new(3 * cost);
        for number in 0..3 {
            cache.insert([number; 32], response(1000));
        }
        assert!(cache.lookup(&[0; 32]).is_some());
        cache.insert([3; 32], response(1000));
        assert_eq!(kept(&cache), [0, 2, 3]);
        cache.insert([4; 32], response(2000));
        assert_eq!(kept(&cache), [3, 4]);
        assert_eq!(cache.lookup(&[3; 32]).unwrap().response.id, "");
    }

    #[test]
    fn a_response_larger_than_the_cache_displaces_nothing() {
        let cost = LocalCache::cost(&response(1000));
        let cache = LocalCache::new(cost);
        cache.insert([1; 32], response(1000));
        cache.insert([2; 32], response(1001));
        assert_eq!(kept(&cache), [1]);
    }

    #[test]
    fn a_response_that_replaces_another_is_counted_once() {
        let cost = LocalCache::cost(&response(1000));
        let cache = LocalCache::new(2 * cost);
        for _ in 0..5 {
            cache.insert([1; 32], response(1000));
        }
        cache.insert([2; 32], response(1000));
        assert_eq!(kept(&cache), [1, 2]);
        assert_eq!(cache.state.lock().unwrap().byte_size, 2 * cost);
    }
}
