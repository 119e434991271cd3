//! An instance, which passes batches to its worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_backend::{BeginResult, Instance, RefusedBatch, ResumableInstance};
use galatea_infer::PendingRequest;

use crate::supervisor::Supervisor;
use crate::worker::{RunningExecution, WaitResult, Worker};

/// An instance of a Python model.
pub(crate) struct PythonInstance {
    supervisor: Arc<Supervisor>,
    /// The batch that another thread has started.
    begun: Option<BegunBatch>,
    /// The duration of the most recent execution.
    took: Duration,
}

/// A batch that this thread finishes.
enum BegunBatch {
    /// No worker has received the batch yet.
    Waiting(Vec<PendingRequest>),
    Running(Arc<Worker>, RunningExecution),
}

impl PythonInstance {
    pub(crate) const fn new(supervisor: Arc<Supervisor>) -> Self {
        Self { supervisor, begun: None, took: Duration::MAX }
    }

    /// Waits until an execution ends, or until the deadline, if there is one.
    fn wait(
        &mut self,
        worker: Arc<Worker>,
        waited: WaitResult,
        until: Option<Instant>,
    ) -> BeginResult {
        let waited = match waited {
            WaitResult::InProgress(running) => worker.wait(running, until),
            ended => ended,
        };
        match waited {
            WaitResult::Ended(took) => {
                self.took = took;
                BeginResult::Ended
            }
            WaitResult::InProgress(running) => {
                self.begun = Some(BegunBatch::Running(worker, running));
                BeginResult::InProgress
            }
            WaitResult::Lost(lost) => {
                self.took = Duration::MAX;
                self.supervisor.shared().lost(&worker, &lost);
                BeginResult::Ended
            }
        }
    }
}

impl Instance for PythonInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        let worker = match self.supervisor.shared().worker() {
            Ok(worker) => worker,
            Err(status) => return Err(RefusedBatch { requests, status }),
        };
        let waited = worker.begin(requests)?;
        self.wait(worker, waited, None);
        Ok(())
    }

    fn resumable(&mut self) -> Option<&mut dyn ResumableInstance> {
        Some(self)
    }
}

impl ResumableInstance for PythonInstance {
    fn begin(
        &mut self,
        requests: Vec<PendingRequest>,
        patience: Duration,
    ) -> Result<BeginResult, RefusedBatch> {
        let until = Instant::now().checked_add(patience);
        let Some(worker) = self.supervisor.shared().serving().filter(|_| until.is_some()) else {
            // The worker may just be starting.
            self.begun = Some(BegunBatch::Waiting(requests));
            return Ok(BeginResult::InProgress);
        };
        let waited = worker.begin(requests)?;
        Ok(self.wait(worker, waited, until))
    }

    fn finish(&mut self) -> Result<(), RefusedBatch> {
        match self.begun.take() {
            None => Ok(()),
            Some(BegunBatch::Waiting(requests)) => self.execute(requests),
            Some(BegunBatch::Running(worker, running)) => {
                self.wait(worker, WaitResult::InProgress(running), None);
                Ok(())
            }
        }
    }

    fn took(&self) -> Duration {
        self.took
    }
}
