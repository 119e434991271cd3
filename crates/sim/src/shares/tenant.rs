//! The clients of a tenant.

use std::collections::VecDeque;

use crate::random::Random;

/// The times at which a tenant's requests arrive.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum TenantBehavior {
    /// Requests always wait.
    Backlogged,
    /// This many requests arrive together, at intervals of about this length.
    Bursts { count: u64, interval_ns: u64 },
}

#[derive(Clone, Debug)]
pub(super) struct SimulatedTenant {
    pub(super) behavior: TenantBehavior,
    /// The work of the waiting requests.
    pub(super) queue: VecDeque<u64>,
    /// The largest work of a request.
    pub(super) work_max: u64,
    /// The true compute per unit of work, in percent of the model's.
    pub(super) cost_percent: u64,
    pub(super) next_arrival: Option<u64>,
}

/// The number of requests that a backlogged tenant keeps waiting.
const BACKLOG: usize = 40;

impl SimulatedTenant {
    pub(super) fn new(behavior: TenantBehavior, random: &mut Random) -> Self {
        let next_arrival = match behavior {
            TenantBehavior::Backlogged => Some(0),
            TenantBehavior::Bursts { interval_ns, .. } => Some(random.between(0, interval_ns)),
        };
        Self {
            behavior,
            queue: VecDeque::new(),
            work_max: random.pick(&[1, 2, 4]),
            cost_percent: random.pick(&[100, 100, 50, 200]),
            next_arrival,
        }
    }

    /// Returns the work of the requests that arrive now, and plans the next arrival.
    pub(super) fn arrivals(&mut self, now: u64, random: &mut Random) -> Vec<u64> {
        let count = match self.behavior {
            TenantBehavior::Backlogged => {
                self.next_arrival = None;
                (BACKLOG - self.queue.len().min(BACKLOG)) as u64
            }
            TenantBehavior::Bursts { count, interval_ns } => {
                let pause = random.between(interval_ns / 2, interval_ns * 3 / 2);
                self.next_arrival = Some(now + pause.max(1));
                count
            }
        };
        let works: Vec<u64> = (0..count).map(|_| random.between(1, self.work_max)).collect();
        self.queue.extend(&works);
        works
    }

    /// Takes the first request, and lets a backlogged tenant send more.
    pub(super) fn take(&mut self, now: u64) -> Option<u64> {
        let work = self.queue.pop_front();
        if self.behavior == TenantBehavior::Backlogged && self.queue.len() <= BACKLOG / 2 {
            self.next_arrival = Some(now);
        }
        work
    }
}
