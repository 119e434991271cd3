//! A GPU reported as lost while an instance on it executes.

use std::sync::{Arc, OnceLock};

use galatea_backend::ExecutionPolicy;
use galatea_dispatch::testing::CapturedLog;
use galatea_infer::Status;

use crate::testing::{ECHO, FakeBackend, LONG, ServerSetup, TrustedControl, echo_request, send};

type Handler = Box<dyn Fn(u32, &str) + Send + Sync>;

#[test]
// row: INST-13
fn a_gpu_is_lost_while_an_instance_executes() {
    let handler = Arc::new(OnceLock::<Handler>::new());
    let called = handler.clone();
    let backend = FakeBackend::with_action(ExecutionPolicy::Blocking, move |_| {
        called.get().unwrap()(0, "an illegal address");
        Err(Status::internal("the execution failed"))
    });
    let (log, lines) = CapturedLog::record();
    let text = format!("{ECHO} instance_group {{ kind: KIND_GPU }}");
    let server = ServerSetup::new(text, backend).gpus(&[0]).log(log).serve();
    assert!(handler.set(Box::new(server.gpu_loss_handler())).is_ok());
    assert!(server.model_ready("echo", None).unwrap());
    let first = send(&server, echo_request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(first.message(), "the execution failed");
    let lost = "GPU 0, which executed requests to model 'echo', is lost: an illegal address";
    // The lane finds out before its next batch.
    for _ in 0..3 {
        let refused = send(&server, echo_request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap_err();
        assert_eq!(refused.message(), lost);
    }
    assert!(!server.model_ready("echo", None).unwrap());
    server.gpu_loss_handler()(0, "again");
    let errors = lines.of_level(galatea_backend::LogLevel::Error);
    let line = "GPU 0 is lost and not used any more: an illegal address";
    assert_eq!(errors.iter().filter(|error| *error == line).count(), 1, "{errors:?}");
}
