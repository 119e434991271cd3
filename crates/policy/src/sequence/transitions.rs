//! A sequence's transitions: it begins, waits, gets a slot, runs, closes and ends.

use crate::batch::{Batch, BatchEntry, CloseReason, SequenceStep};
use crate::event::{FailReason, SchedulerAction, SchedulerActions};
use crate::ids::{InstanceId, RequestInfo, SequenceKey, SequencePosition};
use crate::queue::DenseIndex;
use crate::sequence::requests::{Request, RequestIndex, RequestState, SequenceQueue};
use crate::sequence::{
    Placement, SLOT_GRACE_NS, Sequence, SequenceBatcher, SequenceIndex, SequenceState,
};
use crate::time::Time;

impl SequenceBatcher {
    pub(super) fn begin_sequence(&mut self, index: SequenceIndex, key: SequenceKey, now: Time) {
        if self.sequences.len() <= index.index() {
            self.sequences.resize(index.index() + 1, None);
        }
        assert!(self.find(index).is_none(), "the index of {key:?} is in use");
        let placement = Placement::Backlog(self.backlog.push(index));
        self.sequences[index.index()] = Some(Sequence {
            key,
            queue: SequenceQueue::default(),
            executing: None,
            placement,
            state: SequenceState::Open,
            arrived_at: now,
        });
        self.fill_slots(now);
    }

    /// Appends the request to its sequence.
    pub(super) fn append(
        &mut self,
        index: SequenceIndex,
        info: &RequestInfo,
        position: SequencePosition,
        now: Time,
    ) {
        let timeout_ns = Some(info.timeout_ns).filter(|timeout_ns| *timeout_ns != 0);
        let request = self.requests.insert(Request {
            key: info.key,
            shape_class: info.shape_class,
            waits_since: now,
            fails_at: timeout_ns.and_then(|timeout_ns| now.deadline_after(timeout_ns)),
            start: position.start,
            end: position.end && !self.iterative,
            sequence: Some(index),
            state: RequestState::Queued,
            previous: None,
            next: None,
        });
        let sequence = self.sequences[index.index()].as_mut().expect("the sequence is live");
        sequence.queue.push_back(&mut self.requests, request);
        sequence.arrived_at = now;
        match sequence.placement {
            Placement::Backlog(_) => {
                self.counts.queued_in_backlog += 1;
                if let Some(fails_at) = self.requests.get(request).fails_at {
                    self.backlog.fail_no_later_than(index, fails_at);
                }
            }
            Placement::Slot(_) => {
                self.counts.queued_in_slots += 1;
                if sequence.queue.len == 1 {
                    self.add_eligible(index, now);
                }
                if self.iterative || !position.end {
                    self.set_idle_end(index, now);
                }
            }
        }
    }

    /// Requeues the request ahead of the others of its sequence.
    pub(super) fn requeue(&mut self, index: SequenceIndex, request: RequestIndex, now: Time) {
        let again = self.requests.get_mut(request);
        again.state = RequestState::Queued;
        again.start = false;
        again.waits_since = now;
        let sequence = self.sequences[index.index()].as_mut().expect("the sequence is live");
        sequence.queue.push_front(&mut self.requests, request);
        sequence.arrived_at = now;
        self.counts.queued_in_slots += 1;
        self.add_eligible(index, now);
        self.set_idle_end(index, now);
    }

    /// Starts the idle time of a sequence with a slot at its latest arrival.
    fn set_idle_end(&mut self, index: SequenceIndex, now: Time) {
        let idle_ns = self.max_sequence_idle_ns;
        if idle_ns == 0 {
            return;
        }
        let least = now.saturating_add(idle_ns.min(SLOT_GRACE_NS));
        let end = self.get(index).arrived_at.saturating_add(idle_ns).max(least);
        self.idle.remove(index);
        if end != Time::MAX {
            self.arrivals += 1;
            self.idle.insert(end, self.arrivals, index);
        }
    }

    /// Makes a sequence's first request eligible if the sequence has a slot and no executing
    /// request.
    pub(super) fn add_eligible(&mut self, index: SequenceIndex, now: Time) {
        let sequence = self.get(index);
        let (Placement::Slot(slot), None) = (sequence.placement, sequence.executing) else {
            return;
        };
        if let Some(first) = sequence.queue.first {
            let lane = self.lanes.get_mut(&slot.instance).expect("a slot's instance is there");
            lane.insert(slot, first, self.requests.get(first), now);
            self.mark_dirty(slot.instance);
        }
    }

    /// Revokes the eligibility of a sequence's first request, which leaves its queue.
    pub(super) fn remove_eligible(&mut self, index: SequenceIndex) {
        let sequence = self.get(index);
        if let (Placement::Slot(slot), None, Some(first)) =
            (sequence.placement, sequence.executing, sequence.queue.first)
        {
            let lane = self.lanes.get_mut(&slot.instance).expect("a slot's instance is there");
            lane.remove(slot, self.requests.get(first));
            self.mark_dirty(slot.instance);
        }
    }

    /// Assigns free slots to the sequences that have waited longest.
    pub(super) fn fill_slots(&mut self, now: Time) {
        while let Some(index) = self.backlog.first()
            && let Some(slot) = self.slots.take_slot(index)
        {
            self.backlog.pop();
            let sequence = self.sequences[index.index()].as_mut().expect("the sequence is live");
            sequence.placement = Placement::Slot(slot);
            self.counts.queued_in_backlog -= sequence.queue.len;
            self.counts.queued_in_slots += sequence.queue.len;
            let may_idle = self.iterative || sequence.state == SequenceState::Open;
            // A sequence without requests begins in this step: its first request is about to join
            // it.
            if sequence.queue.len > 0 {
                self.add_eligible(index, now);
                if may_idle {
                    self.set_idle_end(index, now);
                }
            }
        }
    }

    pub(super) fn execute(
        &mut self,
        instance: InstanceId,
        rows: &[Option<RequestIndex>],
        reason: CloseReason,
        now: Time,
        out: &mut SchedulerActions,
    ) {
        let entries = rows.iter().map(|row| match row {
            Some(request) => BatchEntry::Step(self.start_request(*request)),
            None => BatchEntry::Padding,
        });
        let entries: Vec<BatchEntry> = entries.collect();
        let batch_size = u32::try_from(rows.len()).expect("slots are numbered by u32");
        out.push(SchedulerAction::Dispatch {
            instance,
            batch: Batch::new(entries, batch_size, reason),
        });
        for request in rows.iter().flatten() {
            let index = self.requests.get(*request).sequence.expect("it was just started");
            self.end_if_finished(index, out);
        }
        self.fill_slots(now);
    }

    /// Starts executing the request.
    pub(super) fn start_request(&mut self, index: RequestIndex) -> SequenceStep {
        let request = self.requests.get_mut(index);
        request.state = RequestState::Executing;
        let (key, start, end) = (request.key, request.start, request.end);
        let sequence = request.sequence.expect("a queued request has a sequence");
        let sequence = self.sequences[sequence.index()].as_mut().expect("the sequence is live");
        let first = sequence.queue.pop_front(&mut self.requests);
        assert_eq!(first, Some(index), "a sequence's requests run in order");
        assert!(sequence.executing.is_none(), "a sequence has one request in execution");
        sequence.executing = Some(index);
        self.counts.queued_in_slots -= 1;
        self.counts.executing += 1;
        SequenceStep { key, sequence: sequence.key, start, end }
    }

    pub(super) fn cancel_from(
        &mut self,
        request: RequestIndex,
        now: Time,
        out: &mut SchedulerActions,
    ) {
        let index = self.requests.get(request).sequence.expect("a queued request has a sequence");
        if self.get(index).queue.first == Some(request) {
            self.remove_eligible(index);
        }
        let sequence = self.sequences[index.index()].as_mut().expect("the sequence is live");
        let cut = sequence.queue.split_off(&mut self.requests, request);
        match sequence.placement {
            Placement::Backlog(_) => {
                self.counts.queued_in_backlog -= cut.len();
                self.set_failure(index);
            }
            Placement::Slot(_) => self.counts.queued_in_slots -= cut.len(),
        }
        self.fail_all(&cut, FailReason::Cancelled, out);
        self.close_sequence(index, out);
        self.end_if_finished(index, out);
        self.fill_slots(now);
    }

    /// Removes all requests of a sequence in the backlog.
    pub(super) fn take_queue(&mut self, index: SequenceIndex) -> Vec<RequestIndex> {
        let sequence = self.sequences[index.index()].as_mut().expect("the sequence is live");
        let first = sequence.queue.first.expect("a sequence in the backlog has requests");
        let queued = sequence.queue.split_off(&mut self.requests, first);
        self.counts.queued_in_backlog -= queued.len();
        queued
    }

    pub(super) fn fail_all(
        &mut self,
        requests: &[RequestIndex],
        reason: FailReason,
        out: &mut SchedulerActions,
    ) {
        for index in requests {
            let key = self.requests.remove(*index).key;
            out.push(SchedulerAction::Fail { key, reason });
        }
    }

    /// Closes the sequence so that no more requests can join it.
    pub(super) fn close_sequence(&mut self, index: SequenceIndex, out: &mut SchedulerActions) {
        let sequence = self.get_mut(index);
        if sequence.state == SequenceState::Open {
            sequence.state = SequenceState::Closed;
            let key = sequence.key;
            if !self.iterative {
                self.idle.remove(index);
            }
            out.push(SchedulerAction::SequenceClosed(key));
        }
    }

    /// Ends a sequence that is closed and has no queued requests, unless its executing request may
    /// be rescheduled.
    pub(super) fn end_if_finished(&mut self, index: SequenceIndex, out: &mut SchedulerActions) {
        let sequence = self.get(index);
        let is_closed = sequence.state != SequenceState::Open;
        let may_be_rescheduled = self.iterative && sequence.executing.is_some();
        if is_closed && sequence.queue.len == 0 && !may_be_rescheduled {
            self.end_sequence(index, out);
        }
    }

    /// Ends the sequence and frees its slot.
    pub(super) fn end_sequence(&mut self, index: SequenceIndex, out: &mut SchedulerActions) {
        let sequence = self.sequences[index.index()].take().expect("the sequence is live");
        assert_eq!(sequence.queue.len, 0, "{:?} ends with nothing queued", sequence.key);
        self.idle.remove(index);
        if let Some(executing) = sequence.executing {
            self.requests.get_mut(executing).sequence = None;
        }
        match sequence.placement {
            Placement::Backlog(number) => self.backlog.remove(number, index),
            Placement::Slot(slot) => self.slots.free(slot),
        }
        out.push(SchedulerAction::SequenceEnded(sequence.key));
    }

    /// Sets a backlogged sequence to fail at the earliest deadline of its requests.
    pub(super) fn set_failure(&mut self, index: SequenceIndex) {
        let queue = self.get(index).queue;
        let queued = queue.iter(&self.requests);
        let deadline = queued.filter_map(|one| self.requests.get(one).fails_at).min();
        self.backlog.set_failure(index, deadline);
    }
}
