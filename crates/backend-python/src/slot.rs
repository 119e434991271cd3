//! An instance that is a slot: it shares its worker with the model's other instances, and is busy
//! until the worker's senders have answered its request.
//!
//! The scheduler therefore sees how many requests the worker executes and how long each takes, and
//! keeps all others in the model's queue.

use std::sync::Arc;

use galatea_backend::{Instance, RefusedBatch};
use galatea_infer::PendingRequest;

use crate::supervisor::Supervisor;
use crate::worker::WaitResult;

/// A slot of a worker.
pub(crate) struct SlotInstance {
    supervisor: Arc<Supervisor>,
}

impl SlotInstance {
    pub(crate) const fn new(supervisor: Arc<Supervisor>) -> Self {
        Self { supervisor }
    }
}

impl Instance for SlotInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        let shared = self.supervisor.shared();
        let worker = match shared.worker() {
            Ok(worker) => worker,
            Err(status) => return Err(RefusedBatch { requests, status }),
        };
        match worker.execute_in_slot(requests)? {
            WaitResult::Lost(lost) => shared.lost(&worker, &lost),
            WaitResult::Ended(_) | WaitResult::InProgress(_) => {}
        }
        Ok(())
    }
}
