//! The response cache as a whole.

use galatea_infer::CacheStatistics;

use super::{Exposition, microseconds};

/// The gauges of Triton's local cache, in its order.
pub(super) fn gauges(text: &mut Exposition, cache: &CacheStatistics) {
    let used = utilization(cache.bytes_used, cache.bytes_max);
    text.single("nv_cache_util", "The used share of the response cache, from 0 to 1", used);
    let counts: [(&str, &str, u64); 7] = [
        ("nv_cache_num_entries", "Responses in the response cache", cache.entries),
        ("nv_cache_num_hits", "Lookups in the response cache that found a response", cache.hits),
        ("nv_cache_num_misses", "Lookups in the response cache in vain", cache.misses),
        (
            "nv_cache_num_lookups",
            "Lookups in the response cache",
            cache.hits.saturating_add(cache.misses),
        ),
        (
            "nv_cache_num_evictions",
            "Responses that left the response cache to make room",
            cache.evictions,
        ),
        (
            "nv_cache_lookup_duration",
            "Microseconds of all lookups in the response cache",
            microseconds(cache.lookup_ns),
        ),
        (
            "nv_cache_insertion_duration",
            "Microseconds of all insertions into the response cache",
            microseconds(cache.insertion_ns),
        ),
    ];
    for (name, help, value) in counts {
        text.single(name, help, value);
    }
}

#[allow(clippy::cast_precision_loss, reason = "sizes in memory are far below 2^53")]
fn utilization(used: u64, max: u64) -> f64 {
    if max == 0 { 0.0 } else { used as f64 / max as f64 }
}
