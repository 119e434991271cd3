//! Coalescing: equal requests that are in flight at the same time share one execution.
//!
//! [`RequestCoalescer`] decides which requests share an execution; this module drives it. The
//! *members* of an execution wait here, while a request without a client, the *shared request*, is
//! queued and executed in their place. Its inputs, outputs and parameters are those of the member
//! that leads the execution. It has its own cancellation token, which only its last member cancels.
//!
//! Two requests are equal if a cryptographic hash says so, the key of the response cache. It covers
//! the contents of the inputs, which admission has copied out of the clients' memory. No client can
//! construct a request that gets the response to a different one.
//!
//! **One lock.** The lock is held for a single decision. Requests are queued, cancelled and
//! answered without it.
//!
//! **Restarts.** An execution that would be too late for its leader begins again for the members with
//! later deadlines. Queueing the new request may fail the same way, on the same thread. One thread
//! at a time queues restarted requests in a loop, so the stack doesn't grow with their number.

mod key;
mod record;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Instant;

use galatea_infer::{
    AdmissionTimes, CancelToken, PendingRequest, Reply, RequestObserver, ResponseSender,
    ResponseSink, Status,
};
use galatea_policy::{
    ArrivalNumber, CoalescedCancellation, CoalescedRequestId, CoalescedRole, FailReason,
    RequestCoalescer, SharedExecutionId, Time,
};
use galatea_stdx::Lock;

pub(crate) use self::key::{CoalescingKey, coalescing_key_of};
use self::record::ExecutionRecord;
use self::shared::{QueuedExecution, SharedResult, shared_request};
use crate::dispatcher::{AdmittedRequest, Dispatcher};
use crate::reshape::OutputReshape;
use crate::statistics::Statistics;

/// Executes equal requests to one model version once.
pub(crate) struct Coalescing {
    state: Lock<CoalescingState>,
    dispatcher: Weak<Dispatcher>,
    output_reshape: Option<Arc<OutputReshape>>,
    statistics: Arc<Statistics>,
    use_of_deadlines: UseOfDeadlines,
    /// The zero point of the coalescer's time.
    epoch: Instant,
    this: Weak<Self>,
}

/// The way a model uses the deadlines of its requests.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum UseOfDeadlines {
    /// Requests are refused if they would be too late, here or in an ensemble's steps.
    Refuses,
    /// Deadlines don't matter.
    Ignores,
}

#[derive(Default)]
struct CoalescingState {
    coalescer: RequestCoalescer<CoalescingKey>,
    members: BTreeMap<CoalescedRequestId, PendingRequest>,
    executions: BTreeMap<SharedExecutionId, QueuedExecution>,
    /// The restarted requests that are not queued yet.
    restarts: VecDeque<AdmittedRequest>,
    /// True while a thread queues restarted requests.
    is_restarting: bool,
}

impl Coalescing {
    pub(crate) fn new(
        dispatcher: &Arc<Dispatcher>,
        output_reshape: Option<Arc<OutputReshape>>,
        statistics: Arc<Statistics>,
        use_of_deadlines: UseOfDeadlines,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            state: Lock::default(),
            dispatcher: Arc::downgrade(dispatcher),
            output_reshape,
            statistics,
            use_of_deadlines,
            epoch: Instant::now(),
            this: this.clone(),
        })
    }

    /// Lets a request lead an execution or follow an equal one. `layer` wraps the sender of a new
    /// execution's result.
    pub(crate) fn submit(
        &self,
        key: CoalescingKey,
        admitted: AdmittedRequest,
        layer: impl FnOnce(ResponseSender) -> ResponseSender,
    ) {
        let AdmittedRequest { request: member, shape_class, length, .. } = admitted;
        let cancel = member.request().cancel.clone();
        let deadline = self.deadline_of(&member);
        let mut state = self.state.lock("share an execution");
        let joined = state.coalescer.join(key, deadline);
        let led = match joined.role {
            CoalescedRole::Follows => None,
            CoalescedRole::Leads => {
                let execution = QueuedExecution::new(&member, shape_class, length);
                Some(self.begin(&mut state, joined.execution, execution, &member, layer))
            }
        };
        state.members.insert(joined.request, member);
        drop(state);
        self.watch_cancellation(joined.request, &cancel);
        match led {
            None => self.statistics.coalesced(),
            Some(led) => self.queue(led),
        }
    }

    /// Adds an execution, and creates the request that is queued for it.
    fn begin(
        &self,
        state: &mut CoalescingState,
        id: SharedExecutionId,
        execution: QueuedExecution,
        leader: &PendingRequest,
        layer: impl FnOnce(ResponseSender) -> ResponseSender,
    ) -> AdmittedRequest {
        let now = Instant::now();
        let arrival = leader.admission_times().map_or(now, |times| times.arrival);
        let record = Arc::new(ExecutionRecord::default());
        let sink = SharedSink {
            coalescing: self.this.upgrade(),
            id,
            record: record.clone(),
            has_ended: false,
        };
        let mut sender = layer(ResponseSender::new(Box::new(sink)));
        if let Some(reshape) = &self.output_reshape {
            sender = reshape.wrap(sender);
        }
        let request = shared_request(leader.request(), &execution.cancel, self.use_of_deadlines);
        let times = AdmissionTimes { arrival, queued: now };
        let observer: Arc<dyn RequestObserver> = record;
        let request = PendingRequest::new(request, sender, leader.batch_size(), times, observer);
        let (shape_class, length) = (execution.shape_class.clone(), execution.length);
        state.executions.insert(id, execution);
        let reply_number = ArrivalNumber::default();
        AdmittedRequest { request, shape_class, length, reply_number }
    }

    fn watch_cancellation(&self, request: CoalescedRequestId, cancel: &CancelToken) {
        let this = self.this.clone();
        cancel.on_cancel(move || {
            if let Some(coalescing) = this.upgrade() {
                coalescing.cancel(request);
            }
        });
    }

    fn cancel(&self, request: CoalescedRequestId) {
        let mut state = self.state.lock("cancel a request");
        match state.coalescer.cancel(request) {
            CoalescedCancellation::HasEnded => {}
            CoalescedCancellation::Leaves => {
                let left = state.members.remove(&request);
                drop(state);
                if let (Some(left), Some(dispatcher)) = (left, self.dispatcher.upgrade()) {
                    dispatcher.fail(left, FailReason::Cancelled);
                }
            }
            CoalescedCancellation::CancelsExecution(id) => {
                let cancel = state.executions.get(&id).map(|execution| execution.cancel.clone());
                drop(state);
                if let Some(cancel) = cancel {
                    cancel.cancel();
                }
            }
        }
    }

    /// Ends an execution, and replies to its members. The execution may begin again for some.
    fn end(&self, id: SharedExecutionId, result: &SharedResult, record: &ExecutionRecord) {
        let mut state = self.state.lock("end an execution");
        let Some(execution) = state.executions.remove(&id) else { return };
        let ended = state.coalescer.end(id, result.end());
        let requests = ended.ended.iter();
        let members: Vec<PendingRequest> =
            requests.filter_map(|request| state.members.remove(request)).collect();
        if let Some(next) = ended.restarted
            && let Some(leader) = state.members.remove(&next)
        {
            let restarted = execution.restarted(&leader);
            let admitted = self.begin(&mut state, id, restarted, &leader, |sender| sender);
            state.members.insert(next, leader);
            state.restarts.push_back(admitted);
        }
        let queues_restarts = !state.restarts.is_empty() && !state.is_restarting;
        state.is_restarting |= queues_restarts;
        drop(state);
        for member in members {
            result.reply_to(member, &execution, record);
        }
        if queues_restarts {
            self.queue_restarts();
        }
    }

    fn queue_restarts(&self) {
        loop {
            let mut state = self.state.lock("restart an execution");
            let Some(next) = state.restarts.pop_front() else {
                state.is_restarting = false;
                return;
            };
            drop(state);
            self.queue(next);
        }
    }

    /// Queues a request. Without a dispatcher, it is dropped, which replies to its members.
    fn queue(&self, admitted: AdmittedRequest) {
        if let Some(dispatcher) = self.dispatcher.upgrade() {
            dispatcher.enqueue(admitted);
        }
    }

    fn deadline_of(&self, request: &PendingRequest) -> Time {
        let deadline = match self.use_of_deadlines {
            UseOfDeadlines::Refuses => request.request().deadline.instant(),
            UseOfDeadlines::Ignores => None,
        };
        deadline.map_or(Time::MAX, |at| {
            let since = at.saturating_duration_since(self.epoch).as_nanos();
            Time(u64::try_from(since).unwrap_or(u64::MAX))
        })
    }
}

/// Receives the result of a shared execution.
struct SharedSink {
    coalescing: Option<Arc<Coalescing>>,
    id: SharedExecutionId,
    record: Arc<ExecutionRecord>,
    /// True after the first reply. Others are ignored, because the model is not decoupled.
    has_ended: bool,
}

impl SharedSink {
    fn end(&mut self, result: &SharedResult) {
        if !std::mem::replace(&mut self.has_ended, true)
            && let Some(coalescing) = &self.coalescing
        {
            coalescing.end(self.id, result, &self.record);
        }
    }
}

impl ResponseSink for SharedSink {
    fn deliver(&mut self, reply: Reply) {
        self.end(&SharedResult::Reply(reply));
    }

    fn refuse(&mut self, status: Status) {
        self.end(&SharedResult::Refusal(status));
    }
}
