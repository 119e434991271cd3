//! The constants of the schedulers that learn what executions cost: all of them, with what each
//! trades, and the experiment that chose it where one is on record.
//!
//! They are the same for every model, so that models have nothing to tune. Sizes of tables that
//! change no decision stay beside their tables.
//!
//! [`GRACE`], [`GRACE_FOR_GAIN`], [`PAYS`] and [`MARGINAL`] were chosen by "Padding where batches
//! gain little" in `bench/EXPERIMENTS.md`. For the others no experiment is on record: a change of one
//! begins with the grids of `goodput` and `padding_gain`, before and after.

use crate::units::Speed;

// # What is learned

/// Latest durations that are kept for each size or class. With more of them an estimate follows a
/// change of the machine later, with fewer one slow execution moves it.
pub(crate) const SAMPLES: usize = 16;

/// From this many durations on, a size or class is known.
pub(crate) const ESTABLISHED_SAMPLES: usize = 3;

/// After this many executions of others, what is known of a size counts no more, so that it is tried
/// again if it looked too expensive.
pub(crate) const FORGET_EXECUTIONS: u64 = 512;

/// The same for classes and shapes of padded batches, of which there are more.
pub(crate) const FORGET_EXECUTIONS_PADDED: u64 = 1024;

/// A shape's factor counts half after this many executions.
pub(crate) const SHAPE_PRIOR: f64 = 4.0;

/// The share of the latest value in a mean: of a shape's factor, and of how far padding stretches
/// batches.
pub(crate) const LATEST_SHARE: f64 = 1.0 / 16.0;

/// The time of elements beyond all known ones, as a share of that of known ones: at least and at
/// most. At first the least, which makes somewhat larger batches look worth a try.
pub(crate) const MARGINAL: std::ops::RangeInclusive<f64> = 0.5..=1.5;

/// Executions of a block of which the largest excess over the estimate is kept, and the number of
/// blocks: what executions rarely exceed is the second largest of these.
pub(crate) const BLOCK_EXECUTIONS: u32 = 32;
/// Number of these blocks.
pub(crate) const BLOCKS: usize = 8;

/// The excess that is expected before anything is known, in thousandths.
pub(crate) const EXCESS_AT_FIRST: u32 = 250;

// # Who shares a batch

/// A plan by deadlines looks at this many requests in front of the queue.
pub(crate) const LOOK_AHEAD: usize = 128;

/// Companions in a padded batch are chosen among this many requests in front of the queue.
pub(crate) const LOOK_AHEAD_PADDED: usize = 64;

/// A request is passed over by at most this many batches: one that is padded, and one without a
/// deadline among others that have one. It bounds what a request waits, and was not chosen by
/// figures.
pub(crate) const PASSED_OVER_MAX: u32 = 16;

/// A batch grows, passes requests over, or is waited for, if that makes an instance faster by this
/// factor: differences below are noise.
pub(crate) const WORTH_IT: f64 = 1.01;

/// A padded batch of several requests must be faster than they are one by one by this factor, as
/// estimates are wrong by some per cent.
pub(crate) const GAIN_MIN: Speed = Speed(1.04);

/// A padded batch has at most this many times the elements of its requests, whose memory is
/// accounted for. It bounds memory, and was not chosen by figures.
pub(crate) const PADDED_MAX: f64 = 8.0;

/// Number of smaller batches that are tried in place of one that harms others.
pub(crate) const TRIES: usize = 3;

/// A request may be put off by this share of its wait for any padded batch: estimates are wrong by
/// as much, and without it no batch would ever be tried where all requests come at once.
pub(crate) const GRACE: f64 = 0.03;

/// For a padded batch that is faster by some share than its requests one by one, a request may be put
/// off by this many times that share in addition.
pub(crate) const GRACE_FOR_GAIN: f64 = 2.0;

/// A padded batch that is faster by this factor may put off its own requests.
pub(crate) const PAYS: Speed = Speed(1.10);

// # Deadlines and the load

/// Number of the latest arrivals that tell the rate. A burst shows after some of them.
pub(crate) const ARRIVALS: usize = 64;

/// Batches are as large as this many times the arrivals demand, so that a queue that has grown
/// shrinks again.
pub(crate) const CATCH_UP: f64 = 1.05;

/// After this many times as long as the missing requests probably take to arrive, it is decided
/// anew whether to wait: if none came, the rate has fallen by then.
pub(crate) const PATIENCE: f64 = 2.0;

/// One in this many refusals is a probe at first. It bounds what a wrong estimate costs, and was not
/// chosen by figures.
pub(crate) const REFUSALS_MIN: u32 = 32;

/// Each probe in vain doubles that, up to this: what is too slow for its deadlines remains so.
pub(crate) const REFUSALS_MAX: u32 = 1024;
