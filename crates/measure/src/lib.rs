//! Distributions of values that many threads record concurrently: histograms, and quantiles over a
//! sliding window.
//!
//! Recording is a single atomic addition. It takes no lock, allocates nothing and reads no clock:
//! callers pass the time. All the work happens during reading, which a scrape does every few
//! seconds.
//!
//! The crate does not know what is being measured, and does not write text.
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
