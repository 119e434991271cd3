//! Loads that fail at first, and requests that are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use galatea_backend::{Backend, ExecutionPolicy, LogLevel, Model, ModelFiles, ModelHost};
use galatea_config::{ConfigDraft, ModelSpec};
use galatea_infer::{InferenceRequest, Status};

use crate::testing::{CapturedLog, ECHO, FakeBackend, LONG, ServerSetup, echo_request, send};

/// A backend that fails to load a given number of times.
struct Flaky {
    backend: FakeBackend,
    failures: Arc<AtomicU32>,
}

impl Backend for Flaky {
    fn execution_policy(&self, spec: &ModelSpec) -> ExecutionPolicy {
        self.backend.execution_policy(spec)
    }

    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
    ) -> Result<(), Status> {
        self.backend.auto_complete_config(draft, files)
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        let left = self.failures.load(Ordering::Relaxed);
        if left > 0 {
            self.failures.store(left - 1, Ordering::Relaxed);
            return Err(Status::internal(format!("{left} to go")));
        }
        self.backend.load(spec, files, host)
    }
}

#[test]
fn a_version_is_retried_the_configured_number_of_times() {
    let check = |failures: u32, retries: u32, expected: Result<&[&str], &str>| {
        let failures = Arc::new(AtomicU32::new(failures));
        let backend = Flaky {
            backend: FakeBackend::new(ExecutionPolicy::Inline),
            failures: failures.clone(),
        };
        let (log, lines) = CapturedLog::record();
        let (_, failed) = ServerSetup::new(ECHO, backend).load_retries(retries).log(log).load();
        let warnings = lines.of_level(LogLevel::Warning);
        match expected {
            Ok(expected) => {
                assert_eq!(failed, []);
                assert_eq!(warnings, expected);
            }
            Err(reason) => {
                assert_eq!(failed[0].status.message(), reason);
                assert_eq!(warnings.len(), usize::try_from(retries).unwrap());
            }
        }
        assert_eq!(failures.load(Ordering::Relaxed), 0, "every attempt was made, and no other");
    };
    let again =
        |left: u32| format!("'echo' version 1 failed to load and is tried again: {left} to go");
    check(0, 0, Ok(&[]));
    check(0, 3, Ok(&[]));
    check(1, 0, Err("1 to go"));
    check(2, 2, Ok(&[&again(2), &again(1)]));
    check(3, 2, Err("1 to go"));
}

#[test]
fn refused_requests_are_logged_with_their_reason() {
    let (log, lines) = CapturedLog::record();
    let server = ServerSetup::new(ECHO, FakeBackend::new(ExecutionPolicy::Inline)).log(log).serve();
    lines.clear();
    let refused = |asked: InferenceRequest| {
        send(&server, asked).recv_timeout(LONG).unwrap().unwrap_err();
        // The line about the loaded model may be written only now, at another level.
        let told = lines.of_level(LogLevel::Verbose(1));
        lines.clear();
        let [line] = &told[..] else { panic!("{told:?}") };
        line.clone()
    };
    let unknown = InferenceRequest { model_name: "a\nb".into(), ..echo_request(&[1, 1]) };
    assert_eq!(
        refused(unknown),
        "a request is refused: Request for unknown model: 'a\nb' is not found"
    );
    let wrong =
        InferenceRequest { id: "seven".into(), inputs: Vec::new(), ..echo_request(&[1, 1]) };
    let line = refused(wrong);
    assert!(line.starts_with("a request is refused: [request id: seven] expected 1"), "{line}");
    server.begin_exit();
    assert_eq!(
        refused(echo_request(&[1, 1])),
        "a request is refused: Server is stopping: no new requests are accepted"
    );
}
