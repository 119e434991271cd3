//! What the dynamic rules ask of a batch, and of waiting for one. They hold for
//! stateless models and, instance by instance, for sequences under `oldest`.

use galatea_policy::{BatchKey, RequestKey, Time};

use crate::batching::CustomBatching;
use crate::check::{Check, ensure};

/// A specification of dynamic batching, made explicit.
#[derive(Clone, Debug)]
pub(crate) struct Forming {
    pub(crate) max_rows: u64,
    /// Never empty.
    pub(crate) preferred: Vec<u64>,
    pub(crate) delay_ns: u64,
    pub(crate) custom: Option<CustomBatching>,
}

/// A request in the order of service.
pub(crate) trait Waiting {
    fn key(&self) -> RequestKey;
    fn rows(&self) -> u64;
    fn batch_key(&self) -> BatchKey;
    /// Since when its delay counts.
    fn since(&self) -> Time;
}

impl<W: Waiting> Waiting for &W {
    fn key(&self) -> RequestKey {
        (*self).key()
    }

    fn rows(&self) -> u64 {
        (*self).rows()
    }

    fn batch_key(&self) -> BatchKey {
        (*self).batch_key()
    }

    fn since(&self) -> Time {
        (*self).since()
    }
}

/// The time of a look at the requests, and the delay that counts then.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Time,
    /// An unloading model does not wait.
    pub(crate) draining: bool,
}

impl Forming {
    pub(crate) fn new(max_batch_size: u32, preferred_batch_sizes: &[u32], delay_ns: u64) -> Self {
        let max = max_batch_size.max(1);
        let usable = preferred_batch_sizes.iter().filter(|size| (1..=max).contains(size));
        let mut preferred: Vec<u64> = usable.map(|size| u64::from(*size)).collect();
        if preferred.is_empty() {
            preferred.push(u64::from(max));
        }
        Forming { max_rows: u64::from(max), preferred, delay_ns, custom: None }
    }

    fn largest_preferred(&self) -> u64 {
        self.preferred.iter().copied().fold(0, u64::max)
    }

    fn delay_ns(&self, moment: Moment) -> u64 {
        if moment.draining { 0 } else { self.delay_ns }
    }

    fn is_preferred<W: Waiting>(&self, batch: &[&W]) -> bool {
        self.preferred.contains(&rows_of(batch))
    }

    /// How many requests from the front could be one batch.
    fn run_length<W: Waiting>(&self, order: &[&W]) -> usize {
        let mut rows = 0;
        let mut length = 0;
        for waiting in order {
            rows += waiting.rows();
            let fits = rows <= self.max_rows && waiting.batch_key() == order[0].batch_key();
            if length > 0 && !fits {
                break;
            }
            length += 1;
        }
        match self.custom {
            Some(custom) => custom.most(order[..length].iter().map(|waiting| waiting.key())),
            None => length,
        }
    }

    fn is_delay_over<W: Waiting>(&self, moment: Moment, run: &[&W]) -> bool {
        let waited = run.iter().map(|waiting| moment.now.saturating_since(waiting.since())).max();
        let delay_ns = self.delay_ns(moment);
        delay_ns != 0 && waited.unwrap_or(0) >= delay_ns
    }

    /// The first `count` in the order of service make a legal batch, of the size
    /// that the rules ask for.
    pub(crate) fn check_batch<W: Waiting>(
        &self,
        moment: Moment,
        order: &[&W],
        count: usize,
    ) -> Check {
        let batch = &order[..count];
        let rows = rows_of(batch);
        let most = self.max_rows;
        ensure!(count == 1 || rows <= most, "{rows} rows in a batch, {most} is the maximum");
        let same_key = batch.iter().all(|waiting| waiting.batch_key() == batch[0].batch_key());
        ensure!(same_key, "two batch keys in a batch");
        let run = self.run_length(order);
        ensure!(
            count <= run,
            "{count} requests in a batch, but custom batching closed it at {run}"
        );
        if self.is_delay_over(moment, &order[..run]) {
            ensure!(
                count == run,
                "the delay is over, but {:?} was left behind",
                order[count].key()
            );
            return Ok(());
        }
        self.check_size(moment, order, count, run)
    }

    /// Inside the delay a batch goes because its size is preferred, or because
    /// waiting is in vain.
    fn check_size<W: Waiting>(
        &self,
        moment: Moment,
        order: &[&W],
        count: usize,
        run: usize,
    ) -> Check {
        let rows = rows_of(&order[..count]);
        let largest = self.largest_preferred();
        ensure!(
            count == 1 || rows <= largest,
            "{rows} rows lead past {largest}, the largest preferred size"
        );
        let better = (count + 1..=run).find(|longer| self.is_preferred(&order[..*longer]));
        ensure!(
            better.is_none(),
            "{count} requests ran, but {better:?} reach a larger preferred size"
        );
        let next = order.get(count);
        let leads_past = next.is_some_and(|next| rows + next.rows() > largest);
        if self.is_preferred(&order[..count]) || leads_past {
            return Ok(());
        }
        ensure!(
            count == run,
            "{rows} rows are not preferred, and {:?} was left behind",
            order[count].key()
        );
        let forced = next.is_some() || rows >= largest || self.delay_ns(moment) == 0;
        ensure!(forced, "{rows} rows are not preferred, may grow, and the delay is not over");
        Ok(())
    }

    /// With a free lane requests may wait only for their batch to grow, which it
    /// must be able to do, and only inside the delay.
    pub(crate) fn check_waiting<W: Waiting>(&self, moment: Moment, order: &[&W]) -> Check {
        let can_grow = self.run_length(order) == order.len();
        ensure!(can_grow, "a lane is free and a batch can't grow, but it waits");
        let delays = self.delay_ns(moment) != 0;
        ensure!(delays, "a lane is free and there is no delay, but requests wait");
        let is_over = self.is_delay_over(moment, order);
        ensure!(!is_over, "a lane is free and the delay is over, but requests wait");
        let is_full = rows_of(order) >= self.largest_preferred();
        ensure!(!is_full, "a lane is free and a full batch waits");
        let reached = (1..=order.len()).find(|count| self.is_preferred(&order[..*count]));
        ensure!(
            reached.is_none(),
            "a lane is free and {reached:?} requests of a preferred size wait"
        );
        Ok(())
    }

    /// When requests that wait for their batch to grow go as they are.
    pub(crate) fn goes_at(&self, oldest: Time) -> Option<Time> {
        Some(oldest.saturating_add(self.delay_ns)).filter(|time| *time != Time::MAX)
    }
}

pub(crate) fn rows_of<W: Waiting>(batch: &[&W]) -> u64 {
    batch.iter().map(|waiting| waiting.rows()).sum()
}
