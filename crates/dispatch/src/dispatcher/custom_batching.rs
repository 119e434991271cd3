//! Custom batching: a model's own rule for which requests share a batch.
//!
//! The scheduler knows requests only by their keys, but the rule needs to see the requests. This
//! module therefore mirrors the queued requests, and the scheduler's [`BatchStrategy`] passes them
//! to the rule. The strategy is called under the dispatcher's lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_backend::{CustomBatchStrategy, LogLevel};
use galatea_infer::{InferenceRequest, PendingRequest, Status};
use galatea_policy::{BatchInclusion, BatchStrategy, RequestKey};
use galatea_stdx::Lock;

use crate::LogSink;

/// The queued requests, as seen by the rule. The lock is only taken under the dispatcher's lock, so
/// it is always free.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueMirror(Arc<Lock<BTreeMap<RequestKey, MirroredRequest>>>);

/// A copy of a queued request, and its batch size. The tensor memory is shared.
type MirroredRequest = (InferenceRequest, u32);

impl QueueMirror {
    /// Adds a queued request.
    pub(super) fn add(&self, key: RequestKey, request: &PendingRequest) {
        let copy = (request.request().clone(), request.batch_size());
        self.0.lock("add a request").insert(key, copy);
    }

    /// Removes a request that leaves the queue. The caller still holds the request, so
    /// dropping the copy frees nothing.
    pub(super) fn remove(&self, key: RequestKey) {
        self.0.lock("remove a request").remove(&key);
    }

    /// Removes all requests.
    pub(super) fn clear(&self) {
        self.0.lock("remove all requests").clear();
    }
}

/// The rule, which can be removed while the dispatcher is still referenced. The lock is only taken
/// under the dispatcher's lock.
#[derive(Clone)]
pub(super) struct SharedRule(Arc<Lock<Option<Box<dyn CustomBatchStrategy>>>>);

impl SharedRule {
    /// Removes the rule. Dropping the rule may take a long time.
    pub(super) fn remove_rule(&self) -> Option<Box<dyn CustomBatchStrategy>> {
        self.0.lock("take the rule").take()
    }

    /// Calls the rule; returns `None` if it has been removed.
    fn call<T>(
        &self,
        call: impl FnOnce(&mut (dyn CustomBatchStrategy + 'static)) -> T,
    ) -> Option<T> {
        let mut rule = self.0.lock("call the rule");
        rule.as_mut().map(|rule| call(rule.as_mut()))
    }
}

impl std::fmt::Debug for SharedRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedRule")
    }
}

/// The scheduler's view of the rule. If the rule fails, the failure is logged, and the batch
/// continues without the rule.
pub(crate) struct CustomBatching {
    rule: SharedRule,
    mirror: QueueMirror,
    /// True if the rule has opened a batch.
    is_open: bool,
    log: LogSink,
    model: String,
}

impl CustomBatching {
    pub(crate) fn new(rule: Box<dyn CustomBatchStrategy>, log: LogSink, model: String) -> Self {
        let rule = SharedRule(Arc::new(Lock::new(Some(rule))));
        Self { rule, mirror: QueueMirror::default(), is_open: false, log, model }
    }

    /// The rule, for later removal.
    pub(super) fn rule(&self) -> SharedRule {
        self.rule.clone()
    }

    /// The mirror, to which queued requests must be added.
    pub(super) fn mirror(&self) -> QueueMirror {
        self.mirror.clone()
    }

    fn log_failure(&self, step: &str, status: &Status) {
        let line = format_args!("custom batching of '{}' failed to {step}: {status}", self.model);
        self.log.write(LogLevel::Error, line);
    }
}

impl std::fmt::Debug for CustomBatching {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CustomBatching({})", self.model)
    }
}

impl BatchStrategy for CustomBatching {
    fn open(&mut self) {
        let opened = self.rule.call(CustomBatchStrategy::open);
        self.is_open = matches!(opened, Some(Ok(())));
        if let Some(Err(status)) = opened {
            self.log_failure("begin a batch", &status);
        }
    }

    fn include(&mut self, key: RequestKey) -> BatchInclusion {
        if !self.is_open {
            return BatchInclusion::Include;
        }
        let included = match self.mirror.0.lock("show a request").get(&key) {
            Some((request, batch_size)) => {
                let included = self.rule.call(|rule| rule.include(request, *batch_size));
                included.unwrap_or(Ok(true))
            }
            None => Err(Status::internal("a request that is not queued was to be included")),
        };
        match included {
            Ok(true) => BatchInclusion::Include,
            Ok(false) => BatchInclusion::CloseBefore,
            Err(status) => {
                self.log_failure("look at a request", &status);
                BatchInclusion::Include
            }
        }
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.is_open)
            && let Some(Err(status)) = self.rule.call(CustomBatchStrategy::close)
        {
            self.log_failure("end a batch", &status);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A rule that records its calls, and fails at one of them.
    struct RecordingRule {
        calls: Arc<Mutex<Vec<String>>>,
        failing: &'static str,
    }

    impl RecordingRule {
        fn record(&self, call: &str) -> Result<(), Status> {
            self.calls.lock().unwrap().push(String::from(call));
            if call == self.failing { Err(Status::internal("told to")) } else { Ok(()) }
        }
    }

    impl CustomBatchStrategy for RecordingRule {
        fn open(&mut self) -> Result<(), Status> {
            self.record("open")
        }

        fn include(&mut self, request: &InferenceRequest, size: u32) -> Result<bool, Status> {
            self.record(&request.id)?;
            Ok(size < 2)
        }

        fn close(&mut self) -> Result<(), Status> {
            self.record("close")
        }
    }

    /// The result of a batch of two requests: calls, inclusions and log lines.
    fn batch(failing: &'static str) -> (Vec<String>, [BatchInclusion; 2], usize) {
        let calls = Arc::default();
        let lines = Arc::new(Mutex::new(0));
        let counted = lines.clone();
        let log = LogSink::new(move |_, _, _| *counted.lock().unwrap() += 1);
        let rule = Box::new(RecordingRule { calls: Arc::clone(&calls), failing });
        let mut batching = CustomBatching::new(rule, log, String::from("m"));
        let mirror = batching.mirror();
        for (key, size) in [(1, 1), (2, 2)] {
            let request = InferenceRequest { id: key.to_string(), ..InferenceRequest::default() };
            mirror.add(RequestKey(key), &PendingRequest::read_only_copy(request, size));
        }
        batching.open();
        let included = [1, 2].map(|key| batching.include(RequestKey(key)));
        batching.close();
        // No open batch is left to close.
        batching.close();
        mirror.clear();
        let calls = calls.lock().unwrap().clone();
        let lines = *lines.lock().unwrap();
        (calls, included, lines)
    }

    #[test]
    fn the_rule_decides_which_requests_share_a_batch() {
        let (calls, included, lines) = batch("");
        assert_eq!(calls, ["open", "1", "2", "close"]);
        assert_eq!(included, [BatchInclusion::Include, BatchInclusion::CloseBefore]);
        assert_eq!(lines, 0);
    }

    #[test]
    fn a_failing_rule_is_ignored() {
        let (calls, included, lines) = batch("open");
        assert_eq!(
            (calls, included, lines),
            (vec![String::from("open")], [BatchInclusion::Include; 2], 1)
        );
        let (_, included, lines) = batch("2");
        assert_eq!((included, lines), ([BatchInclusion::Include; 2], 1));
        let (_, included, lines) = batch("close");
        assert_eq!((included, lines), ([BatchInclusion::Include, BatchInclusion::CloseBefore], 1));
    }

    #[test]
    fn a_request_that_left_the_queue_is_not_passed_to_the_rule() {
        let calls = Arc::default();
        let rule = Box::new(RecordingRule { calls: Arc::clone(&calls), failing: "" });
        let log = LogSink::new(|_, _, _| {});
        let mut batching = CustomBatching::new(rule, log, String::from("m"));
        let mirror = batching.mirror();
        let request = PendingRequest::read_only_copy(InferenceRequest::default(), 1);
        mirror.add(RequestKey(1), &request);
        mirror.remove(RequestKey(1));
        batching.open();
        assert_eq!(batching.include(RequestKey(1)), BatchInclusion::Include);
        assert_eq!(*calls.lock().unwrap(), ["open"]);
    }
}
