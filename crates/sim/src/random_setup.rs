//! Random specifications with small numbers, so that times and sizes coincide, and occasionally
//! with the largest possible ones.

use std::str::FromStr;

use galatea_policy::{SchedulingMode, SchedulingSpec, SequenceBatcherSpec, SequenceStrategy};

use crate::custom_batching::WeightLimitBatching;
use crate::dynamic_settings::{random_delay, random_preferred, random_settings};
use crate::random::Random;
use crate::setup::SchedulerSetup;

/// A kind of scheduler.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SchedulerMode {
    /// The default scheduler, which executes each request in a batch of its own.
    Default,
    /// The dynamic batcher.
    Dynamic,
    /// The sequence batcher with the direct strategy.
    Direct,
    /// The sequence batcher with the oldest strategy.
    Oldest,
    /// The sequence batcher with iterative requests.
    Iterative,
}

impl SchedulerMode {
    const NAMES: [(&'static str, SchedulerMode); 5] = [
        ("default", SchedulerMode::Default),
        ("dynamic", SchedulerMode::Dynamic),
        ("direct", SchedulerMode::Direct),
        ("oldest", SchedulerMode::Oldest),
        ("iterative", SchedulerMode::Iterative),
    ];

    /// Returns the mode's name on the command line.
    pub fn name(self) -> &'static str {
        let named = Self::NAMES.iter().find(|(_, mode)| *mode == self);
        named.map_or("", |(name, _)| name)
    }
}

impl FromStr for SchedulerMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, mode)| *mode).ok_or_else(|| format!("{text:?} is not a mode"))
    }
}

/// Draws a specification of the given mode or of any mode.
pub(crate) fn random_setup(random: &mut Random, mode: Option<SchedulerMode>) -> SchedulerSetup {
    let drawn = match random.between(1, 100) {
        1..=5 => SchedulerMode::Default,
        6..=40 => SchedulerMode::Dynamic,
        41..=62 => SchedulerMode::Direct,
        63..=84 => SchedulerMode::Oldest,
        _ => SchedulerMode::Iterative,
    };
    match mode.unwrap_or(drawn) {
        SchedulerMode::Default => random_stateless(random, |_, _| SchedulingMode::Default).into(),
        SchedulerMode::Dynamic => {
            let spec = random_stateless(random, |random, max| {
                SchedulingMode::Dynamic(random_settings(random, max))
            });
            let custom =
                random.percent(20).then(|| WeightLimitBatching { limit: random.between(1, 9) });
            SchedulerSetup { spec, custom }
        }
        SchedulerMode::Direct => {
            random_sequential(random, |random, max| (random_direct(random, max), false)).into()
        }
        SchedulerMode::Oldest => {
            random_sequential(random, |random, max| (random_oldest(random, max), false)).into()
        }
        SchedulerMode::Iterative => random_sequential(random, |random, max| {
            let direct = random.percent(40);
            let draw = if direct { random_direct } else { random_oldest };
            (draw(random, max), true)
        })
        .into(),
    }
}

fn random_stateless(
    random: &mut Random,
    mode: impl FnOnce(&mut Random, u32) -> SchedulingMode,
) -> SchedulingSpec {
    let max_batch_size: u32 = random.pick(&[0, 1, 2, 3, 4, 4, 8, 8, 16, 64]);
    let mode = mode(random, max_batch_size.max(1));
    let hold_until_queued = if random.percent(10) { random.between_u32(1, 10) } else { 0 };
    SchedulingSpec { max_batch_size, mode, hold_until_queued, hold_until_backlogged: 0 }
}

fn random_sequential(
    random: &mut Random,
    strategy: impl FnOnce(&mut Random, u32) -> (SequenceStrategy, bool),
) -> SchedulingSpec {
    let max_batch_size: u32 = random.pick(&[0, 1, 1, 2, 2, 3, 4, 8]);
    let (strategy, iterative) = strategy(random, max_batch_size.max(1));
    let max_sequence_idle_ns = match random.between(0, 9) {
        0 => 0,
        1..=5 => random.between(1, 60),
        6..=8 => random.between(60, 300),
        _ => u64::MAX - random.between(0, 300),
    };
    let held = random.percent(10);
    let (hold_until_queued, hold_until_backlogged) =
        if held { (random.between_u32(0, 8), random.between_u32(0, 4)) } else { (0, 0) };
    let settings = SequenceBatcherSpec { strategy, max_sequence_idle_ns, iterative };
    SchedulingSpec {
        max_batch_size,
        mode: SchedulingMode::Sequence(settings),
        hold_until_queued,
        hold_until_backlogged,
    }
}

fn random_direct(random: &mut Random, max: u32) -> SequenceStrategy {
    SequenceStrategy::Direct {
        max_queue_delay_ns: random_delay(random),
        minimum_ready_slots: random.between_u32(0, max + 1),
    }
}

fn random_oldest(random: &mut Random, max: u32) -> SequenceStrategy {
    SequenceStrategy::Oldest {
        max_candidate_sequences: random.pick(&[0, 1, 2, 3, 4, 6, 12]),
        preferred_batch_sizes: random_preferred(random, max),
        max_queue_delay_ns: random_delay(random),
    }
}
