//! The undelivered responses to one stream request.

use galatea_infer::{CongestionPoint, ResumeHook};
use std::sync::Arc;

use super::stream_budget::{ResponseCount, StreamBudget};

/// A limit on the unwritten responses to one request, within its stream's budget
/// (`--grpc-max-response-pool-size`). The request's decoupled model pauses at the limit.
pub(crate) struct ResponsePool {
    stream: Arc<StreamBudget>,
    unwritten: Arc<ResponseCount>,
}

impl ResponsePool {
    pub(crate) fn new(stream: Arc<StreamBudget>, responses_max: usize) -> Self {
        Self { stream, unwritten: Arc::new(ResponseCount::new(responses_max)) }
    }

    pub(super) const fn stream(&self) -> &Arc<StreamBudget> {
        &self.stream
    }

    /// Counts a response. Returns true if its stream has room for it.
    pub(super) fn charge_response(&self, bytes: usize) -> bool {
        let has_room = self.stream.charge_response(bytes);
        if has_room {
            self.unwritten.add();
        }
        has_room
    }

    /// Releases a response that has been written or dropped.
    pub(super) fn release_response(&self, bytes: usize) {
        // The stream wakes the waiters.
        self.unwritten.remove();
        self.stream.release_response(bytes);
    }
}

impl CongestionPoint for ResponsePool {
    fn is_congested(&self) -> bool {
        (self.unwritten.is_full() && !self.stream.is_over()) || self.stream.is_congested()
    }

    fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook> {
        self.stream.pause(hook, Some(&self.unwritten))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::task::Waker;

    use super::super::tests::{Count, charged, unwatched};
    use super::super::{ResponseBudget, StreamLimits};
    use super::*;

    #[test]
    fn a_request_pauses_at_its_bound_and_no_other() {
        let waker = Arc::<Count>::default();
        let limits = StreamLimits { messages_max: 100, bytes_max: 100_000 };
        let stream = StreamBudget::new(unwatched(), limits, Waker::from(waker.clone()));
        let stream = Arc::new(stream);
        let pool = || Arc::new(ResponsePool::new(stream.clone(), 2));
        let (busy, idle) = (pool(), pool());
        let send = |pool: &Arc<ResponsePool>| charged(ResponseBudget::Pool(pool.clone()), 1);
        let first = send(&busy).unwrap();
        assert!(!busy.is_congested());
        let second = send(&busy).unwrap();
        assert!(busy.is_congested() && !idle.is_congested() && !stream.is_congested());
        let resumed = Arc::<Count>::default();
        let hook = || {
            let resumed = resumed.clone();
            Box::new(move || std::task::Wake::wake(resumed)) as ResumeHook
        };
        let resumed_count = || resumed.0.load(Ordering::Relaxed);
        assert!(idle.when_free(hook()).is_some());
        assert!(busy.when_free(hook()).is_none());
        let woken = || waker.0.load(Ordering::Relaxed);
        stream.resume_models();
        assert_eq!((resumed_count(), woken()), (0, 0));
        drop(first);
        assert_eq!((busy.is_congested(), woken()), (false, 1));
        stream.resume_models();
        assert_eq!(resumed_count(), 1);
        let third = send(&busy).unwrap();
        assert!(busy.when_free(hook()).is_none());
        stream.end();
        assert_eq!((busy.is_congested(), resumed_count()), (false, 2));
        drop((second, third));
    }
}
