//! Stage two: in which order do requests wait, how many may, and for how long?
//!
//! Requests of a level wait first in, first out; levels are served strictly, 1
//! first. Behind a level's requests stand those whose time was up under the
//! policy DELAY; they come before the next level.
//!
//! Any request can leave from the middle: keys lead to slots through an ordered
//! map (O(log n)), slots are linked into lists (O(1)), deadlines sit in heaps
//! that know each slot's position (O(log n)).

mod deadlines;
mod list;
mod slab;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

pub(crate) use self::deadlines::{Deadlines, Place};
use self::list::List;
use self::slab::{Slab, WaitingLane};
pub(crate) use self::slab::{SlotId, Waiting};
use crate::ids::{RequestInfo, RequestKey};
use crate::spec::{DynamicSpec, QueuePolicy, TimeoutAction};
use crate::time::Time;

/// All requests of a model that wait.
#[derive(Clone, Debug)]
pub(crate) struct PolicyQueue {
    policies: Policies,
    slab: Slab,
    slots: BTreeMap<RequestKey, SlotId>,
    /// Levels where requests wait, and the default level once it was used: that
    /// one comes and goes with each request of an idle model, so it stays.
    levels: BTreeMap<u64, Level>,
    rejections: Deadlines<SlotId>,
    delays: Deadlines<SlotId>,
    /// Counts arrivals: ties of deadlines go by it.
    arrivals: u64,
    revision: u64,
}

#[derive(Clone, Debug, Default)]
struct Level {
    in_time: List,
    delayed: List,
    /// When those that were moved back arrived.
    delayed_since: BTreeSet<(Time, RequestKey)>,
}

impl Level {
    fn len(&self) -> usize {
        self.in_time.len() + self.delayed.len()
    }

    fn first(&self) -> Option<SlotId> {
        self.in_time.head().or(self.delayed.head())
    }
}

/// Which level a request belongs to, and what holds there.
#[derive(Clone, Debug)]
struct Policies {
    priority_levels: u64,
    default_level: u64,
    default_policy: QueuePolicy,
    own_policies: BTreeMap<u64, QueuePolicy>,
}

impl Policies {
    fn level_of(&self, priority: u64) -> u64 {
        if priority == 0 || priority > self.priority_levels { self.default_level } else { priority }
    }

    fn at(&self, level: u64) -> &QueuePolicy {
        self.own_policies.get(&level).unwrap_or(&self.default_policy)
    }
}

/// The level already has as many requests as it may.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct QueueFull;

/// What waits at one level.
pub(crate) struct LevelSummary {
    pub(crate) priority: u64,
    pub(crate) waiting: usize,
    pub(crate) delayed: usize,
    pub(crate) oldest: Time,
}

impl PolicyQueue {
    /// One level, no limits: what the default scheduler waits in.
    pub(crate) fn unlimited() -> Self {
        Self::with_policies(Policies {
            priority_levels: 0,
            default_level: 0,
            default_policy: QueuePolicy::default(),
            own_policies: BTreeMap::new(),
        })
    }

    pub(crate) fn new(spec: &DynamicSpec) -> Self {
        if spec.priority_levels == 0 {
            let default_policy = spec.default_queue_policy;
            return Self::with_policies(Policies { default_policy, ..Self::unlimited().policies });
        }
        assert!(
            (1..=spec.priority_levels).contains(&spec.default_priority_level),
            "the configuration was checked: its default priority level is one of its levels"
        );
        Self::with_policies(Policies {
            priority_levels: spec.priority_levels,
            default_level: spec.default_priority_level,
            default_policy: spec.default_queue_policy,
            own_policies: spec.priority_queue_policies.clone(),
        })
    }

    fn with_policies(policies: Policies) -> Self {
        PolicyQueue {
            policies,
            slab: Slab::default(),
            slots: BTreeMap::new(),
            levels: BTreeMap::new(),
            rejections: Deadlines::default(),
            delays: Deadlines::default(),
            arrivals: 0,
            revision: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Changes whenever the order of service changes in any way but a request
    /// joining at its very end. Whoever walked the order may continue until then.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Lets the request wait at its level, unless that is full.
    pub(crate) fn enqueue(&mut self, ticket: RequestInfo, now: Time) -> Result<(), QueueFull> {
        let level_id = self.policies.level_of(ticket.priority);
        let policy = *self.policies.at(level_id);
        let waiting_there = self.levels.get(&level_id).map_or(0, Level::len);
        let limit = usize::try_from(policy.max_queue_size).unwrap_or(usize::MAX);
        if limit != 0 && waiting_there >= limit {
            return Err(QueueFull);
        }
        let arrival = self.arrivals;
        self.arrivals += 1;
        let slot = self.slab.insert(Waiting {
            key: ticket.key,
            rows: ticket.rows(),
            batch_key: ticket.batch_key,
            enqueued: now,
            level: level_id,
            lane: WaitingLane::InTime,
            previous: None,
            next: None,
        });
        let previous = self.slots.insert(ticket.key, slot);
        assert!(previous.is_none(), "{:?} is queued already", ticket.key);
        self.set_deadline(
            slot,
            arrival,
            now,
            policy.timeout_ns(ticket.timeout_ns),
            policy.timeout_action,
        );
        self.append(level_id, slot);
        Ok(())
    }

    fn set_deadline(
        &mut self,
        slot: SlotId,
        arrival: u64,
        now: Time,
        timeout_ns: u64,
        action: TimeoutAction,
    ) {
        if timeout_ns == 0 {
            return;
        }
        let Some(deadline) = now.deadline_after(timeout_ns) else { return };
        match action {
            TimeoutAction::Reject => self.rejections.insert(deadline, arrival, slot),
            TimeoutAction::Delay => self.delays.insert(deadline, arrival, slot),
        }
    }

    fn append(&mut self, level_id: u64, slot: SlotId) {
        let later_level_waits =
            self.levels.range((Excluded(level_id), Unbounded)).any(|(_, level)| level.len() > 0);
        let level = self.levels.entry(level_id).or_default();
        let joins_at_the_end = level.delayed.is_empty() && !later_level_waits;
        level.in_time.push_back(&mut self.slab, slot);
        if !joins_at_the_end {
            self.revision += 1;
        }
    }

    /// The slot of a request, if it waits.
    pub(crate) fn find(&self, key: RequestKey) -> Option<SlotId> {
        self.slots.get(&key).copied()
    }

    /// A request that waits.
    pub(crate) fn get(&self, slot: SlotId) -> &Waiting {
        self.slab.get(slot)
    }

    /// Takes a request out, wherever it waits.
    pub(crate) fn take(&mut self, slot: SlotId) -> Waiting {
        self.rejections.remove(slot);
        self.delays.remove(slot);
        self.unlink(slot);
        let waiting = self.slab.remove(slot);
        self.slots.remove(&waiting.key).expect("each slot has its key");
        let level = self.levels.get(&waiting.level).expect("its level exists");
        if level.len() == 0 && waiting.level != self.policies.default_level {
            self.levels.remove(&waiting.level);
        }
        waiting
    }

    /// Takes out a request whose time is up under REJECT, the earliest first.
    pub(crate) fn take_rejected(&mut self, now: Time) -> Option<Waiting> {
        let slot = self.rejections.pop_due(now)?;
        Some(self.take(slot))
    }

    /// Moves requests whose time is up under DELAY behind their level's others.
    pub(crate) fn move_delayed(&mut self, now: Time) {
        while let Some(slot) = self.delays.pop_due(now) {
            self.unlink(slot);
            let waiting = self.slab.get_mut(slot);
            waiting.lane = WaitingLane::Delayed;
            let since = (waiting.enqueued, waiting.key);
            let level = self.levels.get_mut(&waiting.level).expect("its level exists");
            level.delayed_since.insert(since);
            level.delayed.push_back(&mut self.slab, slot);
        }
    }

    fn unlink(&mut self, slot: SlotId) {
        self.revision += 1;
        let waiting = self.slab.get(slot);
        let (level, lane) = (waiting.level, waiting.lane);
        let since = (waiting.enqueued, waiting.key);
        let level = self.levels.get_mut(&level).expect("its level exists");
        match lane {
            WaitingLane::InTime => level.in_time.unlink(&mut self.slab, slot),
            WaitingLane::Delayed => {
                level.delayed_since.remove(&since);
                level.delayed.unlink(&mut self.slab, slot);
            }
        }
    }

    /// When the next request is to be rejected.
    pub(crate) fn next_rejection(&self) -> Option<Time> {
        self.rejections.next()
    }

    /// When the next request is to move back.
    pub(crate) fn next_delay(&self) -> Option<Time> {
        self.delays.next()
    }

    /// The request that is served first.
    pub(crate) fn first(&self) -> Option<SlotId> {
        self.levels.values().find_map(Level::first)
    }

    /// The request that is served after this one.
    pub(crate) fn after(&self, slot: SlotId) -> Option<SlotId> {
        let waiting = self.slab.get(slot);
        if waiting.next.is_some() {
            return waiting.next;
        }
        let delayed = match waiting.lane {
            WaitingLane::InTime => {
                self.levels.get(&waiting.level).and_then(|level| level.delayed.head())
            }
            WaitingLane::Delayed => None,
        };
        delayed.or_else(|| {
            self.levels
                .range((Excluded(waiting.level), Unbounded))
                .find_map(|(_, level)| level.first())
        })
    }

    /// What waits where, in the order of service.
    pub(crate) fn summaries(&self) -> impl Iterator<Item = LevelSummary> {
        self.levels.iter().filter(|(_, level)| level.len() > 0).map(|(priority, level)| {
            let delayed = level.delayed_since.first().map(|(since, _)| *since);
            let in_time = level.in_time.head().map(|head| self.slab.get(head).enqueued);
            LevelSummary {
                priority: *priority,
                waiting: level.len(),
                delayed: level.delayed.len(),
                oldest: delayed.into_iter().chain(in_time).min().unwrap_or(Time::MAX),
            }
        })
    }
}

#[cfg(test)]
mod tests;
