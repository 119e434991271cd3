//! The scheduler report: why queues, slots and instances wait.
//!
//! Field names are for programs and don't change; `words` are for people. Sequences are identified
//! by the server's own numbers, because a client that knew another client's correlation ID could
//! take part in its sequence.

use std::collections::BTreeMap;

use galatea_control::{DurationStatistic, InferenceStatistics};
use galatea_explain::{LatencyCauseFinder, WaitReason, WaitTimes};
use galatea_policy::{
    InstanceId, InstanceStatus, PriorityLevelStatus, QueueWaitReason, SchedulerStatus,
    SequenceBatcherStatus, SequenceSlotStatus, SequenceSlotWaitReason, Time, WaitingSequenceStatus,
};
use serde_json::{Map, Value, json};

use super::ReportSubject;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::observation::SchedulingCounts;

/// The scheduler's status, and the names of its instances.
struct SchedulerReport {
    now: Time,
    status: SchedulerStatus,
    /// The names of instances.
    instances: BTreeMap<InstanceId, String>,
    counts: SchedulingCounts,
    /// The wait times of requests, by reason; `None` with a sequence batcher.
    waits: Option<WaitTimes>,
}

/// Writes the report.
pub(super) fn report(dispatcher: &Dispatcher, subject: &ReportSubject<'_>) -> String {
    let state = dispatcher.lock("report the status");
    let (status, waits) = (state.scheduler.status(), state.views.waits(dispatcher.now()));
    let counts = state.views.counts().clone();
    drop(state);
    let (now, instances) = (dispatcher.now(), dispatcher.instance_names());
    SchedulerReport { now, status, instances, counts, waits }.to_json(subject)
}

impl SchedulerReport {
    fn to_json(&self, subject: &ReportSubject<'_>) -> String {
        let ReportSubject { name, version, executed, main_cause_text } = subject;
        let status = &self.status;
        let document = json!({
            "name": name,
            "version": version.to_string(),
            "draining": status.draining,
            "instances": status.lanes.iter().map(|lane| self.lane(lane)).collect::<Vec<_>>(),
            "queues": status.queues.iter().map(|queue| self.queue(queue)).collect::<Vec<_>>(),
            "sequences": status.sequences.as_ref().map(|sequences| self.sequences(sequences)),
            "totals": self.totals(executed, *main_cause_text),
        });
        document.to_string()
    }

    /// The totals over all requests since loading.
    fn totals(
        &self,
        executed: &InferenceStatistics,
        main_cause_text: Option<LatencyCauseFinder>,
    ) -> Value {
        let us = |statistic: &DurationStatistic| statistic.ns / 1_000;
        let stages = [&executed.compute_input, &executed.compute_infer, &executed.compute_output];
        let execution_ns = stages.iter().map(|stage| stage.ns).fold(0, u64::saturating_add);
        let cause = self.waits.as_ref().zip(main_cause_text);
        let cause = cause.map(|(waits, main_cause_text)| main_cause_text(waits, execution_ns));
        let waits = self.waits.as_ref().map(|waits| {
            let waited = WaitReason::ALL.into_iter().filter(|wait| waits.time_of(*wait) > 0);
            waited
                .map(|wait| (String::from(wait.name()), Value::from(waits.time_of(wait) / 1_000)))
                .collect::<Map<_, _>>()
        });
        let closed = self.counts.closed_batches().into_iter().zip(self.counts.closed_requests());
        let closed: Map<_, _> = closed
            .filter(|((_, batches), _)| *batches > 0)
            .map(|((reason, batches), (_, requests))| {
                (String::from(reason), json!({ "batches": batches, "requests": requests }))
            })
            .collect();
        let unexecuted = self.counts.unexecuted().into_iter().filter(|(_, count)| *count > 0);
        let unexecuted: Map<_, _> =
            unexecuted.map(|(reason, count)| (String::from(reason), Value::from(count))).collect();
        json!({
            "cause": cause.map(|cause| json!({ "name": cause.name, "words": cause.words })),
            "stages_us": {
                "queue": us(&executed.queue),
                "input": us(&executed.compute_input),
                "compute": us(&executed.compute_infer),
                "output": us(&executed.compute_output),
            },
            "waits_us": waits,
            "closed": closed,
            "not_executed": unexecuted,
        })
    }

    fn queue(&self, queue: &PriorityLevelStatus) -> Value {
        json!({
            "priority": queue.priority,
            "waiting": queue.waiting,
            "delayed": queue.delayed,
            "oldest_age_us": self.since_us(queue.oldest),
            "waits_for": self.queue_wait(queue.waits_for),
        })
    }

    fn queue_wait(&self, reason: QueueWaitReason) -> Value {
        match reason {
            QueueWaitReason::Lane => json!({
                "reason": "instance",
                "words": "an instance that is free",
            }),
            QueueWaitReason::BatchDelay {
                pending_batch_size,
                next_preferred_batch_size,
                until,
            } => {
                json!({
                    "reason": "batch_delay",
                    "words": "more requests for the batch, or the end of its delay",
                    "pending_batch_size": pending_batch_size,
                    "next_preferred_batch_size": next_preferred_batch_size,
                    "remaining_us": self.until_us(until),
                })
            }
            QueueWaitReason::Permit => json!({
                "reason": "rate_limiter",
                "words": "the rate limiter: resources that others use",
            }),
            QueueWaitReason::Hold { missing } => json!({
                "reason": "hold",
                "words": "further requests, because TRITONSERVER_DELAY_SCHEDULER is set",
                "missing_requests": missing,
            }),
        }
    }

    fn lane(&self, lane: &InstanceStatus) -> Value {
        let (instance, state, since) = match *lane {
            InstanceStatus::Free { instance, since } => (instance, "free", since),
            InstanceStatus::Busy { instance, since } => (instance, "busy", since),
            InstanceStatus::Removing { instance, busy_since } => (instance, "leaving", busy_since),
        };
        json!({
            "name": self.instance(instance),
            "state": state,
            "state_age_us": self.since_us(since),
        })
    }

    fn sequences(&self, sequences: &SequenceBatcherStatus) -> Value {
        json!({
            "taken_slots": sequences.taken_slots,
            "free_slots": sequences.free_slots,
            "backlog_length": sequences.backlogged,
            "slots": sequences.slots.iter().map(|slot| self.slot(slot)).collect::<Vec<_>>(),
            "backlog":
                sequences.backlog.iter().map(|waiting| self.backlog(waiting)).collect::<Vec<_>>(),
        })
    }

    fn slot(&self, slot: &SequenceSlotStatus) -> Value {
        json!({
            "instance": self.instance(slot.instance),
            "slot": slot.slot,
            "sequence": slot.sequence.0,
            "waiting": slot.waiting,
            "waits_for": self.slot_wait(slot.waits_for),
        })
    }

    fn slot_wait(&self, wait: SequenceSlotWaitReason) -> Value {
        match wait {
            SequenceSlotWaitReason::Request { idle_at } => json!({
                "reason": "request",
                "words": "its next request, or the end of the time that it may be idle",
                "remaining_us": self.until_us(idle_at),
            }),
            SequenceSlotWaitReason::Execution => json!({
                "reason": "execution",
                "words": "the end of its request's execution",
            }),
            SequenceSlotWaitReason::Lane => json!({
                "reason": "instance",
                "words": "its instance to be free",
            }),
            SequenceSlotWaitReason::BatchDelay { until } => json!({
                "reason": "batch_delay",
                "words": "more requests for the batch, or the end of its delay",
                "remaining_us": self.until_us(until),
            }),
            SequenceSlotWaitReason::Permit => json!({
                "reason": "rate_limiter",
                "words": "the rate limiter: resources that others use",
            }),
            SequenceSlotWaitReason::Hold => json!({
                "reason": "hold",
                "words": "further requests, because TRITONSERVER_DELAY_SCHEDULER or \
                          TRITONSERVER_BACKLOG_DELAY_SCHEDULER is set",
            }),
        }
    }

    fn backlog(&self, waiting: &WaitingSequenceStatus) -> Value {
        json!({
            "sequence": waiting.sequence.0,
            "waiting": waiting.waiting,
            "waits_for": {
                "reason": "slot",
                "words": "a slot, which is free when another sequence ends",
                "remaining_us": self.until_us(waiting.fails_at),
            },
        })
    }

    fn instance(&self, instance: InstanceId) -> &str {
        self.instances.get(&instance).map_or("", String::as_str)
    }

    fn since_us(&self, time: Time) -> u64 {
        self.now.saturating_since(time) / 1_000
    }

    fn until_us(&self, time: Option<Time>) -> Option<u64> {
        time.map(|time| time.saturating_since(self.now) / 1_000)
    }
}
