//! The machine: events and time in, actions out.

use crate::batch::{Batch, BatchEntry};
use crate::event::{Action, Actions, Event, FailReason};
use crate::former::{DynamicFormer, Former, Outlook, Verdict};
use crate::ids::{InstanceId, RequestKey, Ticket};
use crate::lanes::{Departure, Lanes};
use crate::queue::{PolicyQueue, QueueFull};
use crate::sequencer::Sequencer;
use crate::spec::{SchedulingMode, SchedulingSpec};
use crate::status::{QueueStatus, Status, WaitReason};
use crate::time::Time;

/// Decides for one model version what runs when, where and together.
#[derive(Clone, Debug)]
pub struct Scheduler {
    sequencer: Sequencer,
    queue: PolicyQueue,
    former: Former,
    lanes: Lanes,
    life: Life,
    hold: Hold,
    max_batch_size: u32,
    now: Time,
    /// What the former said at the end of the last step; none if there was
    /// nothing to ask it, because no lane was free or the test hook holds.
    last_verdict: Option<Verdict>,
}

/// Open → Draining → Drained, never back.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Life {
    Open,
    Draining,
    Drained,
}

/// Held until enough requests have been queued, then free for ever.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Hold {
    Free,
    /// For so many requests more.
    Held(u32),
}

impl Scheduler {
    /// A scheduler without instances; requests wait until one is added.
    pub fn new(spec: SchedulingSpec) -> Self {
        let (queue, former) = match &spec.mode {
            SchedulingMode::Default => (PolicyQueue::unlimited(), DynamicFormer::one_by_one()),
            SchedulingMode::Dynamic(dynamic) => {
                (PolicyQueue::new(dynamic), DynamicFormer::new(spec.max_batch_size, dynamic))
            }
            SchedulingMode::Sequence(_) => unreachable!("the configuration refuses it still"),
        };
        Scheduler {
            sequencer: Sequencer::None,
            queue,
            former: Former::Dynamic(former),
            lanes: Lanes::default(),
            life: Life::Open,
            hold: if spec.hold_until_queued == 0 {
                Hold::Free
            } else {
                Hold::Held(spec.hold_until_queued)
            },
            max_batch_size: spec.max_batch_size,
            now: Time::default(),
            last_verdict: None,
        }
    }

    /// Takes an event in and says what to do. Never fails, never blocks.
    ///
    /// A `now` before an earlier step's counts as that step's time: drivers read
    /// the clock before they take their lock, so steps may come out of order.
    ///
    /// # Panics
    ///
    /// If the driver breaks the rules of the events: a key queued twice, an
    /// instance added twice, freed while free, or unknown.
    pub fn step(&mut self, now: Time, event: Event, out: &mut Actions) {
        self.now = self.now.max(now);
        self.apply_timeouts(out);
        match event {
            Event::Enqueue(ticket) => self.enqueue(ticket, out),
            Event::Cancel(key) => self.cancel(key, out),
            Event::Released { .. } => {}
            Event::LaneFree(id) => {
                let departure = self.lanes.release(id, self.now);
                report_departure(departure, id, out);
            }
            Event::AddInstance(id) => self.lanes.add(id, self.now),
            Event::RemoveInstance(id) => {
                let departure = self.lanes.remove(id);
                report_departure(departure, id, out);
            }
            Event::Drain => self.drain(),
            Event::Tick => {}
        }
        self.dispatch(out);
        self.report_drained(out);
    }

    /// When to step next if nothing happens before: always after the last step's
    /// time, and only if that step would have an effect.
    pub fn next_wakeup(&self) -> Option<Time> {
        let rejection = self.queue.next_rejection();
        // Without a free lane the order of the queue is nobody's business yet.
        let Some(Verdict::Wait { until, .. }) = self.last_verdict else { return rejection };
        [rejection, self.queue.next_delay(), until].into_iter().flatten().min()
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// What waits, and why. Not for the hot path.
    pub fn status(&self) -> Status {
        let waits_for = self.wait_reason();
        let describe = |level: crate::queue::LevelSummary| QueueStatus {
            priority: level.priority,
            waiting: level.waiting,
            delayed: level.delayed,
            oldest: level.oldest,
            waits_for,
        };
        Status {
            queues: self.queue.summaries().map(describe).collect(),
            lanes: self.lanes.status(),
            sequences: None,
            draining: self.life != Life::Open,
        }
    }

    /// What queued requests wait for: always the same, as a batch that waits to
    /// grow comprises all of them.
    fn wait_reason(&self) -> WaitReason {
        match (self.hold, self.last_verdict) {
            (Hold::Held(missing), _) => WaitReason::Hold { missing },
            (Hold::Free, Some(Verdict::Wait { until, rows, next_preferred })) => {
                WaitReason::BatchDelay {
                    pending_batch_size: rows,
                    next_preferred_batch_size: next_preferred,
                    until,
                }
            }
            (Hold::Free, Some(Verdict::Nothing | Verdict::Close { .. }) | None) => WaitReason::Lane,
        }
    }

    /// Comes before the event, so that whoever's time is up neither runs nor
    /// keeps a newcomer out.
    fn apply_timeouts(&mut self, out: &mut Actions) {
        while let Some(waiting) = self.queue.take_rejected(self.now) {
            out.push(Action::Fail { key: waiting.key, reason: FailReason::TimeoutExpired });
        }
        self.queue.move_delayed(self.now);
    }

    fn enqueue(&mut self, ticket: Ticket, out: &mut Actions) {
        debug_assert!(
            self.max_batch_size == 0 || ticket.batch_size <= self.max_batch_size,
            "admission refuses requests above the maximum batch size"
        );
        if self.life != Life::Open {
            out.push(Action::Fail { key: ticket.key, reason: FailReason::Draining });
            return;
        }
        let key = ticket.key;
        match self.queue.enqueue(self.sequencer.admit(ticket), self.now) {
            Ok(()) => self.count_towards_hold(),
            Err(QueueFull) => out.push(Action::Fail { key, reason: FailReason::QueueFull }),
        }
    }

    fn count_towards_hold(&mut self) {
        match self.hold {
            Hold::Free => {}
            Hold::Held(missing) if missing <= 1 => self.hold = Hold::Free,
            Hold::Held(missing) => self.hold = Hold::Held(missing - 1),
        }
    }

    fn cancel(&mut self, key: RequestKey, out: &mut Actions) {
        if let Some(slot) = self.queue.find(key) {
            self.queue.take(slot);
            out.push(Action::Fail { key, reason: FailReason::Cancelled });
        }
    }

    fn drain(&mut self) {
        if self.life == Life::Open {
            self.life = Life::Draining;
        }
        // Nothing more comes, so what is held would never run.
        self.hold = Hold::Free;
    }

    /// Closes batches while lanes are free: the latest moment there is.
    fn dispatch(&mut self, out: &mut Actions) {
        let outlook = if self.life == Life::Open { Outlook::Open } else { Outlook::Draining };
        while self.hold == Hold::Free && self.lanes.has_free() {
            let verdict = self.former.judge(&self.queue, self.now, outlook);
            self.last_verdict = Some(verdict);
            match verdict {
                Verdict::Nothing | Verdict::Wait { .. } => return,
                Verdict::Close { requests, rows } => {
                    let batch = self.take_from_front(requests, rows);
                    let instance = self.lanes.take(self.now);
                    out.push(Action::Dispatch { instance, batch });
                }
            }
        }
        self.last_verdict = None;
    }

    fn take_from_front(&mut self, requests: usize, rows: u32) -> Batch {
        let mut entries = Vec::with_capacity(requests);
        for _ in 0..requests {
            let first = self.queue.first().expect("the former counted queued requests");
            entries.push(BatchEntry::Request(self.queue.take(first).key));
        }
        Batch::new(entries, rows)
    }

    fn report_drained(&mut self, out: &mut Actions) {
        if self.life == Life::Draining && self.queue.is_empty() && self.lanes.all_free() {
            self.life = Life::Drained;
            out.push(Action::Drained);
        }
    }
}

fn report_departure(departure: Departure, id: InstanceId, out: &mut Actions) {
    match departure {
        Departure::Gone => out.push(Action::InstanceRemoved(id)),
        Departure::Stays => {}
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
