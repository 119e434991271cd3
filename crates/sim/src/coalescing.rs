//! Random equal requests: they arrive, are cancelled, and their executions end. The decisions are
//! compared with those of a naive model, which searches a list.

use std::fmt::Write;

use galatea_policy::{
    CoalescedCancellation, CoalescedRequestId, CoalescedRole, EndedExecution, RequestCoalescer,
    SharedExecutionEnd, SharedExecutionId, Time,
};

use crate::check::{Check, ensure};
use crate::random::Random;

/// A request without a result.
#[derive(Clone, Debug)]
struct OpenMember {
    request: CoalescedRequestId,
    deadline: Time,
    execution: SharedExecutionId,
}

/// An execution that has not ended.
#[derive(Clone, Debug)]
struct NaiveExecution {
    id: SharedExecutionId,
    key: u64,
    deadline: Time,
    /// True until a newer execution of the key replaces it, or until it is cancelled.
    is_open: bool,
    is_cancelled: bool,
}

#[derive(Default)]
struct Coalescing {
    coalescer: RequestCoalescer<u64>,
    members: Vec<OpenMember>,
    /// The executions in the order of their creation.
    executions: Vec<NaiveExecution>,
    /// The operations so far, for error messages.
    log: String,
}

/// Runs the random equal requests of a seed.
pub(crate) fn check_coalescing(seed: u64) -> Check {
    let mut random = Random::new(seed);
    let mut coalescing = Coalescing::default();
    for _ in 0..40 {
        coalescing.act(&mut random).map_err(|message| coalescing.describe(&message))?;
    }
    coalescing.finish().map_err(|message| coalescing.describe(&message))
}

impl Coalescing {
    fn describe(&self, message: &str) -> String {
        format!("equal requests: {message}, after{}", self.log)
    }

    fn act(&mut self, random: &mut Random) -> Check {
        match random.between(1, 10) {
            1..=5 => {
                let deadline = random.pick(&[Time(10), Time(20), Time(30), Time::MAX, Time::MAX]);
                self.join(random.between(1, 2), deadline)
            }
            6..=7 => self.cancel(random),
            8 => self.end(random, SharedExecutionEnd::TooLate),
            _ => self.end(random, SharedExecutionEnd::Result),
        }
    }

    fn join(&mut self, key: u64, deadline: Time) -> Check {
        let _ = write!(self.log, " join({key}, {})", deadline.0);
        let joined = self.coalescer.join(key, deadline);
        let is_known = self.members.iter().any(|member| member.request >= joined.request);
        ensure!(!is_known, "{:?} is no new request", joined.request);
        self.check_place(joined.execution, joined.role, key, deadline)?;
        self.add(joined.request, joined.execution, deadline);
        self.check_count()
    }

    /// Checks the execution to which a request was assigned, and adds it if it is new.
    fn check_place(
        &mut self,
        id: SharedExecutionId,
        role: CoalescedRole,
        key: u64,
        deadline: Time,
    ) -> Check {
        let expected = self.open(key).filter(|open| open.deadline <= deadline);
        match (role, expected) {
            (CoalescedRole::Follows, Some(open)) => {
                ensure!(open.id == id, "a request follows {id:?} instead of {:?}", open.id);
            }
            (CoalescedRole::Leads, None) => {
                let is_known = self.executions.iter().any(|execution| execution.id == id);
                ensure!(!is_known, "{id:?} is no new execution");
                let same_key = |execution: &&mut NaiveExecution| execution.key == key;
                let replaced = self.executions.iter_mut().filter(same_key);
                replaced.for_each(|execution| execution.is_open = false);
                let (is_open, is_cancelled) = (true, false);
                self.executions.push(NaiveExecution { id, key, deadline, is_open, is_cancelled });
            }
            (role, expected) => {
                return Err(format!("a request {role:?}, although {expected:?} can be joined"));
            }
        }
        Ok(())
    }

    /// The execution that equal requests may join.
    fn open(&self, key: u64) -> Option<&NaiveExecution> {
        self.executions.iter().find(|execution| execution.key == key && execution.is_open)
    }

    fn add(&mut self, request: CoalescedRequestId, execution: SharedExecutionId, deadline: Time) {
        self.members.push(OpenMember { request, deadline, execution });
    }

    fn cancel(&mut self, random: &mut Random) -> Check {
        let Some(index) = random_index(random, self.members.len()) else { return Ok(()) };
        let OpenMember { request, execution, .. } = self.members[index];
        let _ = write!(self.log, " cancel({})", request.0);
        let count = self.members.iter().filter(|member| member.execution == execution).count();
        let expected = if count > 1 {
            self.members.remove(index);
            CoalescedCancellation::Leaves
        } else {
            let mut executions = self.executions.iter_mut();
            let found = executions.find(|one| one.id == execution).expect("it has not ended");
            (found.is_open, found.is_cancelled) = (false, true);
            CoalescedCancellation::CancelsExecution(execution)
        };
        let found = self.coalescer.cancel(request);
        ensure!(found == expected, "{found:?} instead of {expected:?}");
        self.check_count()
    }

    fn end(&mut self, random: &mut Random, end: SharedExecutionEnd) -> Check {
        match random_index(random, self.executions.len()) {
            Some(index) => self.end_at(index, end),
            None => Ok(()),
        }
    }

    fn end_at(&mut self, index: usize, end: SharedExecutionEnd) -> Check {
        let execution = self.executions[index].clone();
        let _ = write!(self.log, " end({}, {end:?})", execution.id.0);
        let EndedExecution { ended, restarted } = self.coalescer.end(execution.id, end);
        let is_member = |member: &OpenMember| member.execution == execution.id;
        let fails = |member: &OpenMember| {
            let is_late = member.deadline <= execution.deadline;
            is_member(member)
                && (end == SharedExecutionEnd::Result || execution.is_cancelled || is_late)
        };
        let failing = self.members.iter().filter(|member| fails(member));
        let expected: Vec<CoalescedRequestId> = failing.map(|member| member.request).collect();
        ensure!(ended == expected, "{ended:?} end instead of {expected:?}");
        self.members.retain(|member| !fails(member));
        let others = self.members.iter().filter(|member| is_member(member));
        let next = others.min_by_key(|member| (member.deadline, member.request));
        let leader = next.map(|member| member.request);
        ensure!(restarted == leader, "{restarted:?} leads instead of {leader:?}");
        match next {
            Some(next) => self.executions[index].deadline = next.deadline,
            None => drop(self.executions.remove(index)),
        }
        for ended in ended {
            let cancelled = self.coalescer.cancel(ended);
            let is_right = cancelled == CoalescedCancellation::HasEnded;
            ensure!(is_right, "{ended:?} can be cancelled after its end");
        }
        self.check_count()
    }

    fn check_count(&self) -> Check {
        let (count, expected) = (self.coalescer.open_request_count(), self.members.len());
        ensure!(count == expected, "{count} requests are open, not {expected}");
        Ok(())
    }

    /// Ends all executions, after which no request may remain.
    fn finish(&mut self) -> Check {
        while !self.executions.is_empty() {
            self.end_at(0, SharedExecutionEnd::Result)?;
        }
        ensure!(self.members.is_empty(), "{:?} got no result", self.members);
        Ok(())
    }
}

fn random_index(random: &mut Random, count: usize) -> Option<usize> {
    let last = u64::try_from(count.checked_sub(1)?).expect("few of them");
    Some(usize::try_from(random.between(0, last)).expect("an index"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_requests_share_executions_as_the_rules_say() {
        for seed in 0..3_000 {
            check_coalescing(seed).unwrap_or_else(|message| panic!("seed {seed}: {message}"));
        }
    }
}
