//! When a request that arrives would be answered.

use crate::cost::CostCurve;
use crate::time::Time;

/// The load that a request finds.
pub(super) struct Load<'a> {
    /// The durations of batches of such requests.
    pub(super) curve: &'a CostCurve,
    /// When each instance is free, ascending, at least one.
    pub(super) lanes_free: &'a [Time],
    /// Rows that are served before it.
    pub(super) rows_ahead: u64,
    /// The largest batch that ends within the objective.
    pub(super) full_rows: u32,
}

impl Load<'_> {
    /// When a request with this many rows is typically answered if the rows ahead of it
    /// execute in full batches. None as long as no cost is known.
    pub(super) fn answered_at(&self, rows: u32) -> Option<Time> {
        let full = u64::from(self.full_rows.max(1));
        let lanes = self.lanes_free.len() as u64;
        let (batches, rest) = (self.rows_ahead / full, self.rows_ahead % full);
        let (rounds, lane) = (batches / lanes, (batches % lanes) as usize);
        let full_ns = self.curve.estimate(self.full_rows)?.typical_ns;
        let with_it = u32::try_from(rest).unwrap_or(u32::MAX).saturating_add(rows);
        let own_ns = self.curve.estimate(with_it)?.typical_ns;
        let starts = self.lanes_free[lane].saturating_add(rounds.saturating_mul(full_ns));
        Some(starts.saturating_add(own_ns))
    }
}
