//! A naive sequence batcher: one list of sequences in order of their beginnings,
//! asked and walked anew at each question. It shares no code with the real one.
//!
//! Where several things happen at once it has an order of its own, which is the
//! real one's too: timeouts before idle ends, each by deadline; instances by id.

mod batches;

use galatea_policy::{
    BatchKey, Event, FailReason, InstanceId, Release, RequestInfo, RequestKey, SchedulingMode,
    SequenceKey, SequenceSpec, SequenceStrategy, Time,
};

use crate::deed::Deed;
use crate::naive::{NaiveFormer, sum};
use crate::setup::Setup;

#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    seats: u32,
    strategy: Strategy,
    idle_ns: u64,
    iterative: bool,
    /// Requests in seats and in the backlog that the test hook waits for.
    hold: Option<(usize, usize)>,
    members: Vec<Member>,
    lanes: Vec<Lane>,
    /// In execution, and their sequences, which may be gone.
    executing: Vec<(RequestKey, Option<SequenceKey>)>,
    draining: bool,
    drained: bool,
    now: Time,
    ticks: u64,
}

#[derive(Clone, Debug)]
enum Strategy {
    Direct { delay_ns: u64, minimum_ready: usize },
    Oldest(NaiveFormer),
}

/// A live sequence.
#[derive(Clone, Debug)]
struct Member {
    key: SequenceKey,
    /// Slot and instance; none in the backlog.
    seat: Option<(u32, InstanceId)>,
    waiting: Vec<Pending>,
    running: Option<Pending>,
    open: bool,
    cancelled: bool,
    /// Since when it has something to run and may, and after whom.
    ready: Option<(u64, Time)>,
    /// Since when it has nothing to do, and after whom.
    resting: Option<(u64, Time)>,
}

#[derive(Clone, Debug)]
struct Pending {
    key: RequestKey,
    batch_key: BatchKey,
    since: Time,
    fails_at: Option<Time>,
    start: bool,
    end: bool,
}

#[derive(Clone, Debug)]
struct Lane {
    id: InstanceId,
    busy: bool,
    leaving: bool,
}

impl Oracle {
    pub(crate) fn new(setup: &Setup) -> Self {
        let spec = &setup.spec;
        let SchedulingMode::Sequence(SequenceSpec { strategy, max_sequence_idle_ns, iterative }) =
            &spec.mode
        else {
            unreachable!("the stateless schedulers have an oracle of their own")
        };
        let rows = spec.max_batch_size.max(1);
        let (seats, strategy) = match strategy {
            SequenceStrategy::Direct { max_queue_delay_ns, minimum_ready_slots } => {
                let delay_ns = *max_queue_delay_ns;
                let minimum_ready = whole(*minimum_ready_slots);
                (rows, Strategy::Direct { delay_ns, minimum_ready })
            }
            SequenceStrategy::Oldest {
                max_candidate_sequences,
                preferred_batch_sizes,
                max_queue_delay_ns,
            } => {
                let seats =
                    if *max_candidate_sequences > 0 { *max_candidate_sequences } else { rows };
                let former =
                    NaiveFormer::new(rows, preferred_batch_sizes, *max_queue_delay_ns, None);
                (seats, Strategy::Oldest(former))
            }
        };
        Oracle {
            seats,
            strategy,
            idle_ns: *max_sequence_idle_ns,
            iterative: *iterative,
            hold: Some((whole(spec.hold_until_queued), whole(spec.hold_until_backlogged))),
            members: Vec::new(),
            lanes: Vec::new(),
            executing: Vec::new(),
            draining: false,
            drained: false,
            now: Time(0),
            ticks: 0,
        }
    }

    pub(crate) fn step(&mut self, now: Time, event: Event) -> Vec<Deed> {
        self.now = self.now.max(now);
        let mut deeds = Vec::new();
        self.time_out(&mut deeds);
        self.seat();
        match event {
            Event::Enqueue(ticket) => self.enqueue(ticket, &mut deeds),
            Event::Cancel(key) => self.cancel(key, &mut deeds),
            Event::Released { key, release } => self.release(key, release, &mut deeds),
            Event::LaneFree(id) => self.lane(id).busy = false,
            Event::AddInstance(id) => {
                self.lanes.push(Lane { id, busy: false, leaving: false });
                self.lanes.sort_by_key(|lane| lane.id);
            }
            Event::RemoveInstance(id) => self.lane(id).leaving = true,
            Event::Drain => self.drain(&mut deeds),
            Event::PermitGranted(_) | Event::PermitDelayed(_) | Event::Tick => {}
        }
        self.seat();
        self.run(&mut deeds);
        self.finish_drain(&mut deeds);
        self.remove_instances(&mut deeds);
        deeds
    }

    fn lane(&mut self, id: InstanceId) -> &mut Lane {
        self.lanes.iter_mut().find(|lane| lane.id == id).expect("it was added")
    }

    fn member(&self, key: SequenceKey) -> Option<usize> {
        self.members.iter().position(|member| member.key == key)
    }

    fn time_out(&mut self, deeds: &mut Vec<Deed>) {
        let expires = |member: &Member| member.waiting.iter().filter_map(|one| one.fails_at).min();
        let backlog = self.members.iter().filter(|member| member.seat.is_none());
        let mut failing: Vec<(Time, u64, SequenceKey)> = backlog
            .filter_map(|member| Some((expires(member)?, member.key.0 & 0xffff_ffff, member.key)))
            .filter(|(expiry, ..)| *expiry <= self.now)
            .collect();
        failing.sort();
        for (.., key) in failing {
            let index = self.member(key).expect("it waits");
            self.fail_from(index, 0, FailReason::SequenceTimeoutExpired, deeds);
        }
        let ends = |member: &Member| Some((self.idle_at(member)?, member.resting?.0, member.key));
        let ends = self.members.iter().filter_map(ends);
        let mut idle: Vec<_> = ends.filter(|(at, ..)| *at <= self.now).collect();
        idle.sort();
        for (.., key) in idle {
            let index = self.member(key).expect("it rests");
            self.close(index, deeds);
            self.end_if_over(key, deeds);
        }
    }

    /// When the member counts as idle, if it rests.
    fn idle_at(&self, member: &Member) -> Option<Time> {
        let (_, since) = member.resting?;
        if self.idle_ns == 0 { None } else { sum(since, self.idle_ns) }
    }

    fn enqueue(&mut self, ticket: RequestInfo, deeds: &mut Vec<Deed>) {
        let Some(mark) = ticket.sequence else {
            deeds.push(Deed::Fail(ticket.key, FailReason::NoSequence));
            return;
        };
        let known = self.member(mark.sequence);
        let refusal = if self.draining {
            Some(FailReason::Draining)
        } else {
            (known.is_none() && !mark.start).then_some(FailReason::MissingStart)
        };
        if let Some(reason) = refusal {
            deeds.push(Deed::Fail(ticket.key, reason));
            if known.is_none() {
                deeds.extend([Deed::Closed(mark.sequence), Deed::Ended(mark.sequence)]);
            }
            return;
        }
        let index = known.unwrap_or_else(|| self.begin(mark.sequence));
        let fails_at = if ticket.timeout_ns == 0 { None } else { sum(self.now, ticket.timeout_ns) };
        self.members[index].waiting.push(Pending {
            key: ticket.key,
            batch_key: ticket.batch_key,
            since: self.now,
            fails_at,
            start: mark.start,
            end: mark.end,
        });
        if mark.end || self.iterative {
            self.close(index, deeds);
        }
    }

    fn begin(&mut self, key: SequenceKey) -> usize {
        self.members.push(Member {
            key,
            seat: None,
            waiting: Vec::new(),
            running: None,
            open: true,
            cancelled: false,
            ready: None,
            resting: None,
        });
        self.members.len() - 1
    }

    fn cancel(&mut self, key: RequestKey, deeds: &mut Vec<Deed>) {
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            if self.iterative && member.running.as_ref().is_some_and(|running| running.key == key) {
                member.cancelled = true;
            }
            if let Some(first) = member.waiting.iter().position(|waiting| waiting.key == key) {
                self.fail_from(index, first, FailReason::Cancelled, deeds);
                return;
            }
        }
    }

    /// The requests from there on fail, and none joins those that are left.
    fn fail_from(&mut self, index: usize, first: usize, reason: FailReason, deeds: &mut Vec<Deed>) {
        let key = self.members[index].key;
        let failing = self.members[index].waiting.split_off(first);
        deeds.extend(failing.iter().map(|pending| Deed::Fail(pending.key, reason)));
        self.close(index, deeds);
        self.end_if_over(key, deeds);
    }

    fn release(&mut self, key: RequestKey, release: Release, deeds: &mut Vec<Deed>) {
        let place = self.executing.iter().position(|(running, _)| *running == key);
        let (_, sequence) = self.executing.swap_remove(place.expect("it is in execution"));
        let Some(index) = sequence.and_then(|sequence| self.member(sequence)) else { return };
        let member = &mut self.members[index];
        let ran = member.running.take().expect("it is in execution");
        if release == Release::Reschedule && member.cancelled {
            deeds.push(Deed::Fail(key, FailReason::Cancelled));
        } else if release == Release::Reschedule {
            member.waiting.insert(0, Pending { since: self.now, start: false, ..ran });
        }
        let sequence = member.key;
        self.end_if_over(sequence, deeds);
    }

    fn close(&mut self, index: usize, deeds: &mut Vec<Deed>) {
        let member = &mut self.members[index];
        if member.open {
            member.open = false;
            deeds.push(Deed::Closed(member.key));
        }
    }

    fn end_if_over(&mut self, key: SequenceKey, deeds: &mut Vec<Deed>) {
        let index = self.member(key).expect("it is live");
        let member = &self.members[index];
        let comes_back = self.iterative && member.running.is_some();
        if member.open || !member.waiting.is_empty() || comes_back {
            return;
        }
        self.members.remove(index);
        for (_, sequence) in &mut self.executing {
            // A later sequence may get the same key.
            sequence.take_if(|sequence| *sequence == key);
        }
        deeds.push(Deed::Ended(key));
    }

    /// Gives free seats to the backlog, and notes who is ready and who rests.
    fn seat(&mut self) {
        while let Some(index) = self.members.iter().position(|member| member.seat.is_none())
            && let Some(seat) = self.best_seat()
        {
            self.members[index].seat = Some(seat);
        }
        for member in &mut self.members {
            let idle = member.seat.is_some() && member.running.is_none();
            let mut note = |holds: bool, place: &mut Option<(u64, Time)>| {
                if !holds {
                    *place = None;
                } else if place.is_none() {
                    self.ticks += 1;
                    *place = Some((self.ticks, self.now));
                }
            };
            note(idle && !member.waiting.is_empty(), &mut member.ready);
            note(idle && member.waiting.is_empty(), &mut member.resting);
        }
    }

    fn best_seat(&self) -> Option<(u32, InstanceId)> {
        let is_free =
            |seat: &(u32, InstanceId)| self.members.iter().all(|one| one.seat != Some(*seat));
        let staying = self.lanes.iter().filter(|lane| !lane.leaving);
        let slots = staying.flat_map(|lane| (0..self.seats).map(|slot| (slot, lane.id)));
        slots.filter(is_free).min()
    }

    fn is_quiet(&self) -> bool {
        self.members.iter().all(|member| member.waiting.is_empty())
            && self.executing.is_empty()
            && self.lanes.iter().all(|lane| !lane.busy)
    }

    fn finish_drain(&mut self, deeds: &mut Vec<Deed>) {
        if !self.draining || self.drained || !self.is_quiet() {
            return;
        }
        self.drained = true;
        deeds.push(Deed::Drained);
    }

    /// Nobody goes on.
    fn drain(&mut self, deeds: &mut Vec<Deed>) {
        self.draining = true;
        self.hold = None;
        let mut open: Vec<SequenceKey> =
            self.members.iter().filter(|member| member.open).map(|member| member.key).collect();
        open.sort_by_key(|key| key.0 & 0xffff_ffff);
        for key in open {
            let index = self.member(key).expect("it is live");
            self.close(index, deeds);
            self.end_if_over(key, deeds);
        }
    }

    fn remove_instances(&mut self, deeds: &mut Vec<Deed>) {
        let taken: Vec<InstanceId> =
            self.members.iter().filter_map(|member| Some(member.seat?.1)).collect();
        let goes = |lane: &Lane| lane.leaving && !lane.busy && !taken.contains(&lane.id);
        deeds
            .extend(self.lanes.iter().filter(|lane| goes(lane)).map(|lane| Deed::Removed(lane.id)));
        self.lanes.retain(|lane| !goes(lane));
    }

    /// When something can happen by itself.
    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        let backlog = self.members.iter().filter(|member| member.seat.is_none());
        let failures = backlog.flat_map(|member| &member.waiting).filter_map(|one| one.fails_at);
        let idle = self.members.iter().filter_map(|member| self.idle_at(member));
        failures.chain(idle).chain(self.batches_go_at()).min()
    }
}

fn whole(number: u32) -> usize {
    usize::try_from(number).expect("32 bits or more")
}
