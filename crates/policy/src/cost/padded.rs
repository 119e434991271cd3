//! Execution durations of padded batches, learned from past executions.
//!
//! A padded batch has rows × length elements, and its duration depends mostly on that number.
//! Durations per element are therefore kept by element count, in half octaves, and estimates are
//! interpolated between neighbours. Differences between shapes with equal element counts are
//! learned as a factor by length and rows, in octaves.
//!
//! Nothing is known beyond the largest element count executed so far. Half of a larger batch's
//! duration is assumed to be fixed, which makes somewhat larger batches look worth trying. Batches
//! are limited to twice as many elements. Batches thus grow step by step, and a size that doesn't
//! pay off costs only a few executions.

use super::samples::Samples;
use super::spread::ExcessSpread;
use crate::tuned::{FORGET_EXECUTIONS_PADDED, LATEST_SHARE, MARGINAL, SHAPE_PRIOR};
use crate::units::{Elements, Length, Rows};

/// The number of element-count classes, in half octaves.
const CLASSES: usize = 64;

/// The number of octaves that lengths and rows are grouped into.
const OCTAVES: usize = 20;

/// Execution durations by rows and padded length.
#[derive(Clone, Debug)]
pub(crate) struct PaddedCosts {
    /// The latest durations of each class, in nanoseconds per element.
    classes: Vec<Samples<f64>>,
    /// Nanoseconds per element in the middle of each class, from the first to the last known class.
    per_element: Vec<f64>,
    /// The first and last known classes.
    known: Option<(usize, usize)>,
    shapes: Vec<ShapeFactor>,
    spread: ExcessSpread,
    executions: u64,
}

/// The factor by which a shape takes longer than other shapes with the same number of elements.
#[derive(Copy, Clone, Debug)]
struct ShapeFactor {
    factor: f64,
    count: f64,
    latest: u64,
}

impl PaddedCosts {
    /// Costs without any known execution.
    pub(crate) fn new() -> Self {
        PaddedCosts {
            classes: vec![Samples::default(); CLASSES],
            per_element: vec![0.0; CLASSES],
            known: None,
            shapes: vec![ShapeFactor { factor: 1.0, count: 0.0, latest: 0 }; OCTAVES * OCTAVES],
            spread: ExcessSpread::default(),
            executions: 0,
        }
    }

    /// Learns the duration of an execution.
    pub(crate) fn observe(&mut self, rows: Rows, length: Length, duration_ns: u64) {
        if self.knows(rows, length)
            && let Some(typical) = self.estimate(rows, length)
        {
            self.spread.add(duration_ns, typical as u64);
        }
        self.executions += 1;
        let elements = rows.of_length(length).as_f64();
        let expected = self.by_elements(elements);
        let took = duration_ns.max(1) as f64;
        let shape = &mut self.shapes[shape_index(rows, length)];
        // The part that is due to the shape says nothing about other shapes.
        let of_any_shape = took / shape.at(self.executions);
        let class = &mut self.classes[class_of(elements)];
        class.add(of_any_shape / elements, self.executions, FORGET_EXECUTIONS_PADDED);
        if let Some(expected) = expected {
            shape.add(took / expected, self.executions);
        }
        self.estimate_all();
    }

    /// Returns the typical duration of an execution, in nanoseconds. Returns `None` as long as
    /// nothing is known.
    pub(crate) fn estimate(&self, rows: Rows, length: Length) -> Option<f64> {
        let shape = &self.shapes[shape_index(rows, length)];
        Some(self.by_elements(rows.of_length(length).as_f64())? * shape.at(self.executions))
    }

    /// Returns a lower bound on an execution's duration, as far as it is known. A batch that is too
    /// large to be judged is treated as the largest batch that can be.
    pub(crate) fn least(&self, rows: Rows, length: Length) -> Option<f64> {
        let whole = self.estimate(rows, length)?;
        let judged = rows.of_length(length).as_f64().min(self.elements_max());
        Some(whole.min(self.by_elements(judged)?))
    }

    /// Returns a duration that executions with this typical duration rarely exceed.
    pub(crate) fn cautious(&self, typical_ns: f64) -> f64 {
        typical_ns * self.spread.factor()
    }

    /// Returns the fastest batch of requests of this length whose execution probably ends within
    /// this time: its rows and its duration. Returns `None` as long as nothing is known.
    pub(crate) fn fastest(
        &self,
        length: Length,
        rows_max: Rows,
        within_ns: u64,
    ) -> Option<(Rows, f64)> {
        let mut rows = Rows(1);
        let mut best = (rows, self.least(rows, length)?);
        while rows < rows_max {
            rows = Rows(rows.0 + rows.0.div_ceil(2)).min(rows_max);
            let takes_ns = self.estimate(rows, length)?;
            if !self.can_judge(rows.of_length(length)) || self.cautious(takes_ns) > within_ns as f64
            {
                break;
            }
            if takes_ns / rows.as_f64() < best.1 / best.0.as_f64() {
                best = (rows, takes_ns);
            }
        }
        Some(best)
    }

    /// Returns true if executions with at most this many elements and executions with at least this
    /// many have been seen.
    pub(crate) fn knows(&self, rows: Rows, length: Length) -> bool {
        let class = class_of(rows.of_length(length).as_f64());
        self.known.is_some_and(|(first, last)| (first..=last).contains(&class))
    }

    /// Returns true if the duration of a batch with this many elements can be judged.
    pub(crate) fn can_judge(&self, elements: Elements) -> bool {
        elements.as_f64() <= self.elements_max()
    }

    /// Returns the largest number of elements for which a batch can be judged: twice that of any
    /// known class.
    fn elements_max(&self) -> f64 {
        self.known.map_or(0.0, |(_, last)| 2.0 * end_of(last))
    }

    fn by_elements(&self, elements: f64) -> Option<f64> {
        let (first, last) = self.known?;
        let place = place_of(elements) - 0.5;
        if place >= last as f64 {
            let at_last = self.per_element[last] * middle_of(last);
            let beyond = (elements / middle_of(last)).max(1.0);
            return Some(at_last * (1.0 + self.marginal(last) * (beyond - 1.0)));
        }
        if place <= first as f64 {
            return Some(self.per_element[first] * elements);
        }
        let below = place as usize;
        let share = place - below as f64;
        let (from, to) = (self.per_element[below], self.per_element[below + 1]);
        Some((from + (to - from) * share) * elements)
    }

    /// Returns the time per element beyond the last known class, as a share of the time per element
    /// within it. The share is extrapolated from the preceding octave, or is half if that octave is
    /// unknown.
    fn marginal(&self, last: usize) -> f64 {
        let from = last
            .checked_sub(2)
            .filter(|class| self.known.is_some_and(|(first, _)| first <= *class));
        from.map_or(*MARGINAL.start(), |from| {
            (2.0 - self.per_element[from] / self.per_element[last])
                .clamp(*MARGINAL.start(), *MARGINAL.end())
        })
    }

    /// Fills `per_element` and `known` from the samples.
    fn estimate_all(&mut self) {
        let mut last: Option<(usize, f64)> = None;
        self.known = None;
        for class in 0..CLASSES {
            let Some(median) = self.median(class) else { continue };
            let (from, start) = last.unwrap_or((class, median));
            for between in from..=class {
                let share = (between - from) as f64 / (class - from).max(1) as f64;
                self.per_element[between] = start + (median - start) * share;
            }
            last = Some((class, median));
            let (first, _) = self.known.unwrap_or((class, class));
            self.known = Some((first, class));
        }
    }

    /// Returns the nanoseconds per element of a class, if known.
    fn median(&self, class: usize) -> Option<f64> {
        let samples = &self.classes[class];
        let is_known = samples.are_known(self.executions, FORGET_EXECUTIONS_PADDED);
        samples.median(f64::total_cmp).filter(|_| is_known)
    }
}

impl ShapeFactor {
    fn add(&mut self, factor: f64, execution: u64) {
        if execution - self.latest > FORGET_EXECUTIONS_PADDED {
            (self.factor, self.count) = (1.0, 0.0);
        }
        self.count += 1.0;
        self.latest = execution;
        let share = (1.0 / self.count).max(LATEST_SHARE);
        self.factor += (factor.clamp(0.5, 2.0) - self.factor) * share;
    }

    fn at(&self, executions: u64) -> f64 {
        if executions - self.latest > FORGET_EXECUTIONS_PADDED {
            return 1.0;
        }
        1.0 + (self.factor - 1.0) * self.count / (self.count + SHAPE_PRIOR)
    }
}

/// Returns the position of a number on a scale with two steps per octave, whose midpoints lie
/// between the steps.
fn place_of(elements: f64) -> f64 {
    2.0 * elements.log2()
}

fn class_of(elements: f64) -> usize {
    (place_of(elements) as usize).min(CLASSES - 1)
}

fn middle_of(class: usize) -> f64 {
    ((class as f64 + 0.5) / 2.0).exp2()
}

fn end_of(class: usize) -> f64 {
    ((class as f64 + 1.0) / 2.0).exp2()
}

fn shape_index(rows: Rows, length: Length) -> usize {
    let octave = |number: u64| (number.max(1).ilog2() as usize).min(OCTAVES - 1);
    octave(rows.0) * OCTAVES + octave(u64::from(length.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuned::ESTABLISHED_SAMPLES;

    fn observe(costs: &mut PaddedCosts, rows: u64, length: u32, duration_ns: u64) {
        costs.observe(Rows(rows), Length(length), duration_ns);
    }

    fn knows(costs: &PaddedCosts, rows: u64, length: u32) -> bool {
        costs.knows(Rows(rows), Length(length))
    }

    fn estimate(costs: &PaddedCosts, rows: u64, length: u32) -> Option<f64> {
        costs.estimate(Rows(rows), Length(length))
    }

    fn learned(executions: &[(u64, u32, u64)]) -> PaddedCosts {
        let mut costs = PaddedCosts::new();
        for (rows, length, duration_ns) in executions {
            (0..ESTABLISHED_SAMPLES)
                .for_each(|_| observe(&mut costs, *rows, *length, *duration_ns));
        }
        costs
    }

    #[track_caller]
    fn check(costs: &PaddedCosts, rows: u64, length: u32, expected: f64) {
        let estimate = estimate(costs, rows, length).unwrap();
        assert!((estimate / expected - 1.0).abs() < 0.12, "{estimate} instead of {expected}");
    }

    #[test]
    fn nothing_is_known_before_some_executions() {
        let mut costs = PaddedCosts::new();
        observe(&mut costs, 1, 8, 100);
        observe(&mut costs, 1, 8, 100);
        assert_eq!(estimate(&costs, 1, 8), None);
        assert!(!knows(&costs, 1, 8));
        observe(&mut costs, 1, 8, 100);
        assert!(knows(&costs, 1, 8) && !knows(&costs, 1, 40) && !knows(&costs, 1, 2));
        check(&costs, 1, 8, 100.0);
    }

    #[test]
    fn batches_with_as_many_elements_take_equally_long_until_they_show_otherwise() {
        let mut costs = learned(&[(1, 8, 800), (1, 64, 6_400), (1, 512, 51_200)]);
        check(&costs, 8, 8, 6_400.0);
        check(&costs, 4, 8, 3_200.0);
        (0..40).for_each(|_| observe(&mut costs, 8, 8, 4_400));
        (0..40).for_each(|_| observe(&mut costs, 1, 64, 6_400));
        check(&costs, 8, 8, 4_400.0);
        check(&costs, 1, 64, 6_400.0);
    }

    #[test]
    fn larger_batches_than_known_look_worth_a_try() {
        let costs = learned(&[(1, 100, 10_000)]);
        let (one, two) = (estimate(&costs, 1, 100).unwrap(), estimate(&costs, 2, 100).unwrap());
        assert!(two < 1.7 * one, "{one} {two}");
        assert!((200.0..260.0).contains(&costs.elements_max()));
    }

    #[test]
    fn one_slow_execution_among_many_changes_little() {
        let mut costs = learned(&[(1, 100, 10_000)]);
        (0..20).for_each(|_| observe(&mut costs, 1, 100, 10_000));
        observe(&mut costs, 1, 100, 1_000_000);
        check(&costs, 1, 100, 10_000.0);
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut costs = learned(&[(1, 8, 100), (1, 1_000, 900_000)]);
        assert!(knows(&costs, 1, 500));
        (0..=FORGET_EXECUTIONS_PADDED).for_each(|_| observe(&mut costs, 1, 8, 100));
        assert!(!knows(&costs, 1, 500));
    }

    #[test]
    fn extreme_shapes_have_estimates() {
        let mut costs = learned(&[(1, 0, 100), (u64::MAX, u32::MAX, u64::MAX)]);
        observe(&mut costs, u64::MAX, u32::MAX, 0);
        assert!(estimate(&costs, u64::MAX, u32::MAX).unwrap() > 0.0);
        assert!(estimate(&costs, 0, 0).unwrap() > 0.0);
    }
}
