//! Cancellation of requests: the flag, its hooks, and the protocol that all participants follow.
//!
//! A client may disconnect at any moment, and its request may be anywhere. One rule makes this
//! safe: a cancellation never ends a request. It only makes the owner of the request end it
//! earlier. So a cancelled request has one final reply, is counted and releases its memory like any
//! other, and no step below depends on the timely arrival of a cancellation.
//!
//! # The steps
//!
//! 1. **A token for each request.** The door makes a [`CancelToken`] before it calls
//!    [`InferenceService::infer`](crate::InferenceService::infer). `http` keeps it in a
//!    `CancelOnDrop` of the exchange or of its `EventStream`, `grpc` in `CallState::Executing` or
//!    in the `ReorderBuffer` of the stream, `capi` in the request's `Ownership`, `python` in its
//!    `Request`. A step of an ensemble (`SentCall`) and a call by a model in Python
//!    (`Worker::begin_call`) have tokens of their own.
//! 2. **The client disconnects.** `http` drops the future of the exchange when `ClientWatch` or
//!    hyper sees the connection end, and with it `CancelOnDrop`. `grpc` cancels when a call is
//!    reset (`drop_reset_calls`, `Stream::pull`), when a stream fails, when the `grpc-timeout` of a
//!    call is over (`expire_calls`), and when the connection ends (drop of `Calls`). Programs call
//!    `TRITONSERVER_InferenceRequestCancel` or `cancel()`, and still get the final response.
//! 3. **Flag, then hooks.** [`CancelToken::cancel`] sets the flag and takes the hooks out under
//!    one lock, and runs them without it, on the thread that cancels. A hook does not block.
//!    There are three: of the queue (`Dispatcher::enqueue`), of an ensemble (`Run::start`) and of
//!    a worker (`Worker::watch_cancellation`). All others read the flag.
//! 4. **A queued request leaves the queue.** The hook calls `Dispatcher::cancel`, which steps the
//!    scheduler with `Event::Cancel`. A waiting request becomes `Action::Fail`. If it belongs to a
//!    sequence, so do all requests that wait behind it, and the sequence closes
//!    (`SequenceBatcher::cancel`). The dispatcher takes it from the slab, withdraws it from the
//!    order of replies, and, outside the lock, fails it with `Request cancelled`. Timeouts set no
//!    flag: the scheduler itself finds requests that have waited too long in a queue or a backlog,
//!    or that will miss their deadline (`FailReason::{TimeoutExpired, SequenceTimeoutExpired,
//!    TooLate}`), and the same `Action::Fail` ends it.
//! 5. **An executing batch is told, not stopped.** A closed batch keeps its requests. ONNX models
//!    check the flag before the batch (`OnnxInstance::execute`), compiled backends ask
//!    `TRITONBACKEND_RequestIsCancelled`, a worker gets the frame `CANCELLED` for `is_cancelled()`.
//!    An iterative request is not executed again (`RequestState::Cancelled`). A decoupled model
//!    that waits for a slow client resumes ([`Backpressure::wait_until_relieved`](crate::Backpressure::wait); in a
//!    worker, when it gets its frame); the decision to stop is the model's.
//! 6. **A long run is terminated if all clients have disconnected.** `LaneWatch` checks an
//!    execution on a lane's thread every 0.1 s, unless the execution is certainly short, or
//!    contains a request that can't be cancelled or that belongs to a sequence, whose state it
//!    changes. If the flags of all requests are set, it calls `ExecutionTerminator::terminate`, and the
//!    requests fail with `request cancelled during its execution`. Only ONNX models have a
//!    `ExecutionTerminator`.
//! 7. **An ensemble fails at once and ends later.** `EnsembleRun::cancel` replies, starts no
//!    further step, and cancels its calls: a call that waits at its gate is withdrawn, and a call
//!    that was sent begins at step 3. The run ends after its last call. The calls of a Python model
//!    continue until the model cancels them or its worker exits.
//! 8. **The owner ends the request.** [`PendingRequest`](crate::PendingRequest) counts it and
//!    replies, in this order. A request that step 4 took from the queue, or step 6 from a run,
//!    counts as [`FailureReason::Canceled`](crate::FailureReason::Canceled). An execution that runs
//!    to its end is counted as if the client were still connected. (The failure of an ensemble's
//!    request counts twice, as in Triton: `fail_twice`.) Dropping the
//!    [`Responder`](crate::Responder) drops the remaining hooks.
//! 9. **Memory comes back with the values.** The tensors and their charges go with the request, a
//!    door's charge (`RequestCharge`) with the sink, after the final reply: until then the memory
//!    is in use, even if no client waits. Dropping the last share of a `BorrowedRequest` calls the
//!    release callback of a C program.
//!
//! # The races
//!
//! - **With queueing.** The hook is added after the step that queues the request, if the request is
//!   still queued. A token that was cancelled before runs it at once.
//! - **With the close of a batch.** Both are steps under the dispatcher's lock. A hook that comes
//!   second finds no such key among the queued requests, and the execution continues.
//! - **With the end of the request.** A hook may run, or be added, after the request has ended. It
//!   holds a weak reference and a key. Keys of requests carry a generation, and those of workers
//!   count up, so that a late hook never meets a later request. A run that has ended drops the
//!   event, and a worker remembers a bounded number of unknown keys.
//! - **With the reply.** A request moves by value, and the code that has it replies. A reply to a
//!   disconnected client finds no receiver (a closed channel in `http`, a removed `CallKey` in
//!   `grpc`) and is dropped with its charge.
//! - **With a second cancellation.** The hooks have been taken out, so it does nothing. It may
//!   return while the first still runs them: after `cancel` only the flag is certain.
//! - **With another use of the request.** A C program may hand a request over again from its
//!   release callback. `Ownership::hand_over` replaces the token under its lock, so a cancellation
//!   applies either to the old use, which is over, or to the new one.
//! - **Between a check and a termination.** A flag is never cleared: disconnected clients do not
//!   come back. `LaneWatch` terminates under the lock that the lane's thread takes after each
//!   execution, where it resets the instance. So the next execution is never terminated. A run that
//!   ended before it noticed replies with its result.
//! - **Between an ensemble and its steps.** One thread at a time drives a run, in the sequence of
//!   its events. A step's response after the cancellation is ignored; a call that its gate admits
//!   while it is being withdrawn (`Withdrawal::AlreadyAdmitted`) ends when that event comes, and is
//!   not sent.
//! - **With the second iteration.** The scheduler notes the cancellation of an executing iterative
//!   request in the step that would otherwise ignore it, and checks it at the release. Whichever
//!   comes first, the request fails once: queued again by step 4, or released by step 5.
//! - **With an unload.** The hooks keep no version loaded. If the dispatcher no longer exists,
//!   neither do its requests.

use std::sync::Arc;

use galatea_stdx::Lock;
use galatea_stdx::sync::atomic::{AtomicBool, Ordering};
use smallvec::SmallVec;

type Hook = Box<dyn FnOnce() + Send>;

/// A flag that a door sets when its client cancels a request. Holders of the
/// request read it or register a hook.
///
/// The default token can't be cancelled and costs no allocation.
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

    /// Runs `hook` when the token is cancelled, or at once if it already is.
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
