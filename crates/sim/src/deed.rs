//! What a scheduler did, in a form that any implementation can produce.

use galatea_policy::{Action, BatchEntry, Event, FailReason, InstanceId, RequestKey};

use crate::random::mix;

/// One action of a scheduler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Deed {
    /// Requests run together.
    Run {
        /// Where.
        instance: InstanceId,
        /// Which, in the order of rows.
        keys: Vec<RequestKey>,
        /// Their rows together, as the scheduler says.
        rows: u32,
    },
    /// A request fails.
    Fail(RequestKey, FailReason),
    /// An instance is gone.
    Removed(InstanceId),
    /// Nothing waits and nothing runs after a drain.
    Drained,
}

impl From<Action> for Deed {
    fn from(action: Action) -> Self {
        match action {
            Action::Dispatch { instance, batch } => {
                let rows = batch.batch_size();
                let keys =
                    batch.into_entries().into_iter().map(|BatchEntry::Request(key)| key).collect();
                Deed::Run { instance, keys, rows }
            }
            Action::Fail { key, reason } => Deed::Fail(key, reason),
            Action::InstanceRemoved(instance) => Deed::Removed(instance),
            Action::Drained => Deed::Drained,
        }
    }
}

/// A hash that depends on everything fed to it, in order.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TraceHash(pub(crate) u64);

impl TraceHash {
    fn number(&mut self, number: u64) {
        self.0 = mix(self.0.rotate_left(5) ^ number.wrapping_add(0x9E37_79B9_7F4A_7C15));
    }

    pub(crate) fn event(&mut self, now: u64, event: &Event) {
        self.number(now);
        match event {
            Event::Enqueue(ticket) => {
                let small = [ticket.batch_size, ticket.batch_key.0].map(u64::from);
                for number in
                    [1, ticket.key.0, small[0], small[1], ticket.priority, ticket.timeout_ns]
                {
                    self.number(number);
                }
            }
            Event::Cancel(key) => self.pair(2, key.0),
            Event::LaneFree(instance) => self.pair(3, u64::from(instance.0)),
            Event::AddInstance(instance) => self.pair(4, u64::from(instance.0)),
            Event::RemoveInstance(instance) => self.pair(5, u64::from(instance.0)),
            Event::Drain => self.number(6),
            Event::Tick => self.number(7),
        }
    }

    pub(crate) fn deed(&mut self, deed: &Deed) {
        match deed {
            Deed::Run { instance, keys, rows } => {
                self.pair(11, u64::from(instance.0));
                self.number(u64::from(*rows));
                keys.iter().for_each(|key| self.number(key.0));
            }
            Deed::Fail(key, reason) => {
                self.pair(12, key.0);
                self.number(match reason {
                    FailReason::QueueFull => 1,
                    FailReason::TimeoutExpired => 2,
                    FailReason::Cancelled => 3,
                    FailReason::Draining => 4,
                });
            }
            Deed::Removed(instance) => self.pair(13, u64::from(instance.0)),
            Deed::Drained => self.number(14),
        }
    }

    fn pair(&mut self, kind: u64, number: u64) {
        self.number(kind);
        self.number(number);
    }
}
