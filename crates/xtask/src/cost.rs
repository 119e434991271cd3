//! The time that a step takes: wall-clock time and processor time.

use std::fs;
use std::ops::Sub;
use std::time::Instant;

/// The unit in which Linux counts process time: hundredths of a second, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// The start of a step.
pub(crate) struct Start {
    at: Instant,
    used: Option<f64>,
}

/// The time that a step took.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Cost {
    /// The wall-clock time in seconds.
    wall: f64,
    /// The processor time in seconds, of this process and its descendants that have ended. A
    /// program that outlives its parent is not counted.
    processors: Option<f64>,
}

impl Start {
    pub(crate) fn now() -> Self {
        Self { at: Instant::now(), used: used() }
    }

    pub(crate) fn cost(&self) -> Cost {
        let processors = used().zip(self.used).map(|(after, before)| after.sub(before));
        Cost { wall: self.at.elapsed().as_secs_f64(), processors }
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:6.0} s", self.wall)?;
        self.processors.map_or(Ok(()), |processors| write!(f, " {processors:6.0} CPU s"))
    }
}

fn used() -> Option<f64> {
    in_stat(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// Sums the `utime`, `stime`, `cutime` and `cstime` fields. The preceding name, which may contain
/// anything, ends with the last parenthesis.
fn in_stat(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: Vec<&str> = fields.split_whitespace().skip(11).take(4).collect();
    let [_, _, _, _] = ticks[..] else { return None };
    let numbers: Option<Vec<f64>> = ticks.iter().map(|text| text.parse().ok()).collect();
    Some(numbers?.iter().sum::<f64>() / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_its_children_are_counted() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 2 3 4 100 50 200 10 20 0 1 0 9 8 7";
        assert_eq!(in_stat(stat), Some(3.6));
        assert_eq!(in_stat("7 (a) S 1"), None);
    }

    #[test]
    fn a_cost_is_a_column_of_the_summary() {
        let cost = Cost { wall: 61.2, processors: Some(118.7) };
        assert_eq!(cost.to_string(), "    61 s    119 CPU s");
        assert_eq!(Cost { processors: None, ..cost }.to_string(), "    61 s");
        assert!(Start::now().cost().processors.is_some_and(|seconds| seconds >= 0.0));
    }
}
