//! A GPU that a backend reports as lost.

use std::sync::{Arc, Mutex};

use galatea_backend::{Backend, ExecutionPolicy, Host, Model, ModelFiles};
use galatea_config::ModelSpec;
use galatea_dispatch::testing::LogLines;
use galatea_infer::Status;

use crate::testing::{ECHO, FakeBackend, LONG, ServerSetup, TrustedControl, request, send};

type Kept = Arc<Mutex<Option<Arc<dyn Host>>>>;

/// Keeps what its model reports to.
struct Reporting {
    backend: FakeBackend,
    host: Kept,
}

impl Backend for Reporting {
    fn execution_policy(&self, spec: &ModelSpec) -> ExecutionPolicy {
        self.backend.execution_policy(spec)
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status> {
        *self.host.lock().unwrap() = Some(host.clone());
        self.backend.load(spec, files, host)
    }
}

#[test]
// row: INST-13
fn an_instance_reports_that_its_gpu_is_lost() {
    let host = Kept::default();
    let known = host.clone();
    let backend = FakeBackend::with_action(ExecutionPolicy::Blocking, move |_| {
        known.lock().unwrap().as_ref().unwrap().gpu_lost(0, "an illegal address");
        Err(Status::internal("the execution failed"))
    });
    let (log, lines) = LogLines::record();
    let text = format!("{ECHO} instance_group {{ kind: KIND_GPU }}");
    let setup = ServerSetup::new(text, Reporting { backend, host }).gpus(&[0]).log(log);
    let server = setup.serve();
    assert!(server.model_ready("echo", None).unwrap());
    let first = send(&server, request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(first.message(), "the execution failed");
    let lost = "GPU 0, which executed requests to model 'echo', is lost: an illegal address";
    // The report is on its way.
    let is_lost = |status: &Status| status.message() == lost;
    let refused = || send(&server, request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap_err();
    assert!((0..1_000_000).any(|_| is_lost(&refused())), "the instance goes on");
    assert!(!server.model_ready("echo", None).unwrap());
    server.lose_gpu(0, "again");
    let errors = lines.of_level(galatea_backend::LogLevel::Error);
    let line = "GPU 0 is lost and not used any more: an illegal address";
    assert_eq!(errors.iter().filter(|error| *error == line).count(), 1, "{errors:?}");
}
