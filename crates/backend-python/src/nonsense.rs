//! A worker that sends arbitrary bytes, for the fuzz target and tests. It isn't a process, but has
//! the sockets, memory and requests of a real worker.
#![allow(clippy::expect_used, unreachable_pub, reason = "it only runs in tests and fuzz targets")]

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use galatea_control::LoadParameters;
use galatea_infer::{
    AdmissionTimes, CancelToken, ExecutionSummary, FailureReason, InferenceRequest, InputTensor,
    LogLevel, PendingRequest, Reply, RequestObserver, ResponseSender, Status,
};
use galatea_tensor::{Buffer, DataType, Shape};

use crate::gpus::Gpus;
use crate::held::ModelLabel;
use crate::link::{WorkerEnds, WorkerSockets};
use crate::server::{CustomMetricFamily, CustomMetricKind, ServerAccess};
use crate::tensors::Arenas;
use crate::wire::{FrameSplitter, INLINE_BYTES_MAX};
use crate::worker::{ModelContext, WaitResult, Worker};

/// The number of requests in the worker's batch. Their keys are 1 and 2.
const REQUESTS: usize = 2;
/// The maximum number of bytes that are sent; longer input is truncated. The bytes must fit in the
/// sockets' buffers, because they aren't read while they are being sent.
const SENT_BYTES_MAX: usize = 64 << 10;

/// Gives a batch to a worker that sends `executions` on the socket for executions and `others` on
/// the second socket, and then ends. Each request must be answered and counted exactly once.
///
/// # Panics
///
/// Panics if a request is not answered or counted, or if it is answered or counted twice.
pub fn fuzz_worker_messages(executions: &[u8], others: &[u8], is_decoupled: bool) {
    serve_in(GiveUpMoment::BehindExecution, executions, others, is_decoupled);
}

/// The moment at which the supervisor's thread gives up on the worker.
#[derive(Clone, Copy, Debug)]
enum GiveUpMoment {
    BehindExecution,
    /// The worker has sent everything, but the lane's thread hasn't read it yet.
    #[cfg(test)]
    BeforeExecution,
}

/// Returns the number of requests that were counted as executed.
fn serve_in(give_up: GiveUpMoment, executions: &[u8], others: &[u8], is_decoupled: bool) -> u32 {
    let (worker, mut worker_ends) = worker(is_decoupled, None);
    let (batch, ends) = batch();
    let waited = match worker.begin(batch) {
        Ok(waited) => waited,
        Err(refused) => panic!("the worker did not get the batch: {}", refused.status),
    };
    say(&mut worker_ends.others, others);
    let mut splitter = FrameSplitter::default();
    while worker.read_messages(&mut splitter).is_ok() {}
    say(&mut worker_ends.results, executions);
    let execute = || {
        if let WaitResult::InProgress(running) = waited {
            drop(worker.wait(running, None));
        }
    };
    let reason = Status::internal("the worker has ended");
    match give_up {
        GiveUpMoment::BehindExecution => {
            execute();
            worker.give_up(&reason);
        }
        #[cfg(test)]
        GiveUpMoment::BeforeExecution => {
            worker.give_up(&reason);
            execute();
        }
    }
    drop(worker);
    succeeded(&ends)
}

/// Creates a worker, and returns its ends of the sockets.
fn worker(is_decoupled: bool, execute_timeout: Option<Duration>) -> (Arc<Worker>, WorkerEnds) {
    let (link, worker_ends) = WorkerSockets::pair().expect("sockets can be made");
    let context = ModelContext {
        label: ModelLabel { name: Arc::from("model"), version: 1 },
        is_decoupled,
        host: None,
        server: Arc::new(NoServer),
        outputs: vec![Arc::from("OUT")],
        gpus: Gpus::default(),
    };
    let arenas = Arenas::new(None, Gpus::default()).expect("memory can be made");
    let worker = Worker::new(link, arenas, Arc::new(context), None, execute_timeout);
    (Arc::new(worker), worker_ends)
}

/// Creates a batch, and the counts of its requests.
fn batch() -> (Vec<PendingRequest>, Vec<Arc<RequestEndCounts>>) {
    let ends: Vec<Arc<RequestEndCounts>> = (0..REQUESTS).map(|_| Arc::default()).collect();
    (ends.iter().map(|ends| request(ends.clone())).collect(), ends)
}

/// Returns the number of requests that were counted as executed, after checking that each request
/// was answered and counted exactly once.
fn succeeded(ends: &[Arc<RequestEndCounts>]) -> u32 {
    let load = |count: &AtomicU32| count.load(Ordering::Relaxed);
    for ends in ends {
        assert_eq!(load(&ends.replies), 1, "a request ends once");
        assert_eq!(load(&ends.succeeded) + load(&ends.failed), 1, "a request counts once");
    }
    ends.iter().map(|ends| load(&ends.succeeded)).sum()
}

/// Sends bytes and shuts down the socket.
fn say(socket: &mut UnixStream, bytes: &[u8]) {
    let bytes = bytes.get(..SENT_BYTES_MAX).unwrap_or(bytes);
    // The server may already have closed its end.
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(Shutdown::Write);
}

/// A request with one input in the frame and one in shared memory. `ends` counts its final
/// replies.
fn request(ends: Arc<RequestEndCounts>) -> PendingRequest {
    let input = |name: &str, length: usize| InputTensor {
        name: name.to_owned(),
        datatype: DataType::Uint8,
        shape: Shape::new(&[i64::try_from(length).unwrap_or_default()]).expect("a shape"),
        data: Buffer::from_vec(vec![7; length]),
    };
    let request = InferenceRequest {
        model_name: String::from("model"),
        inputs: vec![input("SHORT", 3), input("LONG", INLINE_BYTES_MAX.saturating_add(1))],
        cancel: CancelToken::new(),
        ..InferenceRequest::default()
    };
    let observer = ends.clone();
    let sender = ResponseSender::new(Box::new(move |reply: Reply| {
        ends.replies.fetch_add(u32::from(reply.is_final()), Ordering::Relaxed);
    }));
    let now = Instant::now();
    let times = AdmissionTimes { arrival: now, queued: now };
    PendingRequest::new(request, sender, 1, times, observer)
}

/// Counts how requests end.
#[derive(Debug, Default)]
struct RequestEndCounts {
    replies: AtomicU32,
    succeeded: AtomicU32,
    failed: AtomicU32,
}

impl RequestObserver for RequestEndCounts {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {
        self.succeeded.fetch_add(1, Ordering::Relaxed);
    }

    fn failed(&self, _: &AdmissionTimes, _: FailureReason) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
}

/// A server that refuses all of a model's requests.
struct NoServer;

impl ServerAccess for NoServer {
    fn infer(&self, _: InferenceRequest, sender: ResponseSender) {
        sender.refuse(refusal());
    }

    fn is_decoupled(&self, model: &str, _: Option<i64>) -> Result<bool, Status> {
        Ok(model.is_empty())
    }

    fn load_model(&self, _: &str, _: LoadParameters) -> Result<(), Status> {
        Err(refusal())
    }

    fn unload_model(&self, _: &str, _: bool) -> Result<(), Status> {
        Err(refusal())
    }

    fn is_model_ready(&self, _: &str, _: Option<i64>) -> Result<bool, Status> {
        Ok(false)
    }

    fn metric_family(
        &self,
        _: &str,
        _: &str,
        _: CustomMetricKind,
    ) -> Result<Box<dyn CustomMetricFamily>, Status> {
        Err(refusal())
    }

    fn log(&self, _: LogLevel, _: &str, _: u32, _: &str) {}
}

fn refusal() -> Status {
    Status::not_found("there is nothing")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::mpsc;
    use std::time::Duration;

    use galatea_infer::Status;
    use galatea_stdx::testing::LONG;

    use super::{GiveUpMoment, batch, fuzz_worker_messages, say, serve_in, succeeded, worker};
    use crate::wire::FrameSplitter;
    use crate::worker::{WaitResult, WorkerLoss};

    fn frame(body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap();
        [&length.to_le_bytes(), body].concat()
    }

    /// A frame on the second socket with a response without tensors.
    fn sent(key: u8, is_final: u8) -> Vec<u8> {
        frame(&[&[2, key, 0, 0, 0, 0, 0, 0, 0, is_final, 0, 0, 0, 1][..], &[0; 8]].concat())
    }

    /// The result for both requests, either with or without an empty response.
    fn result(has_response: bool) -> Vec<u8> {
        let one = |key: u8| {
            let head = [key, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
            let response = if has_response { &[1, 0, 0, 0, 0, 0, 0, 0, 0][..] } else { &[0] };
            [&head[..], response].concat()
        };
        frame(&[&[1, 0, 2, 0, 0, 0][..], &one(1), &one(2), &[0; 12]].concat())
    }

    #[test]
    fn each_request_ends_once_whatever_a_worker_says() {
        let both = [sent(1, 1), sent(2, 1)].concat();
        let others = [
            Vec::new(),
            sent(1, 1),
            sent(1, 0),
            both.clone(),
            [both.clone(), both].concat(),
            [sent(1, 0), sent(1, 0)].concat(),
            sent(9, 1),
            vec![0xff; 100],
        ];
        let executions =
            [Vec::new(), result(true), result(false), result(true)[..20].to_vec(), vec![0xff; 100]];
        for is_decoupled in [false, true] {
            for others in &others {
                for executions in &executions {
                    fuzz_worker_messages(executions, others, is_decoupled);
                    serve_in(GiveUpMoment::BeforeExecution, executions, others, is_decoupled);
                }
            }
        }
    }

    /// Executes a batch in a slot, whose senders then say `others`, unless they stay silent.
    /// Returns the outcome, and the number of requests that were counted as executed.
    fn execute_in_slot(others: Option<&[u8]>, limit: Duration) -> (WaitResult, u32) {
        let (worker, mut worker_ends) = worker(true, Some(limit));
        let (batch, ends) = batch();
        say(&mut worker_ends.results, &result(false));
        let (slot, (sender, outcome)) = (worker.clone(), mpsc::channel());
        let lane = std::thread::spawn(move || sender.send(slot.execute_in_slot(batch)).unwrap());
        // The worker has the batch once it can read it.
        worker_ends.commands.read_exact(&mut [0; 4]).unwrap();
        if let Some(others) = others {
            say(&mut worker_ends.others, others);
            let mut splitter = FrameSplitter::default();
            while worker.read_messages(&mut splitter).is_ok() {}
        }
        let outcome = outcome.recv_timeout(LONG).expect("the slot is free again");
        lane.join().unwrap();
        worker.give_up(&Status::internal("the worker has ended"));
        (outcome.unwrap_or_else(|refused| panic!("{}", refused.status)), succeeded(&ends))
    }

    #[test]
    fn a_slots_time_limit_includes_the_senders() {
        let (outcome, count) = execute_in_slot(None, Duration::ZERO);
        assert!(matches!(outcome, WaitResult::Lost(WorkerLoss::TimedOut)));
        assert_eq!(count, 0);
        let answers = [sent(1, 1), sent(2, 1)].concat();
        let (outcome, count) = execute_in_slot(Some(&answers), LONG);
        assert!(matches!(outcome, WaitResult::Ended(_)));
        assert_eq!(count, 2);
    }

    /// Senders still hold requests whose execution has ended.
    #[test]
    fn a_request_counts_as_what_comes_first_of_its_execution_and_the_loss_of_its_worker() {
        for others in [Vec::new(), sent(1, 0)] {
            let succeeded = |give_up| serve_in(give_up, &result(false), &others, true);
            assert_eq!(succeeded(GiveUpMoment::BehindExecution), 2);
            assert_eq!(succeeded(GiveUpMoment::BeforeExecution), 0);
        }
        let succeeded = |give_up| serve_in(give_up, &result(false), &sent(1, 1), true);
        assert_eq!(succeeded(GiveUpMoment::BeforeExecution), 1, "one has had its last response");
    }
}
