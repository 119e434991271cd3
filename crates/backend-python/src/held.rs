//! The requests that a worker holds. Each request is answered exactly once, either by the worker
//! or, if the worker is gone, on its behalf. Each request is counted exactly once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use galatea_infer::{
    Backpressure, CancelToken, Deadline, ExecutionSummary, FailureReason, InferenceResponse,
    PendingRequest, Responder, StatisticsReporter, Status, Trace,
};
use galatea_stdx::{Condvar, Guard, Lock};

/// A response, or the error in its place.
pub(crate) type ResponseResult = Result<InferenceResponse, Status>;

/// The reply channel of a request that the worker holds.
#[derive(Debug)]
pub(crate) struct HeldRequest {
    pub(crate) responder: Responder,
    count: Arc<StatisticsEntry>,
    /// The request's identifier, which its responses repeat.
    pub(crate) id: String,
    /// The response from a sender to a request that gets only one response. It is kept until the
    /// sender marks it as final.
    provisional: Option<ResponseResult>,
    trace: Option<RequestTrace>,
    /// The trace of the request's execution, which calls during the execution belong to.
    parent: Option<Arc<Trace>>,
    deadline: Deadline,
    /// The backpressure that tells the request's sender to pause.
    flow: Backpressure,
    cancel: CancelToken,
    /// True if the sender has been told to pause.
    is_paused: bool,
}

impl HeldRequest {
    /// Ends the request with an error, because the worker is gone.
    pub(crate) fn fail(self, reason: Status) {
        self.count.fail(FailureReason::Backend);
        self.responder.complete_unrecorded(Err(reason));
    }
}

/// The request's entry in the statistics. The request is counted once, at the end of its execution
/// or the loss of its worker, whichever comes first. Different threads notice these events.
#[derive(Debug)]
pub(crate) struct StatisticsEntry {
    statistics: StatisticsReporter,
    is_done: AtomicBool,
}

impl StatisticsEntry {
    fn new(statistics: StatisticsReporter) -> Arc<Self> {
        Arc::new(Self { statistics, is_done: AtomicBool::new(false) })
    }

    fn is_first(&self) -> bool {
        !self.is_done.swap(true, Ordering::Relaxed)
    }

    /// Counts the request as executed, unless it has already been counted.
    pub(crate) fn succeed(&self, execution: impl Into<ExecutionSummary>) {
        if self.is_first() {
            self.statistics.report_success(&execution.into());
        }
    }

    /// Counts the request as failed, unless it has already been counted.
    pub(crate) fn fail(&self, reason: FailureReason) {
        if self.is_first() {
            self.statistics.report_failure(reason);
        }
    }
}

/// The trace of a request that was released before its last response. The trace ends when the value
/// is dropped.
#[derive(Debug)]
struct RequestTrace(Arc<Trace>);

impl Drop for RequestTrace {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The held requests, by key.
#[derive(Debug, Default)]
pub(crate) struct HeldRequests {
    held: Lock<HeldByKey>,
    /// Notified of each last response while a thread waits for some.
    answered: Condvar,
}

#[derive(Debug, Default)]
struct HeldByKey {
    by_key: HashMap<u64, HeldRequest>,
    /// The requests that are temporarily taken out while a sender's response is being delivered.
    passing: Vec<u64>,
    /// The number of threads that wait for last responses. A notification is a system call, so it
    /// is skipped while no thread is waiting.
    waiting: usize,
    last_key: u64,
    /// The reason why requests are no longer accepted. Set once the worker is gone.
    gone: Option<Status>,
}

/// The interval at which [`HeldRequests::wait_until_answered`] checks for disconnected clients.
const LOOK_FOR_CLIENTS: Duration = Duration::from_secs(1);

impl HeldByKey {
    /// Returns true if a client is still waiting for a response.
    fn is_awaited(&self) -> bool {
        let is_awaited = |one: &HeldRequest| !one.cancel.is_cancelled();
        self.gone.is_none() && (!self.passing.is_empty() || self.by_key.values().any(is_awaited))
    }

    /// Returns true if a request has not received its last response.
    fn is_open(&self, key: u64) -> bool {
        self.by_key.contains_key(&key) || self.passing.contains(&key)
    }
}

/// A response, or the end of the responses, from a sender in the worker.
#[derive(Debug)]
pub(crate) struct SentResponse {
    pub(crate) result: Option<ResponseResult>,
    pub(crate) is_final: bool,
    /// True if the model may send any number of responses to a request.
    pub(crate) is_decoupled: bool,
}

impl HeldRequests {
    /// Takes the reply channel out of a request and assigns a key to the request. Padding has no
    /// reply channel.
    ///
    /// # Errors
    ///
    /// The reason why the worker is gone.
    pub(crate) fn hold(
        &self,
        pending: &mut PendingRequest,
    ) -> Result<(u64, Option<Arc<StatisticsEntry>>), Status> {
        let mut held = self.held.lock("hold a request");
        if let Some(reason) = &held.gone {
            return Err(reason.clone());
        }
        held.last_key = held.last_key.wrapping_add(1);
        let key = held.last_key;
        let Some(responder) = pending.take_responder() else { return Ok((key, None)) };
        let count = StatisticsEntry::new(responder.statistics().clone());
        let request = pending.request();
        let (flow, deadline) = (request.backpressure.clone(), request.deadline);
        let cancel = request.cancel.clone();
        let (id, parent) = (request.id.clone(), pending.trace().cloned());
        let one = HeldRequest {
            responder,
            count: count.clone(),
            id,
            provisional: None,
            trace: None,
            parent,
            deadline,
            flow,
            cancel,
            is_paused: false,
        };
        held.by_key.insert(key, one);
        Ok((key, Some(count)))
    }

    /// Makes a request's trace end with its last response, unless that has already been sent.
    pub(crate) fn keep_trace(&self, key: u64, trace: Arc<Trace>) {
        let mut held = self.held.lock("keep a trace");
        match held.by_key.get_mut(&key) {
            Some(one) => one.trace = Some(RequestTrace(trace)),
            None => {
                drop(held);
                trace.end();
            }
        }
    }

    /// Takes a request back from the worker.
    pub(crate) fn take(&self, key: u64) -> Option<HeldRequest> {
        let mut held = self.held.lock("take a request back");
        let taken = held.by_key.remove(&key);
        self.tell(held);
        taken
    }

    /// Notifies the thread that waits for the last responses, if there is one.
    fn tell(&self, held: Guard<'_, HeldByKey>) {
        let is_awaited = held.waiting > 0;
        drop(held);
        if is_awaited {
            self.answered.notify_all();
        }
    }

    /// The trace for a call that is made during a request's execution.
    pub(crate) fn trace_of(&self, key: u64) -> Option<Arc<Trace>> {
        self.held.lock("find a trace").by_key.get(&key)?.parent.clone()
    }

    /// The deadline for a call that is made during this request's execution. If the request is
    /// unknown, returns the latest deadline of all requests that the worker holds, because the call
    /// serves one of them.
    pub(crate) fn deadline_of(&self, parent: Option<u64>) -> Deadline {
        let held = self.held.lock("find a deadline");
        if let Some(one) = parent.and_then(|key| held.by_key.get(&key)) {
            return one.deadline;
        }
        let all: Option<Vec<Instant>> =
            held.by_key.values().map(|one| one.deadline.instant()).collect();
        all.and_then(|all| all.into_iter().max()).map_or(Deadline::None, Deadline::At)
    }

    /// Records that a request's sender was told to pause. Returns false if the session already had
    /// this instruction, or if the request has ended.
    pub(crate) fn begin_pause(&self, key: u64) -> bool {
        let mut held = self.held.lock("pause a sender");
        held.by_key.get_mut(&key).is_some_and(|one| !std::mem::replace(&mut one.is_paused, true))
    }

    /// Records that a request's sender may continue.
    pub(crate) fn end_pause(&self, key: u64) {
        if let Some(one) = self.held.lock("resume a sender").by_key.get_mut(&key) {
            one.is_paused = false;
        }
    }

    /// A request's identifier.
    pub(crate) fn id_of(&self, key: u64) -> Option<String> {
        self.held.lock("read an identifier").by_key.get(&key).map(|one| one.id.clone())
    }

    /// Delivers a response from a sender in the worker, unless the request is unknown or has
    /// already received its last response. Returns the backpressure of a request whose sender
    /// should pause.
    pub(crate) fn respond(&self, key: u64, sent: SentResponse) -> Option<Backpressure> {
        let SentResponse { result, is_final, is_decoupled } = sent;
        // The request is taken out so that no lock is held while the reply is delivered. Only one
        // thread calls this function, so responses stay in order.
        let mut held = self.held.lock("take a request to respond");
        let mut one = held.by_key.remove(&key)?;
        held.passing.push(key);
        drop(held);
        match (result, is_final) {
            (Some(result), true) => one.responder.complete_unrecorded(result),
            (None, true) => match one.provisional {
                Some(result) => one.responder.complete_separate_end_unrecorded(result),
                None => one.responder.finish_unrecorded(),
            },
            (result, false) => {
                match result {
                    Some(result) if is_decoupled => one.responder.respond_nonfinal(result),
                    Some(result) => one.provisional = Some(result),
                    None => {}
                }
                let congested = one.flow.is_congested().then(|| one.flow.clone());
                match self.put_back(key, one) {
                    Ok(()) => return congested,
                    Err((one, reason)) => one.fail(reason),
                }
            }
        }
        let mut held = self.held.lock("a last response was passed on");
        held.passing.retain(|one| *one != key);
        self.tell(held);
        None
    }

    /// Waits until each request has received its last response, its client has disconnected, or the
    /// worker is gone. As in Triton, the model is finalized only after that.
    pub(crate) fn wait_until_answered(&self) {
        let mut held = self.held.lock("wait for responses of senders");
        held.waiting += 1;
        while held.is_awaited() {
            held = self.answered.wait_timeout(held, LOOK_FOR_CLIENTS);
        }
        held.waiting -= 1;
    }

    /// Waits until these requests have received their last responses, or the worker is gone.
    /// Returns false if the deadline passes first.
    pub(crate) fn wait_for_senders(&self, keys: &[u64], deadline: Option<Instant>) -> bool {
        let mut held = self.held.lock("wait for the last responses of requests");
        held.waiting += 1;
        let is_in_time = loop {
            if held.gone.is_some() || !keys.iter().any(|key| held.is_open(*key)) {
                break true;
            }
            held = match deadline.map(|end| end.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => break false,
                Some(left) => self.answered.wait_timeout(held, left),
                None => self.answered.wait(held),
            };
        };
        held.waiting -= 1;
        is_in_time
    }

    /// Holds a request again whose response was delivered. Returns the request, and the reason, if
    /// the worker is gone.
    fn put_back(&self, key: u64, one: HeldRequest) -> Result<(), (Box<HeldRequest>, Status)> {
        let mut held = self.held.lock("go on holding a request");
        if let Some(reason) = &held.gone {
            return Err((Box::new(one), reason.clone()));
        }
        held.by_key.insert(key, one);
        held.passing.retain(|one| *one != key);
        Ok(())
    }

    /// Records that the worker is gone: no more requests are accepted, and the held ones are
    /// returned.
    pub(crate) fn close_and_take(&self, reason: &Status) -> Vec<HeldRequest> {
        let mut held = self.held.lock("fail what the worker held");
        held.gone.get_or_insert_with(|| reason.clone());
        let left = held.by_key.drain().map(|(_, one)| one).collect();
        self.tell(held);
        left
    }
}

/// The model name and version in responses.
#[derive(Clone, Debug)]
pub(crate) struct ModelLabel {
    pub(crate) name: Arc<str>,
    pub(crate) version: i64,
}
