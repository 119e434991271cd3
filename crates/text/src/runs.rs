//! Divides rows of different lengths into runs of the network.

use std::ops::Range;

/// The cost of a run in addition to its tokens, in tokens. A run of a small encoder takes as long
/// as a run with about this many more tokens. A smaller value would execute rows of almost equal
/// lengths in separate runs, and a larger value would add more padding.
const RUN_COST_TOKENS: u64 = 16;

/// The limits of a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// The maximum number of rows.
    pub rows_max: usize,
    /// The maximum number of tokens, including the padding. A single row may have more.
    pub tokens_max: u64,
}

/// Divides rows, whose lengths are sorted in ascending order, into runs of consecutive rows. Each
/// row is padded to the length of the last row in its run. The division has the lowest total cost:
/// the number of tokens including the padding, and a constant for each run.
#[must_use]
pub fn plan_runs(lengths: &[u64], limits: RunLimits) -> Vec<Range<usize>> {
    // The lowest cost of the first rows, and the start of the last run of that division.
    let mut best: Vec<(u64, usize)> = vec![(0, 0)];
    for (last, length) in lengths.iter().enumerate() {
        let end = last.saturating_add(1);
        let mut chosen = (u64::MAX, last);
        let first = end.saturating_sub(limits.rows_max.max(1));
        let mut tokens = 0_u64;
        for start in (first..end).rev() {
            tokens = tokens.saturating_add(*length);
            if tokens > limits.tokens_max && start < last {
                break;
            }
            let before = best.get(start).map_or(u64::MAX, |(cost, _)| *cost);
            let cost = before.saturating_add(RUN_COST_TOKENS).saturating_add(tokens);
            if cost < chosen.0 {
                chosen = (cost, start);
            }
        }
        best.push(chosen);
    }
    let mut runs = Vec::new();
    let mut end = lengths.len();
    while end > 0 {
        let start = best.get(end).map_or(0, |(_, start)| *start);
        runs.push(start..end);
        end = start;
    }
    runs.reverse();
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expected` contains the end of each run.
    fn check(lengths: &[u64], rows_max: usize, tokens_max: u64, expected: &[usize]) {
        let runs = plan_runs(lengths, RunLimits { rows_max, tokens_max });
        let ends: Vec<usize> = runs.iter().map(|run| run.end).collect();
        assert_eq!(ends, expected, "{lengths:?}");
    }

    #[test]
    fn rows_of_similar_lengths_share_a_run() {
        check(&[], 8, 100, &[]);
        check(&[5], 8, 100, &[1]);
        check(&[5, 5, 6], 8, 100, &[3]);
        check(&[5, 5, 6, 200, 210], 8, 1000, &[3, 5]);
        check(&[5, 200], 8, 1000, &[1, 2]);
    }

    #[test]
    fn runs_keep_the_limits() {
        check(&[5; 6], 2, 100, &[2, 4, 6]);
        check(&[10; 6], 8, 30, &[3, 6]);
        check(&[500, 500], 8, 100, &[1, 2]);
        check(&[5, 5], 0, 0, &[1, 2]);
    }

    /// Compares the result with all divisions.
    #[test]
    fn the_division_is_the_cheapest() {
        fn cheapest(lengths: &[u64], limits: RunLimits) -> u64 {
            (1..=lengths.len())
                .filter_map(|end| {
                    let (run, rest) = lengths.split_at(end);
                    let tokens = run[end - 1] * end as u64;
                    let fits = end <= limits.rows_max && tokens <= limits.tokens_max;
                    (fits || end == 1).then(|| RUN_COST_TOKENS + tokens + cheapest(rest, limits))
                })
                .min()
                .unwrap_or(0)
        }
        let mut seed = 7_u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..300 {
            let mut lengths: Vec<u64> = (0..draw(9)).map(|_| 1 + draw(60)).collect();
            lengths.sort_unstable();
            let rows_max = 1 + usize::try_from(draw(6)).unwrap();
            let limits = RunLimits { rows_max, tokens_max: 1 + draw(200) };
            let runs = plan_runs(&lengths, limits);
            let cost =
                |run: &Range<usize>| RUN_COST_TOKENS + lengths[run.end - 1] * run.len() as u64;
            assert_eq!(runs.iter().map(cost).sum::<u64>(), cheapest(&lengths, limits));
            assert_eq!(runs.iter().map(Range::len).sum::<usize>(), lengths.len());
        }
    }
}
