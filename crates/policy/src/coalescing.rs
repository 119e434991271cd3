//! Coalescing: equal requests that are in flight at the same time share one execution.
//!
//! A request that finds no execution to share leads a new one. Later equal requests follow it. Each
//! member of an execution keeps its own cancellation and deadline:
//!
//! - A member that is cancelled leaves. If it is the last member, the execution is cancelled, no
//!   request can join it any more, and the member gets the execution's result.
//! - An execution has the deadline of the member that leads it. A request follows only if its own
//!   deadline is not earlier, so an execution that is in time for its leader is in time for all.
//! - An execution that is refused because of its deadline fails only the members with that
//!   deadline. It is queued again for the others, and the most urgent of them leads it.
//!
//! Every other result of an execution, a response or an error, is the result of all its members.
//!
//! # Bounds
//!
//! There is one entry for each member without a result, so there are as many entries as open
//! requests. A step costs O(log n) in open requests, and O(1) more for each request that ends.

use std::collections::{BTreeMap, BTreeSet};

use crate::time::Time;

/// A request that shares an execution. IDs are assigned in the order of arrival.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CoalescedRequestId(pub u64);

/// An execution that equal requests share.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SharedExecutionId(pub u64);

/// The role of a request in its execution.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum CoalescedRole {
    /// The execution is new and must be queued.
    Leads,
    /// The execution was queued for an earlier request.
    Follows,
}

/// The execution that a request joined.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct JoinedExecution {
    /// The request's ID.
    pub request: CoalescedRequestId,
    /// The execution.
    pub execution: SharedExecutionId,
    /// The request's role.
    pub role: CoalescedRole,
}

/// The effect of a request's cancellation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum CoalescedCancellation {
    /// The request ends now. Others still need the execution.
    Leaves,
    /// No other request needs the execution, which must be cancelled. The request ends with it.
    CancelsExecution(SharedExecutionId),
    /// The request has already ended.
    HasEnded,
}

/// The way in which an execution ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SharedExecutionEnd {
    /// It has a result for all members.
    Result,
    /// It would have been too late for its deadline.
    TooLate,
}

/// The effect of an execution's end on its members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedExecution {
    /// The requests that end with the execution's result, in order of arrival.
    pub ended: Vec<CoalescedRequestId>,
    /// The request that leads the execution from now on: it must be queued again. `None` if the
    /// execution has no other members.
    pub restarted: Option<CoalescedRequestId>,
}

/// Decides which requests share an execution. Requests with the same key are equal.
///
/// ```
/// use galatea_policy::{CoalescedRole, RequestCoalescer, SharedExecutionEnd, Time};
///
/// let mut coalescer = RequestCoalescer::default();
/// let first = coalescer.join("cat", Time::MAX);
/// let second = coalescer.join("cat", Time::MAX);
/// assert_eq!((first.role, second.role), (CoalescedRole::Leads, CoalescedRole::Follows));
/// let end = coalescer.end(first.execution, SharedExecutionEnd::Result);
/// assert_eq!(end.ended, [first.request, second.request]);
/// assert_eq!(coalescer.join("cat", Time::MAX).role, CoalescedRole::Leads);
/// ```
#[derive(Clone, Debug)]
pub struct RequestCoalescer<K> {
    /// The execution that requests with this key may join.
    open: BTreeMap<K, SharedExecutionId>,
    executions: BTreeMap<SharedExecutionId, SharedExecution<K>>,
    /// The execution and the deadline of each request.
    requests: BTreeMap<CoalescedRequestId, (SharedExecutionId, Time)>,
    request_count: u64,
    execution_count: u64,
}

#[derive(Clone, Debug)]
struct SharedExecution<K> {
    key: K,
    /// The deadline of the member that leads.
    deadline: Time,
    /// The members, the most urgent first.
    members: BTreeSet<(Time, CoalescedRequestId)>,
    /// True if all members were cancelled.
    is_cancelled: bool,
}

impl<K> Default for RequestCoalescer<K> {
    fn default() -> Self {
        RequestCoalescer {
            open: BTreeMap::new(),
            executions: BTreeMap::new(),
            requests: BTreeMap::new(),
            request_count: 0,
            execution_count: 0,
        }
    }
}

impl<K: Clone + Ord> RequestCoalescer<K> {
    /// Assigns a request to an execution. `deadline` is [`Time::MAX`] if it has none.
    pub fn join(&mut self, key: K, deadline: Time) -> JoinedExecution {
        self.request_count += 1;
        let request = CoalescedRequestId(self.request_count);
        let open = self.open.get(&key).and_then(|id| Some((*id, self.executions.get_mut(id)?)));
        if let Some((execution, open)) = open
            && open.deadline <= deadline
        {
            open.members.insert((deadline, request));
            self.requests.insert(request, (execution, deadline));
            return JoinedExecution { request, execution, role: CoalescedRole::Follows };
        }
        self.execution_count += 1;
        let execution = SharedExecutionId(self.execution_count);
        let members = BTreeSet::from([(deadline, request)]);
        // A more urgent execution replaces the previous one as the one to join.
        self.open.insert(key.clone(), execution);
        let led = SharedExecution { key, deadline, members, is_cancelled: false };
        self.executions.insert(execution, led);
        self.requests.insert(request, (execution, deadline));
        JoinedExecution { request, execution, role: CoalescedRole::Leads }
    }

    /// Cancels a request.
    pub fn cancel(&mut self, request: CoalescedRequestId) -> CoalescedCancellation {
        let Some(&(id, deadline)) = self.requests.get(&request) else {
            return CoalescedCancellation::HasEnded;
        };
        let execution = self.executions.get_mut(&id).expect("a request has an execution");
        if execution.members.len() > 1 {
            execution.members.remove(&(deadline, request));
            self.requests.remove(&request);
            return CoalescedCancellation::Leaves;
        }
        execution.is_cancelled = true;
        self.close(id);
        CoalescedCancellation::CancelsExecution(id)
    }

    /// Ends an execution, or lets it begin again for members that have more time.
    ///
    /// # Panics
    ///
    /// Panics if the execution has already ended.
    pub fn end(&mut self, id: SharedExecutionId, end: SharedExecutionEnd) -> EndedExecution {
        let execution = self.executions.get_mut(&id).expect("an execution ends once");
        let others = match end {
            SharedExecutionEnd::TooLate if !execution.is_cancelled => {
                let last_late = (execution.deadline, CoalescedRequestId(u64::MAX));
                execution.members.split_off(&last_late)
            }
            SharedExecutionEnd::TooLate | SharedExecutionEnd::Result => BTreeSet::new(),
        };
        let late = std::mem::replace(&mut execution.members, others);
        let mut ended: Vec<_> = late.into_iter().map(|(_, request)| request).collect();
        ended.sort_unstable();
        let next = execution.members.first().copied();
        if let Some((deadline, _)) = next {
            execution.deadline = deadline;
        } else {
            self.close(id);
            self.executions.remove(&id);
        }
        for request in &ended {
            self.requests.remove(request);
        }
        EndedExecution { ended, restarted: next.map(|(_, request)| request) }
    }

    /// Returns the number of requests without a result.
    pub fn open_request_count(&self) -> usize {
        self.requests.len()
    }

    /// Lets no further request join an execution.
    fn close(&mut self, id: SharedExecutionId) {
        let Some(execution) = self.executions.get(&id) else { return };
        if self.open.get(&execution.key) == Some(&id) {
            self.open.remove(&execution.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Time = Time(20);
    const SOON: Time = Time(10);

    #[test]
    fn only_equal_requests_share_an_execution() {
        let mut coalescer = RequestCoalescer::default();
        let first = coalescer.join(1, Time::MAX);
        let other = coalescer.join(2, Time::MAX);
        let equal = coalescer.join(1, Time::MAX);
        assert_eq!(other.role, CoalescedRole::Leads);
        assert_eq!((equal.role, equal.execution), (CoalescedRole::Follows, first.execution));
        let end = coalescer.end(first.execution, SharedExecutionEnd::Result);
        assert_eq!(end.ended, [first.request, equal.request]);
        assert_eq!((end.restarted, coalescer.open_request_count()), (None, 1));
        assert_eq!(coalescer.cancel(first.request), CoalescedCancellation::HasEnded);
    }

    #[test]
    fn the_last_member_that_is_cancelled_cancels_the_execution() {
        let mut coalescer = RequestCoalescer::default();
        let leader = coalescer.join((), Time::MAX);
        let follower = coalescer.join((), Time::MAX);
        assert_eq!(coalescer.cancel(leader.request), CoalescedCancellation::Leaves);
        let id = leader.execution;
        let last = coalescer.cancel(follower.request);
        assert_eq!(last, CoalescedCancellation::CancelsExecution(id));
        let late = coalescer.join((), Time::MAX);
        assert_eq!(late.role, CoalescedRole::Leads, "the execution is being cancelled");
        let end = coalescer.end(id, SharedExecutionEnd::Result);
        assert_eq!(end.ended, [follower.request]);
        assert_eq!(coalescer.join((), Time::MAX).execution, late.execution);
    }

    #[test]
    fn a_more_urgent_request_leads_an_execution_of_its_own() {
        let mut coalescer = RequestCoalescer::default();
        let calm = coalescer.join((), LATER);
        let urgent = coalescer.join((), SOON);
        assert_eq!(urgent.role, CoalescedRole::Leads);
        assert_eq!(coalescer.join((), LATER).execution, urgent.execution);
        coalescer.end(calm.execution, SharedExecutionEnd::Result);
        assert_eq!(coalescer.join((), SOON).execution, urgent.execution);
    }

    #[test]
    fn an_execution_that_is_too_late_fails_only_requests_with_its_deadline() {
        let mut coalescer = RequestCoalescer::default();
        let leader = coalescer.join((), SOON);
        let idle = coalescer.join((), Time::MAX);
        let next = coalescer.join((), LATER);
        let id = leader.execution;
        let mut end = |request: JoinedExecution| {
            let end = coalescer.end(id, SharedExecutionEnd::TooLate);
            assert_eq!(end.ended, [request.request]);
            end.restarted
        };
        assert_eq!(end(leader), Some(next.request), "the most urgent one leads");
        assert_eq!(end(next), Some(idle.request));
        assert_eq!(end(idle), None);
        assert_eq!(coalescer.open_request_count(), 0);
    }

    #[test]
    fn a_request_with_little_time_does_not_follow_a_restarted_execution() {
        let mut coalescer = RequestCoalescer::default();
        let leader = coalescer.join((), SOON);
        coalescer.join((), LATER);
        coalescer.end(leader.execution, SharedExecutionEnd::TooLate);
        assert_eq!(coalescer.join((), LATER).execution, leader.execution);
        assert_eq!(coalescer.join((), SOON).role, CoalescedRole::Leads);
    }

    #[test]
    fn a_cancelled_execution_does_not_begin_again() {
        let mut coalescer = RequestCoalescer::default();
        let leader = coalescer.join((), SOON);
        let follower = coalescer.join((), LATER);
        coalescer.cancel(leader.request);
        coalescer.cancel(follower.request);
        let end = coalescer.end(leader.execution, SharedExecutionEnd::TooLate);
        assert_eq!((end.ended, end.restarted), (vec![follower.request], None));
    }
}
