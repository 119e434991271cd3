//! Requests and executions, recorded while a client reads the model's traffic.
//!
//! A dispatcher has a recorder only during that time. The amount of stored data is limited.
//! `lines.rs` turns it into lines, without the lock, when they are sent to the client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use galatea_infer::{
    AdmissionTimes, CorrelationId, ExecutionSummary, FailureReason, InferenceRequest,
    RequestObserver,
};
use galatea_policy::{CloseReason, FailReason, InstanceId, RequestKey, Time};
use smallvec::SmallVec;

use super::{ClosingBatch, Observation, QueuedRequest, View};

/// The maximum number of requests kept for the recording client. The same limit applies to
/// executions, and to waiting requests that will be recorded. Records are sent ten times a second,
/// so this limit allows 300,000 requests per second. Requests beyond the limit are counted as lost.
const TRAFFIC_REQUESTS_MAX: usize = 32_768;
/// The maximum number of recorded variable dimensions per request.
const TRAFFIC_DIMS_MAX: usize = 16;

/// The variable dimensions of a model's inputs, by input name.
pub(crate) type VariableDims = Arc<[(String, Vec<usize>)]>;

/// Records requests and executions for as long as a client keeps reading.
#[derive(Debug)]
pub(in crate::dispatcher) struct Recorder {
    begin: Time,
    variable: VariableDims,
    waiting: BTreeMap<RequestKey, ArrivalRecord>,
    running: BTreeMap<InstanceId, OngoingExecution>,
    taken: TakenRecords,
    /// The number of the latest execution.
    executions: u64,
}

/// The records since the last read.
#[derive(Debug, Default)]
pub(in crate::dispatcher) struct TakenRecords {
    pub(super) requests: Vec<EndedRequest>,
    pub(super) executions: Vec<Execution>,
    pub(super) lost: u64,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(super) struct ArrivalRecord {
    pub(super) at_ns: u64,
    pub(super) rows: u32,
    pub(super) dims: SmallVec<[u32; 4]>,
    pub(super) length: u32,
    pub(super) priority: u64,
    pub(super) timeout_ns: u64,
    pub(super) deadline_ns: Option<u64>,
    pub(super) sequence: CorrelationId,
    /// The request's outcome, if it is executed.
    pub(super) end: RequestEnd,
}

/// A request that has left the scheduler.
#[derive(Debug)]
pub(super) struct EndedRequest {
    pub(super) arrived: ArrivalRecord,
    pub(super) queue_ns: u64,
    pub(super) end: EndKind,
}

#[derive(Debug)]
pub(super) enum EndKind {
    Refused(FailReason),
    Executed(Execution),
}

/// The outcome of a request, which another thread may set later.
#[derive(Clone, Debug, Default)]
pub(in crate::dispatcher) struct RequestEnd(Arc<AtomicU8>);

const SUCCEEDED: u8 = 1;
const FAILED: u8 = 2;

impl RequestEnd {
    /// An observer that sets the outcome, placed in front of the statistics.
    pub(in crate::dispatcher) fn observer(
        &self,
        inner: Arc<dyn RequestObserver>,
    ) -> Arc<dyn RequestObserver> {
        Arc::new(EndObserver { inner, end: self.clone() })
    }

    fn set(&self, end: u8) {
        self.0.store(end, Ordering::Relaxed);
    }

    /// The outcome's name, if it is known.
    pub(super) fn name(&self) -> &'static str {
        match self.0.load(Ordering::Relaxed) {
            SUCCEEDED => "ok",
            FAILED => "error",
            _ => "executed",
        }
    }
}

/// An execution.
#[derive(Copy, Clone, Debug)]
pub(super) struct Execution {
    pub(super) number: u64,
    pub(super) instance: InstanceId,
    pub(super) at_ns: u64,
    pub(super) duration_ns: u64,
    pub(super) rows: u32,
    pub(super) requests: u32,
    pub(super) length: u32,
    pub(super) busy: u32,
    pub(super) reason: CloseReason,
}

/// An execution in progress.
#[derive(Debug)]
struct OngoingExecution {
    execution: Execution,
    begin: Time,
    requests: Vec<(ArrivalRecord, u64)>,
}

impl View for Recorder {
    fn observe(&mut self, now: Time, observation: &Observation<'_>) {
        match observation {
            Observation::Queued(queued) => self.arrive(now, queued),
            Observation::Closed(closing) => self.begin(now, closing),
            Observation::Failed(key, reason) => self.fail(*key, now, *reason),
            Observation::Freed(instance) => self.end(*instance, now),
            Observation::Stepped(_) | Observation::Dropped => {}
        }
    }
}

impl Recorder {
    pub(in crate::dispatcher) fn new(begin: Time, variable: VariableDims) -> Self {
        let (waiting, running) = (BTreeMap::new(), BTreeMap::new());
        Self { begin, variable, waiting, running, taken: TakenRecords::default(), executions: 0 }
    }

    fn arrive(&mut self, now: Time, queued: &QueuedRequest<'_>) {
        if self.waiting.len() >= TRAFFIC_REQUESTS_MAX {
            self.taken.lost += 1;
            return;
        }
        let QueuedRequest { info, content, end, .. } = queued;
        let (dims, length) = self.dims(content);
        let has_deadline = info.deadline != Time::MAX;
        let arrived = ArrivalRecord {
            at_ns: self.since_begin(now),
            rows: info.batch_size.max(1),
            dims,
            length,
            priority: info.priority,
            timeout_ns: info.timeout_ns,
            deadline_ns: has_deadline.then(|| info.deadline.saturating_since(now)),
            sequence: content.correlation_id.clone(),
            end: end.cloned().unwrap_or_default(),
        };
        self.waiting.insert(info.key, arrived);
    }

    fn fail(&mut self, key: RequestKey, now: Time, reason: FailReason) {
        let Some(arrived) = self.waiting.remove(&key) else { return };
        let queue_ns = self.since_begin(now).saturating_sub(arrived.at_ns);
        self.taken.add(EndedRequest { arrived, queue_ns, end: EndKind::Refused(reason) });
    }

    fn begin(&mut self, now: Time, closing: &ClosingBatch<'_>) {
        self.executions += 1;
        let at_ns = self.since_begin(now);
        let busy = u32::try_from(self.running.len()).unwrap_or(u32::MAX).saturating_add(1);
        let mut running = OngoingExecution {
            execution: Execution {
                number: self.executions,
                instance: closing.instance,
                at_ns,
                duration_ns: 0,
                rows: closing.rows,
                requests: 0,
                length: 0,
                busy,
                reason: closing.reason,
            },
            begin: now,
            requests: Vec::new(),
        };
        closing.keys().for_each(|key| running.add(self.waiting.remove(&key), at_ns));
        self.running.insert(closing.instance, running);
    }

    fn end(&mut self, instance: InstanceId, now: Time) {
        let Some(running) = self.running.remove(&instance) else { return };
        let duration_ns = now.saturating_since(running.begin);
        let execution = Execution { duration_ns, ..running.execution };
        for (arrived, queue_ns) in running.requests {
            self.taken.add(EndedRequest { arrived, queue_ns, end: EndKind::Executed(execution) });
        }
        self.taken.add_execution(execution);
    }

    pub(in crate::dispatcher) fn take(&mut self) -> TakenRecords {
        std::mem::take(&mut self.taken)
    }

    fn since_begin(&self, now: Time) -> u64 {
        now.saturating_since(self.begin)
    }

    /// The sizes of the variable dimensions, and the number of elements per row in those inputs.
    fn dims(&self, request: &InferenceRequest) -> (SmallVec<[u32; 4]>, u32) {
        let (mut dims, mut length) = (SmallVec::new(), 0_u32);
        for (name, places) in self.variable.iter() {
            let shape = request.input(name).map_or(&[][..], |input| input.shape.dims());
            let size = |place: &usize| {
                shape.get(*place).map_or(0, |size| u32::try_from(*size).unwrap_or(u32::MAX))
            };
            let sizes: SmallVec<[u32; 4]> = places.iter().map(size).collect();
            length = length.saturating_add(sizes.iter().copied().fold(1, u32::saturating_mul));
            dims.extend(sizes);
        }
        dims.truncate(TRAFFIC_DIMS_MAX);
        (dims, length)
    }
}

impl OngoingExecution {
    /// Adds a request from the batch. If it arrived before the recording began, it is only counted.
    fn add(&mut self, arrived: Option<ArrivalRecord>, now_ns: u64) {
        self.execution.requests += 1;
        let Some(arrived) = arrived else { return };
        self.execution.length = self.execution.length.max(arrived.length);
        let queue_ns = now_ns.saturating_sub(arrived.at_ns);
        self.requests.push((arrived, queue_ns));
    }
}

impl TakenRecords {
    fn add(&mut self, ended: EndedRequest) {
        if self.requests.len() >= TRAFFIC_REQUESTS_MAX {
            self.lost += 1;
        } else {
            self.requests.push(ended);
        }
    }

    fn add_execution(&mut self, execution: Execution) {
        if self.executions.len() >= TRAFFIC_REQUESTS_MAX {
            self.lost += 1;
        } else {
            self.executions.push(execution);
        }
    }
}

/// An observer in front of the statistics that learns a request's outcome.
#[derive(Debug)]
struct EndObserver {
    inner: Arc<dyn RequestObserver>,
    end: RequestEnd,
}

impl RequestObserver for EndObserver {
    fn succeeded(&self, batch_size: u32, times: &AdmissionTimes, execution: &ExecutionSummary) {
        self.end.set(SUCCEEDED);
        self.inner.succeeded(batch_size, times, execution);
    }

    fn failed(&self, times: &AdmissionTimes, reason: FailureReason) {
        self.end.set(FAILED);
        self.inner.failed(times, reason);
    }

    fn responding(&self, times: &AdmissionTimes) {
        self.inner.responding(times);
    }
}

#[cfg(test)]
mod tests {
    use galatea_infer::InputTensor;
    use galatea_tensor::{Buffer, DataType, Shape};

    use super::*;

    #[test]
    fn the_elements_of_all_inputs_with_variable_dimensions_are_the_length() {
        let input = |name: &str, dims: &[i64]| InputTensor {
            name: name.to_owned(),
            datatype: DataType::Int8,
            shape: Shape::new(dims).unwrap(),
            data: Buffer::from_vec(Vec::new()),
        };
        let inputs = vec![input("fixed", &[2, 9]), input("a", &[2, 3]), input("b", &[2, 4, 5])];
        let request = InferenceRequest { inputs, ..InferenceRequest::default() };
        let variable = [("a", vec![1]), ("b", vec![1, 2]), ("absent", vec![1])];
        let variable = variable.map(|(name, places)| (name.to_owned(), places));
        let recorder = Recorder::new(Time(0), Arc::new(variable));
        let (dims, length) = recorder.dims(&request);
        assert_eq!((&dims[..], length), (&[3, 4, 5, 0][..], 3 + 4 * 5));
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let mut taken = TakenRecords::default();
        let execution = Execution {
            number: 1,
            instance: InstanceId(0),
            at_ns: 0,
            duration_ns: 0,
            rows: 1,
            requests: 1,
            length: 0,
            busy: 1,
            reason: CloseReason::Delay,
        };
        for _ in 0..TRAFFIC_REQUESTS_MAX + 3 {
            taken.add_execution(execution);
        }
        assert_eq!((taken.executions.len(), taken.lost), (TRAFFIC_REQUESTS_MAX, 3));
    }
}
