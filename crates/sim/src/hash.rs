//! A hash of a run.

use galatea_policy::{BatchEntry, FailReason, RequestRelease, SchedulerEvent, SequencePosition};

use crate::decision::SchedulerDecision;
use crate::random::mix;

/// A hash of all numbers added to it, in order.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TraceHash(pub(crate) u64);

impl TraceHash {
    pub(crate) fn number(&mut self, number: u64) {
        self.0 = mix(self.0.rotate_left(5) ^ number.wrapping_add(0x9E37_79B9_7F4A_7C15));
    }

    fn pair(&mut self, kind: u64, number: u64) {
        self.number(kind);
        self.number(number);
    }

    fn flags(&mut self, one: bool, other: bool) {
        self.number(u64::from(one) + 2 * u64::from(other));
    }

    pub(crate) fn event(&mut self, now: u64, event: &SchedulerEvent) {
        self.number(now);
        match event {
            SchedulerEvent::Enqueue(info) => {
                let small = [info.batch_size, info.shape_class.0].map(u64::from);
                for number in [1, info.key.0, small[0], small[1], info.priority, info.timeout_ns] {
                    self.number(number);
                }
                if let Some(SequencePosition { sequence, start, end }) = info.sequence {
                    self.number(sequence.0);
                    self.flags(start, end);
                }
            }
            SchedulerEvent::Cancel(key) => self.pair(2, key.0),
            SchedulerEvent::LaneFree(instance) => self.pair(3, u64::from(instance.0)),
            SchedulerEvent::AddInstance(instance) => self.pair(4, u64::from(instance.0)),
            SchedulerEvent::RemoveInstance(instance) => self.pair(5, u64::from(instance.0)),
            SchedulerEvent::Drain => self.number(6),
            SchedulerEvent::Tick => self.number(7),
            SchedulerEvent::Released { key, release: RequestRelease::Done } => self.pair(8, key.0),
            SchedulerEvent::Released { key, release: RequestRelease::Reschedule } => {
                self.pair(9, key.0)
            }
            SchedulerEvent::PermitGranted(instance) => self.pair(10, u64::from(instance.0)),
            SchedulerEvent::PermitDelayed(instance) => self.pair(17, u64::from(instance.0)),
        }
    }

    pub(crate) fn decision(&mut self, decision: &SchedulerDecision) {
        match decision {
            SchedulerDecision::Execute { instance, entries, rows, .. } => {
                self.pair(11, u64::from(instance.0));
                self.number(u64::from(*rows));
                entries.iter().for_each(|entry| self.entry(entry));
            }
            SchedulerDecision::Fail(key, reason) => {
                self.pair(12, key.0);
                self.number(match reason {
                    FailReason::QueueFull => 1,
                    FailReason::TimeoutExpired => 2,
                    FailReason::Cancelled => 3,
                    FailReason::Draining => 4,
                    FailReason::NoSequence => 5,
                    FailReason::MissingStart => 6,
                    FailReason::SequenceTimeoutExpired => 7,
                    FailReason::TooLate { .. } => 8,
                    FailReason::RescheduledTooLate => 9,
                });
            }
            SchedulerDecision::InstanceRemoved(instance) => self.pair(13, u64::from(instance.0)),
            SchedulerDecision::Drained => self.number(14),
            SchedulerDecision::SequenceClosed(sequence) => self.pair(15, sequence.0),
            SchedulerDecision::SequenceEnded(sequence) => self.pair(16, sequence.0),
        }
    }

    fn entry(&mut self, entry: &BatchEntry) {
        match entry {
            BatchEntry::Request(key) => self.number(key.0),
            BatchEntry::Step(step) => {
                self.pair(step.key.0, step.sequence.0);
                self.flags(step.start, step.end);
            }
            BatchEntry::Padding => self.number(u64::MAX),
        }
    }
}
