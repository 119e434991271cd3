//! An instance: batches go to its worker.

use std::sync::Arc;

use galatea_backend::{Instance, RefusedBatch};
use galatea_infer::PendingRequest;

use crate::supervisor::Supervisor;

/// An instance of a model in Python.
pub(crate) struct PythonInstance(Arc<Supervisor>);

impl PythonInstance {
    pub(crate) const fn new(supervisor: Arc<Supervisor>) -> Self {
        Self(supervisor)
    }
}

impl Instance for PythonInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        let supervised = self.0.shared();
        let worker = match supervised.worker() {
            Ok(worker) => worker,
            Err(status) => return Err(RefusedBatch { requests, status }),
        };
        if let Some(lost) = worker.execute(requests)? {
            supervised.lost(&worker, &lost);
        }
        Ok(())
    }
}
