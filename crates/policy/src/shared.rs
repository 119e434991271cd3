//! Requests that belong to no sequence: one queue, from which any free instance
//! takes its batch.

use crate::batch::{Batch, BatchEntry};
use crate::event::{Action, Actions, FailReason};
use crate::former::{DynamicFormer, Outlook, Verdict};
use crate::ids::{RequestInfo, RequestKey};
use crate::lanes::Lanes;
use crate::queue::{LevelSummary, PolicyQueue, QueueFull};
use crate::status::{QueueStatus, QueueWaitReason, SchedulerStatus};
use crate::strategy::BatchStrategy;
use crate::time::Time;

#[derive(Clone, Debug)]
pub(crate) struct SharedQueue<S> {
    queue: PolicyQueue,
    former: DynamicFormer<S>,
    hold: Hold,
    /// What the former said at the end of the last step; none if there was
    /// nothing to ask it, because no lane was free or the test hook holds. A batch
    /// that could close waits for a permit.
    last_verdict: Option<Verdict>,
}

/// Held until enough requests have been queued, then free for ever.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Hold {
    Free,
    /// For so many requests more.
    Held(u32),
}

impl<S: BatchStrategy> SharedQueue<S> {
    pub(crate) fn new(
        queue: PolicyQueue,
        former: DynamicFormer<S>,
        hold_until_queued: u32,
    ) -> Self {
        let hold = if hold_until_queued == 0 { Hold::Free } else { Hold::Held(hold_until_queued) };
        SharedQueue { queue, former, hold, last_verdict: None }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        let rejection = self.queue.next_rejection();
        // Without a free lane the order of the queue is nobody's business yet.
        let Some(Verdict::Wait { until, .. }) = self.last_verdict else { return rejection };
        [rejection, self.queue.next_delay(), until].into_iter().flatten().min()
    }

    /// Comes before the event, so that whoever's time is up neither runs nor
    /// keeps a newcomer out.
    pub(crate) fn apply_timeouts(&mut self, now: Time, out: &mut Actions) {
        while let Some(waiting) = self.queue.take_rejected(now) {
            out.push(Action::Fail { key: waiting.key, reason: FailReason::TimeoutExpired });
        }
        self.queue.move_delayed(now);
    }

    pub(crate) fn enqueue(&mut self, ticket: RequestInfo, now: Time, out: &mut Actions) {
        let key = ticket.key;
        match self.queue.enqueue(ticket, now) {
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

    pub(crate) fn cancel(&mut self, key: RequestKey, out: &mut Actions) {
        if let Some(slot) = self.queue.find(key) {
            self.queue.take(slot);
            out.push(Action::Fail { key, reason: FailReason::Cancelled });
        }
    }

    /// Nothing more comes, so what is held would never run.
    pub(crate) fn drain(&mut self) {
        self.hold = Hold::Free;
    }

    /// Closes batches while lanes are free: the latest moment there is.
    pub(crate) fn dispatch(
        &mut self,
        now: Time,
        outlook: Outlook,
        lanes: &mut Lanes,
        out: &mut Actions,
    ) {
        while self.hold == Hold::Free && lanes.has_free() {
            let verdict = self.former.judge(&self.queue, now, outlook);
            self.last_verdict = Some(verdict);
            match verdict {
                Verdict::Nothing | Verdict::Wait { .. } => {
                    lanes.withdraw_all(out);
                    return;
                }
                Verdict::Close { requests, rows } => {
                    let Some(instance) = lanes.take(self.queue.len(), now, out) else { return };
                    let batch = self.take_from_front(requests, rows);
                    out.push(Action::Dispatch { instance, batch });
                }
            }
        }
        self.last_verdict = None;
    }

    fn take_from_front(&mut self, requests: usize, rows: u32) -> Batch {
        self.former.close();
        let mut entries = Vec::with_capacity(requests);
        for _ in 0..requests {
            let first = self.queue.first().expect("the former counted queued requests");
            entries.push(BatchEntry::Request(self.queue.take(first).key));
        }
        Batch::new(entries, rows)
    }

    /// What waits where, and why.
    pub(crate) fn status(&self) -> Vec<QueueStatus> {
        let waits_for = self.wait_reason();
        let describe = |level: LevelSummary| QueueStatus {
            priority: level.priority,
            waiting: level.waiting,
            delayed: level.delayed,
            oldest: level.oldest,
            waits_for,
        };
        self.queue.summaries().take(SchedulerStatus::ROWS_MAX).map(describe).collect()
    }

    /// What queued requests wait for: always the same, as a batch that waits to
    /// grow comprises all of them.
    fn wait_reason(&self) -> QueueWaitReason {
        match (self.hold, self.last_verdict) {
            (Hold::Held(missing), _) => QueueWaitReason::Hold { missing },
            (Hold::Free, Some(Verdict::Wait { until, rows, next_preferred })) => {
                QueueWaitReason::BatchDelay {
                    pending_batch_size: rows,
                    next_preferred_batch_size: next_preferred,
                    until,
                }
            }
            (Hold::Free, Some(Verdict::Close { .. })) => QueueWaitReason::Permit,
            (Hold::Free, Some(Verdict::Nothing) | None) => QueueWaitReason::Lane,
        }
    }
}
