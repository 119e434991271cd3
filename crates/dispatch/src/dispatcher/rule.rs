//! Between a model's own rule for batches and the scheduler, which knows requests
//! only by their keys.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use galatea_backend::{BatchRule, LogLevel};
use galatea_infer::{InferenceRequest, PendingRequest, Status};
use galatea_policy::{BatchStrategy, Inclusion, RequestKey};

use crate::LogSink;

/// A copy of a queued request, and its batch size. Elements are shared.
type Copied = (InferenceRequest, u32);

/// The queued requests, for the rule to look at. Its lock is taken only under the
/// dispatcher's, so nobody waits for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown(Arc<Mutex<BTreeMap<RequestKey, Copied>>>);

impl Shown {
    /// The request is queued.
    pub(super) fn add(&self, key: RequestKey, request: &PendingRequest) {
        self.lock().insert(key, (request.request().clone(), request.batch_size()));
    }

    /// The request leaves the queue. Done while its original is there, so that
    /// nothing it holds goes with the copy.
    pub(super) fn remove(&self, key: RequestKey) {
        self.lock().remove(&key);
    }

    /// All of them leave.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RequestKey, Copied>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rule itself, until it is taken from a dispatcher that somebody may still have.
/// Its lock is taken only under the dispatcher's too.
#[derive(Clone)]
pub(super) struct Held(Arc<Mutex<Option<Box<dyn BatchRule>>>>);

impl Held {
    /// Ends the rule's part. Dropping it may take long.
    pub(super) fn take(&self) -> Option<Box<dyn BatchRule>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Asks the rule; `None` if it was taken.
    fn ask<T>(&self, ask: impl FnOnce(&mut (dyn BatchRule + 'static)) -> T) -> Option<T> {
        let mut rule = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rule.as_mut().map(|rule| ask(rule.as_mut()))
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

/// Asks the rule. What goes wrong is logged, and the batch goes on without it.
pub(crate) struct AskedRule {
    rule: Held,
    shown: Shown,
    /// Whether the rule knows of the batch.
    is_open: bool,
    log: LogSink,
    model: String,
}

impl AskedRule {
    pub(crate) fn new(rule: Box<dyn BatchRule>, log: LogSink, model: String) -> Self {
        let rule = Held(Arc::new(Mutex::new(Some(rule))));
        Self { rule, shown: Shown::default(), is_open: false, log, model }
    }

    /// For taking the rule away.
    pub(super) fn held(&self) -> Held {
        self.rule.clone()
    }

    /// Where queued requests are to be put.
    pub(super) fn shown(&self) -> Shown {
        self.shown.clone()
    }

    fn failed(&self, step: &str, status: &Status) {
        let line = format_args!("custom batching of '{}' failed to {step}: {status}", self.model);
        self.log.write(LogLevel::Error, line);
    }
}

impl std::fmt::Debug for AskedRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AskedRule({})", self.model)
    }
}

impl BatchStrategy for AskedRule {
    fn open(&mut self) {
        let opened = self.rule.ask(BatchRule::open);
        self.is_open = matches!(opened, Some(Ok(())));
        if let Some(Err(status)) = opened {
            self.failed("begin a batch", &status);
        }
    }

    fn include(&mut self, key: RequestKey) -> Inclusion {
        if !self.is_open {
            return Inclusion::Include;
        }
        let included = match self.shown.lock().get(&key) {
            Some((request, batch_size)) => {
                let included = self.rule.ask(|rule| rule.include(request, *batch_size));
                included.unwrap_or(Ok(true))
            }
            None => Err(Status::internal("a request that is not queued was to be included")),
        };
        match included {
            Ok(true) => Inclusion::Include,
            Ok(false) => Inclusion::CloseBefore,
            Err(status) => {
                self.failed("look at a request", &status);
                Inclusion::Include
            }
        }
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.is_open)
            && let Some(Err(status)) = self.rule.ask(BatchRule::close)
        {
            self.failed("end a batch", &status);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes its calls, and fails at those it is told to.
    struct Noting {
        calls: Arc<Mutex<Vec<String>>>,
        failing: &'static str,
    }

    impl Noting {
        fn note(&self, call: &str) -> Result<(), Status> {
            self.calls.lock().unwrap().push(String::from(call));
            if call == self.failing { Err(Status::internal("told to")) } else { Ok(()) }
        }
    }

    impl BatchRule for Noting {
        fn open(&mut self) -> Result<(), Status> {
            self.note("open")
        }

        fn include(&mut self, request: &InferenceRequest, size: u32) -> Result<bool, Status> {
            self.note(&request.id)?;
            Ok(size < 2)
        }

        fn close(&mut self) -> Result<(), Status> {
            self.note("close")
        }
    }

    /// What a batch of two requests comes to: the calls, and who joins.
    fn batch(failing: &'static str) -> (Vec<String>, [Inclusion; 2], usize) {
        let calls = Arc::default();
        let lines = Arc::new(Mutex::new(0));
        let counted = lines.clone();
        let log = LogSink::new(move |_, _, _| *counted.lock().unwrap() += 1);
        let rule = Box::new(Noting { calls: Arc::clone(&calls), failing });
        let mut asked = AskedRule::new(rule, log, String::from("m"));
        let shown = asked.shown();
        for (key, size) in [(1, 1), (2, 2)] {
            let request = InferenceRequest { id: key.to_string(), ..InferenceRequest::default() };
            shown.add(RequestKey(key), &PendingRequest::for_inspection(request, size));
        }
        asked.open();
        let included = [1, 2].map(|key| asked.include(RequestKey(key)));
        asked.close();
        // There is nothing to close any more.
        asked.close();
        shown.clear();
        let calls = calls.lock().unwrap().clone();
        let lines = *lines.lock().unwrap();
        (calls, included, lines)
    }

    #[test]
    fn the_rule_decides() {
        let (calls, included, lines) = batch("");
        assert_eq!(calls, ["open", "1", "2", "close"]);
        assert_eq!(included, [Inclusion::Include, Inclusion::CloseBefore]);
        assert_eq!(lines, 0);
    }

    #[test]
    fn a_batch_goes_on_without_a_rule_that_fails() {
        let (calls, included, lines) = batch("open");
        assert_eq!(
            (calls, included, lines),
            (vec![String::from("open")], [Inclusion::Include; 2], 1)
        );
        let (_, included, lines) = batch("2");
        assert_eq!((included, lines), ([Inclusion::Include; 2], 1));
        let (_, included, lines) = batch("close");
        assert_eq!((included, lines), ([Inclusion::Include, Inclusion::CloseBefore], 1));
    }

    #[test]
    fn a_request_that_left_is_not_shown() {
        let calls = Arc::default();
        let rule = Box::new(Noting { calls: Arc::clone(&calls), failing: "" });
        let log = LogSink::new(|_, _, _| {});
        let mut asked = AskedRule::new(rule, log, String::from("m"));
        let shown = asked.shown();
        let request = PendingRequest::for_inspection(InferenceRequest::default(), 1);
        shown.add(RequestKey(1), &request);
        shown.remove(RequestKey(1));
        asked.open();
        assert_eq!(asked.include(RequestKey(1)), Inclusion::Include);
        assert_eq!(*calls.lock().unwrap(), ["open"]);
    }
}
