//! Response cache metrics.

use galatea_infer::CacheStatistics;

use super::{Exposition, Number, microseconds};

/// The gauges of Triton's local cache, in Triton's order.
pub(super) fn gauges(text: &mut Exposition, cache: &CacheStatistics) {
    let used = utilization(cache.bytes_used, cache.bytes_max);
    text.single("nv_cache_util", "Cache utilization [0.0 - 1.0]", Number(used));
    let counts: [(&str, &str, u64); 7] = [
        ("nv_cache_num_entries", "Number of responses stored in response cache", cache.entries),
        ("nv_cache_num_hits", "Number of cache hits in response cache", cache.hits),
        ("nv_cache_num_misses", "Number of cache misses in response cache", cache.misses),
        (
            "nv_cache_num_lookups",
            "Number of cache lookups in response cache",
            cache.hits.saturating_add(cache.misses),
        ),
        ("nv_cache_num_evictions", "Number of cache evictions in response cache", cache.evictions),
        (
            "nv_cache_lookup_duration",
            "Total cache lookup duration (hit and miss), in microseconds",
            microseconds(cache.lookup_ns),
        ),
        (
            "nv_cache_insertion_duration",
            "Total cache insertion duration, in microseconds",
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
