//! The scheduler's knowledge of costs, as judged from outside, and the promises that it makes based
//! on this knowledge.

use std::collections::BTreeMap;

use galatea_policy::{InstanceId, Time};

use super::{Kind, TimedRequest, World};
use crate::check::{Check, ensure};

/// The number of executions after which the costs of padded batches are expected to be known.
const LEARNED_AFTER: u64 = 150;

/// The factor by which predictions for padded batches may be off once costs are known.
const TOLERANCE: f64 = 1.5;

/// The factor by which estimates for a single request in padded batches may be off. Elements are
/// distinguished by half octaves and, where most of the cost is fixed, requests of one class cost
/// the same.
const ESTIMATE_ERROR: f64 = 1.3;

/// The maximum number and share of late responses in a load once costs are known. Requests that are
/// executed alone and are late by less than the estimation error don't count.
const LATE_MAX: (u64, f64) = (3, 0.01);

/// The maximum total time of all batches, as a share of what their requests take one by one, for
/// loads with at least these numbers of executions. In short loads, the batches that serve to learn
/// costs weigh more: among half a million seeds, the worst took 1.04 and 1.09 times as long.
const SLOWER_MAX: [(u64, f64); 2] = [(600, 1.05), (300, 1.15)];

/// The same limits with deadlines.
const SLOWER_MAX_BY_DEADLINES: [(u64, f64); 1] = [(500, 1.06)];

/// The kept and broken promises to the requests of a load.
#[derive(Copy, Clone, Default, Debug)]
pub struct DeadlineOutcomes {
    /// The number of requests that were executed once costs were known.
    pub executed: u64,
    /// The number of these requests that completed too late.
    pub late: u64,
}

/// The executions of a world, as far as a scheduler can learn from them.
#[derive(Debug)]
pub(super) struct Knowledge {
    kind: Kind,
    /// The number of executions of each size and the number of its latest execution.
    executed: BTreeMap<Size, (u64, u64)>,
    /// The sizes that are executing, each with true if the scheduler could predict it.
    running: BTreeMap<InstanceId, (Size, bool)>,
    /// The largest number of elements that was executed.
    pub(super) elements_max: u64,
    /// The total times of batches and of their requests one by one, once costs are known.
    pub(super) took: (u64, u64),
    pub(super) promises: DeadlineOutcomes,
    /// The number of late requests that estimates don't explain.
    broken_promises: u64,
}

/// The limits of a scheduler's memory of a size.
struct KnowledgeLimits {
    /// A size is known after this many of its executions.
    known_after: u64,
    /// A size is forgotten after this many executions of other sizes.
    forgotten_after: u64,
}

/// Executions of similar size, which cost about the same.
type Size = (u32, u32, u32);

impl Knowledge {
    pub(super) fn new(kind: Kind) -> Self {
        Knowledge {
            kind,
            executed: BTreeMap::new(),
            running: BTreeMap::new(),
            elements_max: 0,
            took: (0, 0),
            promises: DeadlineOutcomes::default(),
            broken_promises: 0,
        }
    }

    /// Returns the rows and length; for padded batches, their octaves and the half octaves of their
    /// elements.
    fn size(&self, rows: u32, length: u32) -> Size {
        if !self.kind.is_padded() {
            return (rows, length, 0);
        }
        let elements = f64::from(rows.max(1)) * f64::from(length.max(1));
        (rows.max(1).ilog2(), length.max(1).ilog2(), (elements.log2() * 2.0) as u32)
    }

    fn limits(&self) -> KnowledgeLimits {
        match self.kind.is_padded() {
            true => KnowledgeLimits { known_after: 8, forgotten_after: 1_000 },
            false => KnowledgeLimits { known_after: 3, forgotten_after: 500 },
        }
    }

    pub(super) fn begin(&mut self, instance: InstanceId, (rows, length): (u32, u32), known: bool) {
        self.elements_max = self.elements_max.max(u64::from(rows) * u64::from(length));
        self.running.insert(instance, (self.size(rows, length), known));
    }

    /// Records the end of the execution with this number.
    pub(super) fn end(&mut self, instance: InstanceId, executions: u64) {
        let (size, _) = self.running.remove(&instance).expect("it is busy");
        let forgotten_after = self.limits().forgotten_after;
        let (times, latest) = self.executed.entry(size).or_default();
        // The first execution after a long time begins the count anew.
        *times = if executions - *latest < forgotten_after { *times + 1 } else { 1 };
        *latest = executions;
    }

    /// Returns true if an instance is busy with an execution that couldn't be predicted.
    pub(super) fn has_unpredicted(&self) -> bool {
        self.running.values().any(|(_, is_known)| !is_known)
    }
}

impl World {
    /// Returns true if the scheduler knows the duration of such an execution.
    pub(super) fn is_known(&self, rows: u32, length: u32) -> bool {
        let executions = self.timed.executions;
        let KnowledgeLimits { known_after, forgotten_after } = self.knowledge.limits();
        // For padded batches, sizes without elements count as one element.
        if self.kind.is_padded() && (length == 0 || executions <= LEARNED_AFTER) {
            return false;
        }
        let known = self.knowledge.executed.get(&self.knowledge.size(rows, length));
        known.is_some_and(|(times, latest)| {
            *times >= known_after && executions - latest < forgotten_after
        })
    }

    /// Returns the duration of the request's execution alone.
    pub(super) fn alone_ns(&self, one: &TimedRequest) -> u64 {
        self.costs.of(one.info.batch_size, one.info.length)
    }

    /// Returns the latest time that a prediction may give for an event that is this far away.
    pub(super) fn predictable(&self, nanoseconds: u64) -> Time {
        let factor = if self.kind.is_padded() { TOLERANCE } else { 1.0 };
        self.after((nanoseconds as f64 * factor) as u64)
    }

    /// Checks a batch of a known size and this duration against its deadlines.
    pub(super) fn check_known_batch(&mut self, chosen: &[TimedRequest], takes: u64) -> Check {
        let ends = self.after(takes);
        let late = chosen.iter().filter(|one| one.deadline < ends).count() as u64;
        if !self.kind.is_padded() {
            ensure!(late == 0 || chosen.len() == 1, "{chosen:?} together miss a deadline");
            ensure!(late == 0, "{chosen:?} runs in vain");
            return Ok(());
        }
        self.count_time(chosen, takes);
        self.knowledge.promises.executed += chosen.len() as u64;
        self.knowledge.promises.late += late;
        let is_close = |one: &TimedRequest| {
            let left = one.deadline.saturating_since(self.timed.now) as f64;
            chosen.len() == 1 && left * ESTIMATE_ERROR >= takes as f64
        };
        let broken = chosen.iter().filter(|one| one.deadline < ends && !is_close(one)).count();
        self.knowledge.broken_promises += broken as u64;
        let in_vain = |one: &TimedRequest| {
            self.after((self.alone_ns(one) as f64 / TOLERANCE) as u64) > one.deadline
        };
        ensure!(!chosen.iter().any(in_vain), "{chosen:?} runs in vain");
        Ok(())
    }

    /// Adds the time of a batch in arrival order once costs are expected to be known.
    pub(super) fn count_learned_batch(&mut self, chosen: &[TimedRequest], takes: u64) {
        if self.timed.executions > LEARNED_AFTER {
            self.count_time(chosen, takes);
        }
    }

    fn count_time(&mut self, chosen: &[TimedRequest], takes: u64) {
        let one_by_one: u64 = chosen.iter().map(|one| self.alone_ns(one)).sum();
        self.knowledge.took.0 += takes;
        self.knowledge.took.1 += one_by_one;
    }

    /// Checks the rules for an entire load.
    pub(super) fn check_promises(&self) -> Check {
        let executions = self.timed.executions;
        let slower_max: &[(u64, f64)] = match self.kind {
            Kind::Deadlines => &[],
            Kind::Padded => &SLOWER_MAX,
            Kind::PaddedDeadlines => &SLOWER_MAX_BY_DEADLINES,
        };
        let slower_max = slower_max.iter().find(|(least, _)| executions >= *least);
        self.check_slowness(slower_max.map_or(f64::MAX, |(_, most)| *most))?;
        let (executed, late) = (self.knowledge.promises.executed, self.knowledge.broken_promises);
        let late_max = LATE_MAX.0 as f64 + LATE_MAX.1 * executed as f64;
        let is_kept = late as f64 <= late_max;
        ensure!(is_kept, "{late} of {executed} are late");
        Ok(())
    }

    /// Checks that all batches take at most this share of the time of their requests one by one.
    fn check_slowness(&self, slower_max: f64) -> Check {
        let (together, one_by_one) = self.knowledge.took;
        let is_fast = together as f64 <= one_by_one as f64 * slower_max;
        ensure!(
            is_fast,
            "batches took {together} ns, and their requests one by one {one_by_one} ns"
        );
        Ok(())
    }

    /// Checks the rules for a long load.
    pub(super) fn check_long_load(&self) -> Check {
        self.check_slowness(SLOWER_MAX[0].1)
    }
}
