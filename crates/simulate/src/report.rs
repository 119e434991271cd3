//! The results of a load.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// The requests of a load by result, and their latencies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Number of requests answered by their deadlines.
    pub in_time: u64,
    /// Number of requests answered after their deadlines.
    pub late: u64,
    /// Number of refused requests.
    pub refused: u64,
    /// Number of requests refused on arrival.
    pub refused_at_once: u64,
    /// Number of refused requests by reason.
    pub refusals: BTreeMap<Cow<'static, str>, u64>,
    /// Number of executions by row count.
    pub batches: BTreeMap<u32, u64>,
    /// Number of executions by the reason why their batches were closed.
    pub closed: BTreeMap<Cow<'static, str>, u64>,
    /// The total duration of all executions.
    pub busy_ns: u64,
    /// The time of the last response, in nanoseconds.
    pub ended_ns: u64,
    /// The times from arrival to response, ascending.
    latencies_ns: Vec<u64>,
}

impl Report {
    /// Number of answered requests.
    pub fn answered(&self) -> u64 {
        self.in_time + self.late
    }

    /// Responses within their deadlines per second.
    pub fn goodput(&self) -> f64 {
        self.per_second(self.in_time)
    }

    /// Responses per second.
    pub fn throughput(&self) -> f64 {
        self.per_second(self.answered())
    }

    /// Number of executions.
    pub fn executions(&self) -> u64 {
        self.batches.values().sum()
    }

    /// The mean number of rows per execution, or 0 if there were no executions.
    pub fn mean_batch(&self) -> f64 {
        let rows: u64 = self.batches.iter().map(|(rows, count)| u64::from(*rows) * count).sum();
        rows as f64 / self.executions().max(1) as f64
    }

    /// The mean number of busy instances.
    pub fn mean_busy_instances(&self) -> f64 {
        self.busy_ns as f64 / self.ended_ns.max(1) as f64
    }

    /// The latency that this share of the responses doesn't exceed, or 0 without responses.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let last = self.latencies_ns.len().saturating_sub(1);
        let index = (share.clamp(0.0, 1.0) * self.latencies_ns.len() as f64) as usize;
        self.latencies_ns.get(index.min(last)).copied().unwrap_or(0)
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.ended_ns.max(1) as f64
    }

    /// Records the response to a request.
    pub(crate) fn answer(&mut self, now: u64, latency_ns: u64, deadline_ns: u64) {
        if latency_ns <= deadline_ns {
            self.in_time += 1;
        } else {
            self.late += 1;
        }
        self.latencies_ns.push(latency_ns);
        self.ended_ns = self.ended_ns.max(now);
    }

    /// Records a refused request.
    pub(crate) fn refuse(&mut self, reason: impl Into<Cow<'static, str>>) {
        self.refused += 1;
        *self.refusals.entry(reason.into()).or_default() += 1;
    }

    /// Records an executed batch.
    pub(crate) fn execute(
        &mut self,
        rows: u32,
        closed: impl Into<Cow<'static, str>>,
        duration_ns: u64,
    ) {
        *self.batches.entry(rows).or_default() += 1;
        *self.closed.entry(closed.into()).or_default() += 1;
        self.busy_ns = self.busy_ns.saturating_add(duration_ns);
    }

    pub(crate) fn finish(&mut self) {
        self.latencies_ns.sort_unstable();
    }
}
