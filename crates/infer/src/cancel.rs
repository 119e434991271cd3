//! Request cancellation: the flag, its hooks, and the protocol that all participants follow.
//!
//! A client may disconnect at any moment, and its request may be anywhere. One rule makes this
//! safe: a cancellation never ends a request. It only makes the request's owner end it earlier. A
//! cancelled request therefore gets one final reply, is counted and releases its memory like any
//! other, and no step below depends on a cancellation arriving in time.
//!
//! # The steps
//!
//! 1. **A token for each request.** The door creates a [`CancelToken`] before it calls
//!    [`InferenceService::infer`](crate::InferenceService::infer). `http` keeps it in a
//!    `CancelOnDrop` of the exchange or of its `EventStream`, `grpc` in `CallState::Executing` or
//!    in the stream's `ReorderBuffer`, `capi` in the request's `Ownership`, `python` in its
//!    `Request`. An ensemble step (`SentCall`) and a call by a Python model (`Worker::begin_call`)
//!    have their own tokens.
//! 2. **The client disconnects.** `http` drops the future of the exchange when `ClientWatch` or
//!    hyper sees the connection end, and with it `CancelOnDrop`. `grpc` cancels when a call is
//!    reset (`drop_reset_calls`, `Stream::pull`), when a stream fails, when a call's `grpc-timeout`
//!    expires (`expire_calls`), and when the connection ends (`Calls` is dropped). Programs call
//!    `TRITONSERVER_InferenceRequestCancel` or `cancel()`, and still get the final response.
//! 3. **Flag, then hooks.** [`CancelToken::cancel`] sets the flag and takes out the hooks under one
//!    lock, then runs them without the lock, on the cancelling thread. A hook does not block. There
//!    are four hooks: the queue's (`Dispatcher::enqueue`), an ensemble's (`Run::start`), a worker's
//!    (`Worker::watch_cancellation`), and that of requests which share an execution
//!    (`Coalescing::submit`). All other code reads the flag. A shared execution has its own token:
//!    `Coalescing::cancel` ends a request at once while others need its execution, and cancels the
//!    execution for the last one.
//! 4. **A queued request leaves the queue.** The hook calls `Dispatcher::cancel`, which steps the
//!    scheduler with `Event::Cancel`. A waiting request becomes `Action::Fail`. If the request
//!    belongs to a sequence, all requests waiting behind it fail too, and the sequence closes
//!    (`SequenceBatcher::cancel`). The dispatcher removes the request from the slab, withdraws it
//!    from the reply order, and, outside the lock, fails it with `Request cancelled`. Timeouts set
//!    no flag: the scheduler itself finds requests that have waited too long in a queue or a
//!    backlog, or that will miss their deadline (`FailReason::{TimeoutExpired,
//!    SequenceTimeoutExpired, TooLate}`), and ends them with the same `Action::Fail`.
//! 5. **An executing batch is notified, not stopped.** A closed batch keeps its requests. ONNX
//!    models check the flag before the batch (`OnnxInstance::execute`), compiled backends call
//!    `TRITONBACKEND_RequestIsCancelled`, and a worker gets the frame `CANCELLED` for
//!    `is_cancelled()`. An iterative request is not executed again (`RequestState::Cancelled`). A
//!    decoupled model that waits for a slow client resumes
//!    ([`Backpressure::wait_until_relieved`](crate::Backpressure::wait_until_relieved); in a
//!    worker, when it gets its frame); whether to stop is up to the model.
//! 6. **A long run is terminated if all clients have disconnected.** `LaneWatch` checks an
//!    execution on a lane's thread every 0.1 s, unless the execution is certainly short, or
//!    contains a request that can't be cancelled or that belongs to a sequence, whose state it
//!    changes. If the flags of all requests are set, it calls `ExecutionTerminator::terminate`, and
//!    the requests fail with `request cancelled during its execution`. Only ONNX models have an
//!    `ExecutionTerminator`.
//! 7. **An ensemble fails at once and ends later.** `EnsembleRun::cancel` replies, starts no
//!    further step, and cancels its calls: a call that waits at its gate is withdrawn, and a call
//!    that was sent continues at step 3. The run ends after its last call. The calls of a Python
//!    model continue until the model cancels them or its worker exits.
//! 8. **The owner ends the request.** [`PendingRequest`](crate::PendingRequest) counts it and
//!    replies, in this order. A request that step 4 removed from the queue, or step 6 from a run,
//!    counts as [`FailureReason::Canceled`](crate::FailureReason::Canceled). An execution that runs
//!    to its end is counted as if the client were still connected. (As in Triton, an ensemble
//!    request's failure counts twice: `fail_twice`.) Dropping the [`Responder`](crate::Responder)
//!    drops the remaining hooks.
//! 9. **Memory is released with the values.** The tensors and their charges are dropped with the
//!    request, and a door's charge (`RequestCharge`) with the sink, after the final reply. Until
//!    then, the memory is in use, even if no client is waiting. Dropping the last reference to a
//!    `BorrowedRequest` calls the C program's release callback.
//!
//! # The races
//!
//! - **With queueing.** The hook is added after the step that queues the request, if the request is
//!   still queued. A token that is already cancelled runs the hook at once.
//! - **With the close of a batch.** Cancelling and closing are both steps under the dispatcher's
//!   lock. If the hook comes second, it finds no such key among the queued requests, and the
//!   execution continues.
//! - **With the end of the request.** A hook may run, or be added, after the request has ended. The
//!   hook has only a weak reference and a key. Request keys carry a generation, and worker keys
//!   count up, so a late hook never affects a later request. A run that has ended drops the event,
//!   and a worker remembers a bounded number of unknown keys.
//! - **With the reply.** A request moves by value, and the code that owns it replies. A reply to a
//!   disconnected client finds no receiver (a closed channel in `http`, a removed `CallKey` in
//!   `grpc`) and is dropped with its charge.
//! - **With a second cancellation.** The hooks have already been removed, so the second call does
//!   nothing. It may return while the first cancellation still runs the hooks: after `cancel`, only
//!   the flag is guaranteed to be set.
//! - **With another use of the request.** A C program may submit a request again from its release
//!   callback. `Ownership::hand_over` replaces the token under its lock, so a cancellation applies
//!   to either the old use, which is over, or the new one.
//! - **Between a check and a termination.** A flag is never cleared: disconnected clients do not
//!   come back. `LaneWatch` terminates under the lock that the lane's thread takes after each
//!   execution, where it resets the instance. The next execution is therefore never terminated. If
//!   a run ends before it notices the termination, it replies with its result.
//! - **Between an ensemble and its steps.** One thread at a time drives a run, in event order. A
//!   step's response after the cancellation is ignored; a call that its gate admits while it is
//!   being withdrawn (`Withdrawal::AlreadyAdmitted`) ends when that event arrives, and is not sent.
//! - **With the second iteration.** The scheduler notes the cancellation of an executing iterative
//!   request in the step that would otherwise ignore it, and checks for it on release. The request
//!   fails only once, whichever comes first: step 4 fails a request that is queued again, and step
//!   5 fails one that is released.
//! - **With an unload.** The hooks don't keep a version loaded. If the dispatcher no longer exists,
//!   neither do its requests.

use std::sync::Arc;

use galatea_stdx::Lock;
use galatea_stdx::sync::atomic::{AtomicBool, Ordering};
use smallvec::SmallVec;

type Hook = Box<dyn FnOnce() + Send>;

/// A flag that a door sets when its client cancels a request. Holders of the
/// request read it or register a hook.
///
/// The default token can't be cancelled and doesn't allocate.
#[derive(Clone, Default)]
pub struct CancelToken {
    shared: Option<Arc<Shared>>,
}

#[derive(Default)]
struct Shared {
    cancelled: AtomicBool,
    hooks: Lock<SmallVec<[Hook; 1]>>,
}

impl CancelToken {
    /// A token that can be cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self { shared: Some(Arc::default()) }
    }

    /// Returns true if the request can ever be cancelled.
    #[must_use]
    pub const fn can_be_cancelled(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns true if the request is cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.cancelled.load(Ordering::Acquire))
    }

    /// Cancels the request and runs the hooks; further calls do nothing.
    pub fn cancel(&self) {
        let Some(shared) = &self.shared else { return };
        let hooks = {
            let mut hooks = shared.hooks.lock("cancel");
            shared.cancelled.store(true, Ordering::Release);
            std::mem::take(&mut *hooks)
        };
        for hook in hooks {
            hook();
        }
    }

    /// Runs `hook` when the token is cancelled, or immediately if it already has been.
    pub fn on_cancel(&self, hook: impl FnOnce() + Send + 'static) {
        let Some(shared) = &self.shared else { return };
        {
            let mut hooks = shared.hooks.lock("add a hook");
            if !shared.cancelled.load(Ordering::Acquire) {
                hooks.push(Box::new(hook));
                return;
            }
        }
        hook();
    }

    /// Drops the hooks, which frees what they captured.
    pub fn clear_hooks(&self) {
        let Some(shared) = &self.shared else { return };
        let hooks = std::mem::take(&mut *shared.hooks.lock("clear the hooks"));
        // Dropped outside the lock: dropping a hook may use this token.
        drop(hooks);
    }
}

impl std::fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CancelToken(cancelled: {})", self.is_cancelled())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn hooks_run_once_whether_set_before_or_after() {
        let runs = Arc::new(AtomicU32::new(0));
        let count = |token: &CancelToken| {
            let runs = runs.clone();
            token.on_cancel(move || {
                runs.fetch_add(1, Ordering::Relaxed);
            });
        };
        let early = CancelToken::new();
        count(&early);
        count(&early);
        early.cancel();
        early.cancel();
        assert!(early.is_cancelled());
        let late = CancelToken::new();
        late.cancel();
        count(&late);
        assert_eq!(runs.load(Ordering::Relaxed), 3);
        let cleared = CancelToken::new();
        count(&cleared);
        cleared.clear_hooks();
        cleared.cancel();
        assert!(cleared.can_be_cancelled());
        let never = CancelToken::default();
        never.cancel();
        assert!(!never.can_be_cancelled() && !never.is_cancelled());
        assert_eq!(runs.load(Ordering::Relaxed), 3);
    }
}
