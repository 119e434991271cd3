//! What became of a load.

use std::collections::BTreeMap;

/// The requests of a load by what became of them, and their latencies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Requests that were answered by their deadlines.
    pub in_time: u64,
    /// Requests that were answered after their deadlines.
    pub late: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Those of them that were refused when they arrived.
    pub refused_at_once: u64,
    /// Number of executions by rows.
    pub batches: BTreeMap<u32, u64>,
    /// When the last request was answered, in nanoseconds.
    pub ended_ns: u64,
    /// From arrival to answer, ascending.
    latencies_ns: Vec<u64>,
}

impl Report {
    /// Requests that were answered.
    pub fn answered(&self) -> u64 {
        self.in_time + self.late
    }

    /// Answers in time per second.
    pub fn goodput(&self) -> f64 {
        self.in_time as f64 * 1e9 / self.ended_ns.max(1) as f64
    }

    /// The latency that this share of the answers has at most; 0 without answers.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let last = self.latencies_ns.len().saturating_sub(1);
        let index = (share.clamp(0.0, 1.0) * self.latencies_ns.len() as f64) as usize;
        self.latencies_ns.get(index.min(last)).copied().unwrap_or(0)
    }

    /// A request was answered.
    pub(crate) fn answer(&mut self, now: u64, latency_ns: u64, deadline_ns: u64) {
        if latency_ns <= deadline_ns {
            self.in_time += 1;
        } else {
            self.late += 1;
        }
        self.latencies_ns.push(latency_ns);
        self.ended_ns = now;
    }

    pub(crate) fn finish(&mut self) {
        self.latencies_ns.sort_unstable();
    }
}
