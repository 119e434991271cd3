//! Execution durations, based on recorded executions.
//!
//! Durations are kept by number of rows, for requests of similar length and with a similar number
//! of busy instances. An execution of a recorded size takes one of that size's durations, which is
//! random but the same in each run. Sizes between recorded ones are interpolated between their
//! neighbours, and sizes beyond them lie on the line that best fits all sizes.

use std::collections::BTreeMap;

use galatea_traffic::RecordedExecution as Recorded;

use crate::Execution;

/// The minimum number of executions for which a number of busy instances counts as known.
const KNOWN_EXECUTIONS: usize = 20;

/// The minimum number of executions for which a size is trusted on its own, if other sizes have as
/// many.
const TRUSTED_EXECUTIONS: usize = 3;

/// Durations by rows, each list ascending.
type Sizes = BTreeMap<u32, Vec<u64>>;

/// Draws execution durations. Clones draw the same durations again.
#[derive(Clone, Debug, Default)]
pub struct ExecutionTimeSampler {
    /// Durations by number of busy instances and length class.
    curves: BTreeMap<u32, BTreeMap<u32, Sizes>>,
    /// Number of processors that instances share; 0 if executions slow each other down only as much
    /// as recorded.
    processors: u32,
    drawn: u64,
}

impl ExecutionTimeSampler {
    /// Learns from executions.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no executions.
    pub fn new(executions: &[Recorded]) -> Result<Self, String> {
        let mut curves: BTreeMap<u32, BTreeMap<u32, Sizes>> = BTreeMap::new();
        let known = known_busy(executions);
        for one in executions {
            let busy = nearest(&known, one.busy);
            let sizes = curves.entry(busy).or_default().entry(class(one.length)).or_default();
            sizes.entry(one.rows.max(1)).or_default().push(one.duration_ns);
        }
        if curves.is_empty() {
            return Err(String::from("no execution is recorded, so that costs are not known"));
        }
        for sizes in curves.values_mut().flat_map(BTreeMap::values_mut) {
            sizes.values_mut().for_each(|durations| durations.sort_unstable());
        }
        Ok(Self { curves, processors: 0, drawn: 0 })
    }

    /// Sets the number of processors. If more instances than this execute, they share the
    /// processors: each execution takes proportionally longer than recorded.
    #[must_use]
    pub const fn with_shared_processors(mut self, processors: u32) -> Self {
        self.processors = processors;
        self
    }

    /// Draws the duration of the next execution, in nanoseconds.
    pub fn draw(&mut self, execution: Execution) -> u64 {
        self.drawn = self.drawn.wrapping_add(1);
        self.at(execution, share(self.drawn))
    }

    /// The median duration of the execution.
    pub fn typical(&self, execution: Execution) -> u64 {
        self.at(execution, 0.5)
    }

    /// The number of recorded executions by size.
    pub fn execution_counts_by_size(&self) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for sizes in self.curves.values().flat_map(BTreeMap::values) {
            for (rows, durations) in sizes {
                *counts.entry(*rows).or_default() += durations.len();
            }
        }
        counts
    }

    fn at(&self, execution: Execution, share: f64) -> u64 {
        let known: Vec<u32> = self.curves.keys().copied().collect();
        let busy = nearest(&known, execution.busy);
        let Some(lengths) = self.curves.get(&busy) else { return 0 };
        let longer = lengths.range(class(execution.length)..).next();
        let Some((_, sizes)) = longer.or_else(|| lengths.last_key_value()) else { return 0 };
        let duration = on_curve(sizes, execution.rows.max(1), share);
        (duration * self.slowdown(execution.busy, busy)).round().max(0.0) as u64
    }

    fn slowdown(&self, busy: u32, recorded: u32) -> f64 {
        if self.processors == 0 {
            return 1.0;
        }
        let waits = |busy: u32| f64::from(busy.max(self.processors)) / f64::from(self.processors);
        (waits(busy) / waits(recorded)).max(1.0)
    }
}

/// The numbers of busy instances with enough executions, or otherwise the most frequent one.
fn known_busy(executions: &[Recorded]) -> Vec<u32> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for one in executions {
        *counts.entry(one.busy).or_default() += 1;
    }
    let most = counts.values().copied().max().unwrap_or(0);
    let is_known = |count: usize| count >= KNOWN_EXECUTIONS.min(most);
    counts.into_iter().filter(|(_, count)| is_known(*count)).map(|(busy, _)| busy).collect()
}

fn nearest(known: &[u32], busy: u32) -> u32 {
    known.iter().copied().min_by_key(|one| one.abs_diff(busy)).unwrap_or(busy)
}

/// The duration of a number of rows, on the curve through the same quantile of each size's
/// durations.
fn on_curve(sizes: &Sizes, rows: u32, share: f64) -> f64 {
    let value = |durations: &[u64]| {
        let index = (share * durations.len() as f64) as usize;
        durations.get(index.min(durations.len().saturating_sub(1))).copied().unwrap_or(0) as f64
    };
    let most = sizes.values().map(Vec::len).max().unwrap_or(0);
    let is_trusted = |durations: &[u64]| durations.len() >= TRUSTED_EXECUTIONS.min(most);
    let point = |(rows, durations): (&u32, &Vec<u64>)| (f64::from(*rows), value(durations));
    if let Some(durations) = sizes.get(&rows).filter(|durations| is_trusted(durations)) {
        return value(durations);
    }
    let trusted = |one: &(&u32, &Vec<u64>)| is_trusted(one.1);
    let below = sizes.range(..rows).rfind(trusted).map(point);
    let above = sizes.range(rows..).find(trusted).map(point);
    let wanted = f64::from(rows);
    let fitted = || fit(sizes.iter().map(|one| (point(one), one.1.len() as f64)));
    match (below, above) {
        (Some(from), Some(to)) => line(from, to, wanted),
        (Some(last), None) => fitted().map_or_else(
            || line((0.0, last.1 / 2.0), last, wanted),
            |(fixed, per_row)| (fixed + per_row * wanted).max(last.1),
        ),
        (None, Some(first)) => fitted().map_or_else(
            || line((0.0, first.1 / 2.0), first, wanted),
            |(fixed, per_row)| {
                (fixed + per_row * wanted).clamp(first.1 * wanted / first.0, first.1)
            },
        ),
        (None, None) => 0.0,
    }
}

/// Fits weighted points by least squares with a fixed part and a part per row, neither of which is
/// below 0. Returns `None` for a single size, where half of the duration counts as fixed.
fn fit(points: impl Iterator<Item = ((f64, f64), f64)>) -> Option<(f64, f64)> {
    let points: Vec<((f64, f64), f64)> = points.collect();
    if points.len() < 2 {
        return None;
    }
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        points.iter().map(|((rows, value), weight)| weight * of(*rows, *value)).sum()
    };
    let all = sum(&|_, _| 1.0);
    let (rows, value) = (sum(&|rows, _| rows) / all, sum(&|_, value| value) / all);
    let spread = sum(&|one, _| (one - rows).powi(2));
    let slope = sum(&|one, other| (one - rows) * (other - value)) / spread;
    let fixed = value - slope * rows;
    if slope < 0.0 {
        return Some((value, 0.0));
    }
    if fixed < 0.0 {
        return Some((0.0, sum(&|rows, value| rows * value) / sum(&|rows, _| rows.powi(2))));
    }
    Some((fixed, slope))
}

fn line(from: (f64, f64), to: (f64, f64), at: f64) -> f64 {
    from.1 + (to.1 - from.1) * (at - from.0) / (to.0 - from.0)
}

/// Groups lengths that have similar costs, in quarters of an octave.
fn class(length: u32) -> u32 {
    if length <= 8 {
        return length;
    }
    let step = 1 << (length.ilog2() - 2);
    length.div_ceil(step).saturating_mul(step)
}

/// Maps each draw to a number between 0 and 1, so that the draws fill the interval evenly.
fn share(drawn: u64) -> f64 {
    let mixed = drawn.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(rows: u32, busy: u32, duration_ns: u64) -> Recorded {
        Recorded { rows, busy, duration_ns, ..Recorded::default() }
    }

    fn typical(costs: &ExecutionTimeSampler, rows: u32, busy: u32) -> u64 {
        costs.typical(Execution { rows, length: 0, busy })
    }

    #[test]
    fn sizes_between_recorded_ones_are_on_a_line() {
        let costs = ExecutionTimeSampler::new(&[
            recorded(2, 1, 300),
            recorded(4, 1, 500),
            recorded(8, 1, 900),
        ]);
        let costs = costs.unwrap();
        assert_eq!(
            [1, 2, 3, 4, 6, 16].map(|rows| typical(&costs, rows, 1)),
            [200, 300, 400, 500, 700, 1700]
        );
        let one = ExecutionTimeSampler::new(&[recorded(4, 1, 1000)]).unwrap();
        assert_eq!([1, 4, 8].map(|rows| typical(&one, rows, 1)), [625, 1000, 1500]);
        assert!(ExecutionTimeSampler::new(&[]).is_err());
    }

    #[test]
    fn sizes_beyond_the_recorded_ones_fit_all_and_not_the_last() {
        let mut executions = Vec::new();
        for rows in 1..=4 {
            executions.extend(vec![recorded(rows, 1, 1_000 + 100 * u64::from(rows)); 10]);
        }
        // A disturbed execution says little about larger sizes or about its own.
        executions.push(recorded(5, 1, 40_000));
        let costs = ExecutionTimeSampler::new(&executions).unwrap();
        assert_eq!(typical(&costs, 4, 1), 1_400);
        let (own, larger) = (typical(&costs, 5, 1), typical(&costs, 16, 1));
        assert!(own < 8_000 && larger < 20_000, "{own} {larger}");
        let falling = [recorded(1, 1, 900), recorded(2, 1, 500)];
        assert_eq!(typical(&ExecutionTimeSampler::new(&falling).unwrap(), 8, 1), 700);
        let steep = [recorded(1, 1, 100), recorded(2, 1, 900)];
        assert_eq!(typical(&ExecutionTimeSampler::new(&steep).unwrap(), 4, 1), 1_520);
    }

    #[test]
    fn durations_are_drawn_as_often_as_they_were_recorded() {
        let executions: Vec<Recorded> =
            (0..10).map(|number| recorded(1, 1, if number < 9 { 100 } else { 900 })).collect();
        let mut costs = ExecutionTimeSampler::new(&executions).unwrap();
        let execution = Execution { rows: 1, length: 0, busy: 1 };
        let slow = (0..1000).filter(|_| costs.draw(execution) == 900).count();
        assert!((95..=105).contains(&slow), "{slow}");
    }

    #[test]
    fn busy_instances_slow_each_other_down_as_recorded_or_by_the_processors() {
        let mut executions = vec![recorded(1, 1, 100); KNOWN_EXECUTIONS];
        executions.extend(vec![recorded(1, 2, 150); KNOWN_EXECUTIONS]);
        executions.push(recorded(1, 3, 9_000));
        let costs = ExecutionTimeSampler::new(&executions).unwrap();
        assert_eq!([1, 2, 4].map(|busy| typical(&costs, 1, busy)), [100, 150, 150]);
        let shared = costs.with_shared_processors(2);
        assert_eq!([1, 2, 4].map(|busy| typical(&shared, 1, busy)), [100, 150, 300]);
    }

    #[test]
    fn lengths_have_costs_of_their_own() {
        let of = |length, duration_ns| Recorded { length, ..recorded(1, 1, duration_ns) };
        let costs = ExecutionTimeSampler::new(&[of(10, 100), of(100, 900)]).unwrap();
        let typical = |length| costs.typical(Execution { rows: 1, length, busy: 1 });
        assert_eq!([1, 10, 11, 97, 5000].map(typical), [100, 100, 900, 900, 900]);
        assert_eq!([8, 9, 17, 100].map(class), [8, 10, 20, 112]);
    }
}
