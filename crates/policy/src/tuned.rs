//! All constants of the schedulers that learn execution costs, each with its trade-off and, if
//! recorded, the experiment that determined it.
//!
//! The constants are the same for every model, so that models need no tuning. Table sizes that
//! affect no decision stay next to their tables.
//!
//! [`GRACE`], [`GRACE_FOR_GAIN`], [`PAYS`] and [`MARGINAL`] were determined by "Padding where
//! batches gain little" in `bench/EXPERIMENTS.md`. There is no recorded experiment for the others:
//! before and after changing one, run the grids of `goodput` and `padding_gain`.

use crate::units::Speed;

// # What is learned

/// The number of latest durations kept for each size or class. With more durations, estimates take
/// longer to follow changes of the machine; with fewer, a single slow execution distorts them.
pub(crate) const SAMPLES: usize = 16;

/// The number of durations from which a size or class counts as known.
pub(crate) const ESTABLISHED_SAMPLES: usize = 3;

/// The number of executions of other sizes after which the knowledge about a size is discarded, so
/// that a size that looked too expensive is tried again.
pub(crate) const FORGET_EXECUTIONS: u64 = 512;

/// The same limit for classes and shapes of padded batches, of which there are more.
pub(crate) const FORGET_EXECUTIONS_PADDED: u64 = 1024;

/// The number of executions after which a shape's factor has half its weight.
pub(crate) const SHAPE_PRIOR: f64 = 4.0;

/// The weight of the latest value in a mean, for a shape's factor and for the stretch of batches by
/// padding.
pub(crate) const LATEST_SHARE: f64 = 1.0 / 16.0;

/// The minimum and maximum time per element beyond all known element counts, as a share of the time
/// per known element. The minimum is used at first, which makes somewhat larger batches look worth
/// trying.
pub(crate) const MARGINAL: std::ops::RangeInclusive<f64> = 0.5..=1.5;

/// The number of executions per block. The largest excess over the estimate is kept for each block,
/// and executions rarely exceed the second largest of these values.
pub(crate) const BLOCK_EXECUTIONS: u32 = 32;
/// The number of blocks.
pub(crate) const BLOCKS: usize = 8;

/// The expected excess before anything is known, in thousandths.
pub(crate) const EXCESS_AT_FIRST: u32 = 250;

// # Who shares a batch

/// The number of requests at the front of the queue that a plan by deadlines considers.
pub(crate) const LOOK_AHEAD: usize = 128;

/// The number of requests at the front of the queue from which the companions in a padded batch are
/// chosen.
pub(crate) const LOOK_AHEAD_PADDED: usize = 64;

/// The maximum number of batches that pass over a request, either in padded batching or because it
/// has no deadline while others have one. This limits how long a request waits; it wasn't
/// determined by measurements.
pub(crate) const PASSED_OVER_MAX: u32 = 16;

/// The minimum instance speedup that justifies growing a batch, passing over requests or waiting
/// for a batch. Smaller differences are noise.
pub(crate) const WORTH_IT: f64 = 1.01;

/// The minimum speedup of a padded batch with several requests over executing them one by one. A
/// smaller gain could be an error, because estimates are off by a few per cent.
pub(crate) const GAIN_MIN: Speed = Speed(1.04);

/// The maximum ratio of a padded batch's elements to those of its requests, whose memory is
/// accounted for. This limits memory; it wasn't determined by measurements.
pub(crate) const PADDED_MAX: f64 = 8.0;

/// The number of smaller batches that are tried in place of one that harms other requests.
pub(crate) const TRIES: usize = 3;

/// The share of its wait by which a request may be delayed for any padded batch. Estimates are off
/// by about this share, and without it no batch would ever be tried if all requests arrived at
/// once.
pub(crate) const GRACE: f64 = 0.03;

/// The additional delay allowed for a padded batch that is faster than its requests one by one, as
/// a multiple of the share by which it is faster.
pub(crate) const GRACE_FOR_GAIN: f64 = 2.0;

/// The minimum speedup with which a padded batch may delay its own requests.
pub(crate) const PAYS: Speed = Speed(1.10);

// # Deadlines and the load

/// The number of latest arrivals that determine the rate. A burst becomes visible after some of
/// them.
pub(crate) const ARRIVALS: usize = 64;

/// The factor by which batches are larger than the arrivals demand, so that a queue that has grown
/// shrinks again.
pub(crate) const CATCH_UP: f64 = 1.05;

/// A decision to wait is reconsidered after the expected time until the missing requests arrive,
/// multiplied by this factor. If none have arrived by then, the rate has fallen.
pub(crate) const PATIENCE: f64 = 2.0;

/// The initial number of refusals per probe. This limits the cost of a wrong estimate; it wasn't
/// determined by measurements.
pub(crate) const REFUSALS_MIN: u32 = 32;

/// The maximum number of refusals per probe. Each unsuccessful probe doubles the number up to this
/// limit, because executions that are too slow for their deadlines usually remain so.
pub(crate) const REFUSALS_MAX: u32 = 1024;
