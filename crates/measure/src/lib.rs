//! Distributions of values that many threads record concurrently: histograms, and quantiles over a
//! sliding window.
//!
//! Recording takes a single atomic addition: no lock, no allocation and no clock, since callers
//! pass the time. All other work happens on reading, which a scrape does every few seconds.
//!
//! The crate doesn't know what is being measured, and doesn't produce text.
//!
//! ```
//! use galatea_measure::{Histogram, SlidingQuantiles};
//! use std::time::Duration;
//!
//! let sizes = Histogram::new(&[1, 2, 4]);
//! [1, 3, 9].into_iter().for_each(|size| sizes.observe(size));
//! assert_eq!(sizes.counts(), [1, 0, 1, 1]);
//!
//! let latencies = SlidingQuantiles::new();
//! let now = Duration::from_secs(1);
//! (1..=100).for_each(|value| latencies.observe(now, value));
//! assert_eq!(latencies.read(now).quantile(0.9), Some(90));
//! ```

#![forbid(unsafe_code)]

mod histogram;
mod quantiles;

pub use histogram::Histogram;
pub use quantiles::{QuantileReading, SlidingQuantiles};
