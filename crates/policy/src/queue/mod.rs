//! Stage two: decides the order in which requests wait, how many may wait, and for how long.
//!
//! Requests of a level wait first in, first out. Levels are served strictly in order, starting with
//! level 1. Requests whose timeouts expired under the policy DELAY are served after the others at
//! their level and before the next level.
//!
//! Any request can leave from the middle of the queue. An ordered map finds a key's slab entry
//! (O(log n)), lists link the entries (O(1)), and the heaps of deadlines track the position of each
//! entry (O(log n)).

mod deadlines;
mod list;
mod slab;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

pub(crate) use self::deadlines::{Deadlines, DenseIndex};
use self::list::QueueList;
use self::slab::{LevelList, RequestSlab};
pub(crate) use self::slab::{QueuedRequest, SlabIndex};
use crate::ids::{RequestInfo, RequestKey};
use crate::spec::{DynamicBatcherSpec, QueuePolicy, TimeoutAction};
use crate::status::{PriorityLevelStatus, QueueWaitReason};
use crate::time::Time;

/// All waiting requests of a model, by priority level.
#[derive(Clone, Debug)]
pub(crate) struct PolicyQueue {
    policies: LevelPolicies,
    slab: RequestSlab,
    indices: BTreeMap<RequestKey, SlabIndex>,
    /// Levels with waiting requests, and the default level once it has been used. The default level
    /// is kept because otherwise every request to an idle model would create and remove it.
    levels: BTreeMap<u64, PriorityLevel>,
    rejections: Deadlines<SlabIndex>,
    delays: Deadlines<SlabIndex>,
    /// The arrival counter, which breaks ties between deadlines.
    arrivals: u64,
    revision: u64,
}

#[derive(Clone, Debug, Default)]
struct PriorityLevel {
    in_time: QueueList,
    delayed: QueueList,
    /// The arrival times of the delayed requests.
    delayed_since: BTreeSet<(Time, RequestKey)>,
}

impl PriorityLevel {
    fn len(&self) -> usize {
        self.in_time.len() + self.delayed.len()
    }

    fn first(&self) -> Option<SlabIndex> {
        self.in_time.head().or(self.delayed.head())
    }
}

/// The priority levels and their policies.
#[derive(Clone, Debug)]
struct LevelPolicies {
    priority_levels: u64,
    default_level: u64,
    default_policy: QueuePolicy,
    own_policies: BTreeMap<u64, QueuePolicy>,
}

impl LevelPolicies {
    fn level_of(&self, priority: u64) -> u64 {
        if priority == 0 || priority > self.priority_levels { self.default_level } else { priority }
    }

    fn at(&self, level: u64) -> &QueuePolicy {
        self.own_policies.get(&level).unwrap_or(&self.default_policy)
    }
}

/// The error for a level that already has as many requests as its policy allows.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct QueueFull;

impl PolicyQueue {
    /// Creates a single level without limits, as used by the default scheduler.
    pub(crate) fn unlimited() -> Self {
        Self::with_policies(LevelPolicies {
            priority_levels: 0,
            default_level: 0,
            default_policy: QueuePolicy::default(),
            own_policies: BTreeMap::new(),
        })
    }

    pub(crate) fn new(spec: &DynamicBatcherSpec) -> Self {
        if spec.priority_levels == 0 {
            let default_policy = spec.default_queue_policy;
            return Self::with_policies(LevelPolicies {
                default_policy,
                ..Self::unlimited().policies
            });
        }
        assert!(
            (1..=spec.priority_levels).contains(&spec.default_priority_level),
            "the configuration was checked: its default priority level is one of its levels"
        );
        Self::with_policies(LevelPolicies {
            priority_levels: spec.priority_levels,
            default_level: spec.default_priority_level,
            default_policy: spec.default_queue_policy,
            own_policies: spec.priority_queue_policies.clone(),
        })
    }

    fn with_policies(policies: LevelPolicies) -> Self {
        PolicyQueue {
            policies,
            slab: RequestSlab::default(),
            indices: BTreeMap::new(),
            levels: BTreeMap::new(),
            rejections: Deadlines::default(),
            delays: Deadlines::default(),
            arrivals: 0,
            revision: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.indices.len()
    }

    /// Returns a counter that changes whenever the service order changes, except when a request
    /// joins at its end. A traversal of the order can continue as long as the revision is
    /// unchanged.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the level of requests with this priority.
    pub(crate) fn level_of(&self, priority: u64) -> u64 {
        self.policies.level_of(priority)
    }

    /// Adds the request to its level, unless the level is full.
    pub(crate) fn enqueue(
        &mut self,
        request: RequestInfo,
        now: Time,
    ) -> Result<SlabIndex, QueueFull> {
        let level_id = self.policies.level_of(request.priority);
        let policy = *self.policies.at(level_id);
        let waiting_there = self.levels.get(&level_id).map_or(0, PriorityLevel::len);
        let limit = usize::try_from(policy.max_queue_size).unwrap_or(usize::MAX);
        if limit != 0 && waiting_there >= limit {
            return Err(QueueFull);
        }
        let arrival = self.arrivals;
        self.arrivals += 1;
        let index = self.slab.insert(QueuedRequest {
            key: request.key,
            rows: request.rows(),
            shape_class: request.shape_class,
            enqueued: now,
            level: level_id,
            list: LevelList::InTime,
            previous: None,
            next: None,
        });
        let previous = self.indices.insert(request.key, index);
        assert!(previous.is_none(), "{:?} is queued already", request.key);
        self.set_deadline(
            index,
            arrival,
            now,
            policy.timeout_ns(request.timeout_ns),
            policy.timeout_action,
        );
        self.append(level_id, index);
        Ok(index)
    }

    fn set_deadline(
        &mut self,
        index: SlabIndex,
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
            TimeoutAction::Reject => self.rejections.insert(deadline, arrival, index),
            TimeoutAction::Delay => self.delays.insert(deadline, arrival, index),
        }
    }

    fn append(&mut self, level_id: u64, index: SlabIndex) {
        // Most models have one level.
        let has_later_levels = self.levels.last_key_value().is_some_and(|(id, _)| *id > level_id);
        let later_level_waits = has_later_levels
            && self.levels.range((Excluded(level_id), Unbounded)).any(|(_, level)| level.len() > 0);
        let level = self.levels.entry(level_id).or_default();
        let joins_at_the_end = level.delayed.is_empty() && !later_level_waits;
        level.in_time.push_back(&mut self.slab, index);
        if !joins_at_the_end {
            self.revision += 1;
        }
    }

    /// Returns the slab index of a request, if it is waiting.
    pub(crate) fn find(&self, key: RequestKey) -> Option<SlabIndex> {
        self.indices.get(&key).copied()
    }

    /// Returns the waiting request at an index.
    pub(crate) fn get(&self, index: SlabIndex) -> &QueuedRequest {
        self.slab.get(index)
    }

    /// Removes a request from its place in the order.
    pub(crate) fn take(&mut self, index: SlabIndex) -> QueuedRequest {
        self.rejections.remove(index);
        self.delays.remove(index);
        self.unlink(index);
        let waiting = self.slab.remove(index);
        self.indices.remove(&waiting.key).expect("each entry has its key");
        let level = self.levels.get(&waiting.level).expect("its level exists");
        if level.len() == 0 && waiting.level != self.policies.default_level {
            self.levels.remove(&waiting.level);
        }
        waiting
    }

    /// Returns the next request whose timeout expired under REJECT. The caller takes it.
    pub(crate) fn next_expired(&mut self, now: Time) -> Option<SlabIndex> {
        self.rejections.pop_due(now)
    }

    /// Moves requests whose timeouts expired under DELAY behind the others at their level.
    pub(crate) fn move_delayed(&mut self, now: Time) {
        while let Some(index) = self.delays.pop_due(now) {
            self.unlink(index);
            let waiting = self.slab.get_mut(index);
            waiting.list = LevelList::Delayed;
            let since = (waiting.enqueued, waiting.key);
            let level = self.levels.get_mut(&waiting.level).expect("its level exists");
            level.delayed_since.insert(since);
            level.delayed.push_back(&mut self.slab, index);
        }
    }

    fn unlink(&mut self, index: SlabIndex) {
        self.revision += 1;
        let waiting = self.slab.get(index);
        let (level, list) = (waiting.level, waiting.list);
        let since = (waiting.enqueued, waiting.key);
        let level = self.levels.get_mut(&level).expect("its level exists");
        match list {
            LevelList::InTime => level.in_time.unlink(&mut self.slab, index),
            LevelList::Delayed => {
                level.delayed_since.remove(&since);
                level.delayed.unlink(&mut self.slab, index);
            }
        }
    }

    /// Returns the time at which the next request is rejected.
    pub(crate) fn next_rejection(&self) -> Option<Time> {
        self.rejections.next()
    }

    /// Returns the time at which the next request is moved back.
    pub(crate) fn next_delay(&self) -> Option<Time> {
        self.delays.next()
    }

    /// Returns the request that is served first.
    pub(crate) fn first(&self) -> Option<SlabIndex> {
        self.levels.values().find_map(PriorityLevel::first)
    }

    /// Returns the request that is served after this one.
    pub(crate) fn next_after(&self, index: SlabIndex) -> Option<SlabIndex> {
        let waiting = self.slab.get(index);
        if waiting.next.is_some() {
            return waiting.next;
        }
        let delayed = match waiting.list {
            LevelList::InTime => {
                self.levels.get(&waiting.level).and_then(|level| level.delayed.head())
            }
            LevelList::Delayed => None,
        };
        delayed.or_else(|| {
            self.levels
                .range((Excluded(waiting.level), Unbounded))
                .find_map(|(_, level)| level.first())
        })
    }

    /// Returns true if both requests are at the same level and either both or neither were moved
    /// back, so that only their arrival orders them.
    pub(crate) fn wait_alike(&self, one: SlabIndex, other: SlabIndex) -> bool {
        let place = |index| {
            let waiting = self.slab.get(index);
            (waiting.level, waiting.list)
        };
        place(one) == place(other)
    }

    /// Returns the levels with waiting requests, in service order. All of them wait for the given
    /// reason.
    pub(crate) fn statuses(
        &self,
        waits_for: QueueWaitReason,
    ) -> impl Iterator<Item = PriorityLevelStatus> {
        self.levels.iter().filter(|(_, level)| level.len() > 0).map(move |(priority, level)| {
            let delayed = level.delayed_since.first().map(|(since, _)| *since);
            let in_time = level.in_time.head().map(|head| self.slab.get(head).enqueued);
            PriorityLevelStatus {
                priority: *priority,
                waiting: level.len(),
                delayed: level.delayed.len(),
                oldest: delayed.into_iter().chain(in_time).min().unwrap_or(Time::MAX),
                waits_for,
            }
        })
    }
}

#[cfg(test)]
mod tests;
