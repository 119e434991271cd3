//! A running worker: its sockets, its memory, and the requests that it holds.

mod calls;
mod execution;
mod messages;
mod readiness;
mod start;
mod turns;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use galatea_backend::ModelHost;
use galatea_infer::{CancelToken, InferenceResponse, OutputTensor, Status};
use galatea_stdx::{Condvar, Lock};

use crate::gpus::Gpus;
use crate::held::{HeldRequests, ModelLabel};
use crate::link::WorkerSockets;
use crate::messages::metrics::Metrics;
use crate::server::ServerAccess;
use crate::tensors::Arenas;
use crate::wire::{FrameSplitter, MalformedFrame, WireResponse, WireTensor};

pub(crate) use execution::{RunningExecution, WaitResult};
use readiness::ReadinessCheck;
pub(crate) use start::{StartedWorker, WorkerLaunch};
use turns::ExecutionTurns;

/// The time that an execution waits for frames that the worker sent before its end. In the fuzz
/// target, workers have already sent everything.
const PROGRESS_PATIENCE: Duration =
    if cfg!(feature = "fuzzing") { Duration::ZERO } else { Duration::from_secs(1) };

/// The context that all of a model version's workers share.
pub(crate) struct ModelContext {
    pub(crate) label: ModelLabel,
    /// True if a request may receive any number of responses.
    pub(crate) is_decoupled: bool,
    /// `None` while the configuration is being completed.
    pub(crate) host: Option<Arc<dyn ModelHost>>,
    pub(crate) server: Arc<dyn ServerAccess>,
    /// The outputs' names, in configuration order.
    pub(crate) outputs: Vec<Arc<str>>,
    pub(crate) gpus: Gpus,
}

/// A running worker.
pub(crate) struct Worker {
    pub(crate) link: WorkerSockets,
    arenas: Arenas,
    held: HeldRequests,
    /// Calls to other models that are still unanswered.
    calls: Lock<HashMap<u64, CancelToken>>,
    metrics: Lock<Metrics>,
    model: Arc<ModelContext>,
    /// The instance's GPU number, if the instance is on a GPU.
    gpu: Option<u32>,
    /// The reader of the socket for executions; `None` during an execution.
    executions: Lock<Option<FrameSplitter>>,
    /// The turns of instances that share this worker.
    turns: ExecutionTurns,
    /// The progress in handling the second socket's frames.
    progress: FrameProgress,
    /// The time that an execution may take.
    execute_timeout: Option<Duration>,
    /// True if the model has its own readiness check.
    has_check: AtomicBool,
    readiness: ReadinessCheck,
}

/// The number of frames from the second socket that have been handled.
#[derive(Default)]
struct FrameProgress {
    served: AtomicU64,
    /// The numbers that threads wait for.
    awaited: Lock<Vec<u64>>,
    changed: Condvar,
}

impl FrameProgress {
    fn served_one(&self) {
        let served = self.served.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        // A notification costs a system call, and wakes a thread for nothing if the thread waits
        // for more frames.
        let awaited = self.awaited.lock("see whether a frame is awaited");
        if awaited.iter().any(|count| *count <= served) {
            self.changed.notify_all();
        }
    }

    /// Returns true if this many frames have been handled.
    fn has_reached(&self, count: u64) -> bool {
        self.served.load(Ordering::SeqCst) >= count
    }

    /// Waits until this many frames have been handled, but at most for `patience`. It takes only
    /// moments unless the worker is gone.
    fn wait_for(&self, count: u64, patience: Duration) {
        if self.has_reached(count) {
            return;
        }
        let deadline = Instant::now().checked_add(patience);
        let mut awaited = self.awaited.lock("wait for frames");
        awaited.push(count);
        while !self.has_reached(count) && deadline.is_some_and(|end| Instant::now() < end) {
            awaited = self.changed.wait_timeout(awaited, patience);
        }
        if let Some(index) = awaited.iter().position(|one| *one == count) {
            awaited.swap_remove(index);
        }
    }
}

/// The reason why a worker has to be given up.
#[derive(Debug)]
pub(crate) enum WorkerLoss {
    /// The worker's socket was closed.
    Ended,
    /// The worker sent a frame that no worker sends.
    Malformed(MalformedFrame),
    /// The worker took too long.
    TimedOut,
}

impl Worker {
    /// Creates the server's side of a worker with these sockets.
    pub(crate) fn new(
        link: WorkerSockets,
        arenas: Arenas,
        model: Arc<ModelContext>,
        gpu: Option<u32>,
        execute_timeout: Option<Duration>,
    ) -> Self {
        Self {
            link,
            arenas,
            held: HeldRequests::default(),
            calls: Lock::default(),
            metrics: Lock::default(),
            model,
            gpu,
            executions: Lock::new(Some(FrameSplitter::default())),
            turns: ExecutionTurns::default(),
            progress: FrameProgress::default(),
            execute_timeout,
            has_check: AtomicBool::new(false),
            readiness: ReadinessCheck::default(),
        }
    }

    /// Fails all requests and calls that the worker holds, and stops it from accepting new ones.
    pub(crate) fn give_up(&self, reason: &Status) {
        for one in self.held.close_and_take(reason) {
            one.fail(reason.clone());
        }
        let calls = std::mem::take(&mut *self.calls.lock("cancel what a worker called"));
        for cancel in calls.into_values() {
            cancel.cancel();
        }
        self.end_readiness();
        self.link.close();
    }

    /// Waits until the senders in the worker have answered all requests whose clients are still
    /// waiting.
    pub(crate) fn wait_until_answered(&self) {
        self.held.wait_until_answered();
    }

    /// The time limit for an execution, for messages.
    pub(crate) fn patience(&self) -> Duration {
        self.execute_timeout.unwrap_or_default()
    }

    /// Returns unused memory to the system.
    pub(crate) fn trim(&self) {
        self.arenas.inputs.trim();
    }

    /// Converts an output to the server's form.
    fn output(&self, mut tensor: WireTensor) -> Result<OutputTensor, Status> {
        let data = self.arenas.read(&mut tensor)?;
        let known = self.model.outputs.iter().find(|name| ***name == *tensor.name);
        let name = known.cloned().unwrap_or_else(|| Arc::from(&*tensor.name));
        Ok(OutputTensor { name, datatype: tensor.datatype, shape: tensor.shape, data })
    }

    /// Converts a response to the server's form; `None` if the worker sent none.
    fn response(
        &self,
        id: &str,
        response: WireResponse,
    ) -> Option<Result<InferenceResponse, Status>> {
        match response {
            WireResponse::Nothing => None,
            WireResponse::Error(status) => Some(Err(status)),
            WireResponse::Tensors { parameters, outputs } => Some(
                outputs
                    .into_iter()
                    .map(|tensor| self.output(tensor))
                    .collect::<Result<Vec<_>, Status>>()
                    .map(|outputs| InferenceResponse {
                        model_name: self.model.label.name.clone(),
                        model_version: self.model.label.version,
                        id: id.to_owned(),
                        parameters: parameters.into(),
                        outputs,
                    }),
            ),
        }
    }
}

/// The error for an operation that a lost worker can't perform. It consists of Triton's text and
/// the reason for the loss.
pub(crate) fn unhealthy(instance: &str, what: &str) -> Status {
    Status::internal(format!("Stub process '{instance}' is not healthy. The worker {what}."))
}

impl WorkerLoss {
    /// The reason for the loss, in words that follow "the worker".
    pub(crate) fn describe(&self, patience: Duration) -> String {
        match self {
            Self::Ended => String::from("ended"),
            Self::Malformed(malformed) => format!("sent a {malformed}"),
            Self::TimedOut => format!("took longer than {} seconds", patience.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without notifications, both threads would give up at the same time.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn threads_wait_for_different_numbers_of_frames() {
        let progress = Arc::new(FrameProgress::default());
        let waiting = [3, 2].map(|count| {
            let progress = progress.clone();
            std::thread::spawn(move || progress.wait_for(count, PATIENCE))
        });
        while progress.awaited.lock("count the threads").len() < 2 {
            // sleep: nothing notifies of a thread that begins to wait
            std::thread::yield_now();
        }
        let [three, two] = waiting;
        progress.served_one();
        progress.served_one();
        two.join().unwrap();
        assert_eq!(*progress.awaited.lock("see who waits"), [3]);
        progress.served_one();
        three.join().unwrap();
        assert!(progress.awaited.lock("see who waits").is_empty());
    }
}
