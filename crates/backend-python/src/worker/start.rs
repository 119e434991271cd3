//! Worker startup: the process, the sockets, and the questions that a worker answers before it
//! serves.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use galatea_infer::Status;
use galatea_policy::FORKED_HELLO_NS;

use super::{ModelContext, Worker, WorkerLoss};
use crate::confinement::VersionConfinement;
use crate::interpreter::Interpreter;
use crate::link::{WorkerEnds, WorkerSockets};
use crate::process::{Process, WorkerResources};
use crate::template::{Environment, TemplateImports};
use crate::tensors::Arenas;
use crate::wire::{ExecutionFrame, Frame, FrameSplitter, MalformedFrame};

/// The interval at which a waiting start checks the time.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Characters that a worker's name must not contain.
const SHELL_CHARACTERS: [char; 21] = [
    ';', '|', '&', '$', '`', '<', '>', '(', ')', '[', ']', '{', '}', '\\', '"', '\'', '*', '?',
    '~', '#', '!',
];

/// The parameters for starting a worker.
pub(crate) struct WorkerLaunch<'a> {
    pub(crate) interpreter: &'a Interpreter,
    /// The instance's name, which appears in the process list.
    pub(crate) instance: &'a str,
    /// The maximum time until the worker sends its first message.
    pub(crate) patience: Duration,
    /// The worker's environment variables, in addition to the server's.
    pub(crate) variables: Vec<(&'static str, OsString)>,
    /// The maximum time for an execution.
    pub(crate) execute_timeout: Option<Duration>,
    /// The restrictions on the worker: forbidden system calls and resource limits.
    pub(crate) confined: Option<&'a VersionConfinement>,
    pub(crate) model: Arc<ModelContext>,
    /// The instance's GPU number, if the instance is on a GPU.
    pub(crate) gpu: Option<u32>,
    /// The environment whose template may fork the worker, and the template's imports; `None` if
    /// the worker is started without a template.
    pub(crate) templates: Option<(&'a Environment, TemplateImports)>,
    /// Returns true if the worker is no longer needed.
    pub(crate) is_cancelled: &'a dyn Fn() -> bool,
}

/// A worker that has sent its first message, and its process.
pub(crate) struct StartedWorker {
    pub(crate) worker: Arc<Worker>,
    pub(crate) process: Process,
    /// The reader of the second socket, until the supervisor takes over.
    pub(crate) others: FrameSplitter,
    executions: FrameSplitter,
    instance: String,
}

impl StartedWorker {
    /// Starts a process and waits for its first message.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a name that can't appear on the command line of Triton's worker, or
    /// `Internal` with the reason why the start failed.
    pub(crate) fn launch(launch: &WorkerLaunch<'_>) -> Result<Self, Status> {
        check_name(launch.instance)?;
        if let Some((environment, imports)) = launch.templates
            && let Some(started) = Self::fork(launch, environment, imports)?
        {
            return Ok(started);
        }
        let (link, ends, arenas) = sockets_and_memory(launch)?;
        let names = [&*launch.model.label.name, launch.instance];
        let process = Process::start(
            launch.interpreter,
            names,
            launch.variables.clone(),
            launch.confined,
            WorkerResources { ends, inputs: &arenas.inputs, outputs: &arenas.outputs },
            link.a.socket(),
        )?;
        let mut started = Self::new(launch, link, arenas, process);
        started.answer(Some(launch.patience), launch.is_cancelled)?;
        Ok(started)
    }

    /// Like [`Self::launch`], but forks the process from a template; `None` if no template is able
    /// to.
    fn fork(
        launch: &WorkerLaunch<'_>,
        environment: &Environment,
        imports: TemplateImports,
    ) -> Result<Option<Self>, Status> {
        let (link, ends, arenas) = sockets_and_memory(launch)?;
        let names = [&*launch.model.label.name, launch.instance];
        let equipment = WorkerResources { ends, inputs: &arenas.inputs, outputs: &arenas.outputs };
        let Some(forked) = environment.fork(imports, names, &equipment) else { return Ok(None) };
        drop(equipment);
        let (process, origin) = forked.split();
        let mut started = Self::new(launch, link, arenas, process);
        let patience = launch.patience.min(Duration::from_nanos(FORKED_HELLO_NS));
        match started.answer(Some(patience), launch.is_cancelled) {
            Ok(_) => {
                origin.approve();
                Ok(Some(started))
            }
            Err(status) if (launch.is_cancelled)() => Err(status),
            Err(_) => {
                environment.suspect(&origin);
                Ok(None)
            }
        }
    }

    fn new(
        launch: &WorkerLaunch<'_>,
        link: WorkerSockets,
        arenas: Arenas,
        process: Process,
    ) -> Self {
        let worker =
            Worker::new(link, arenas, launch.model.clone(), launch.gpu, launch.execute_timeout);
        let (executions, others) = (FrameSplitter::default(), FrameSplitter::default());
        let instance = launch.instance.to_owned();
        Self { worker: Arc::new(worker), process, others, executions, instance }
    }

    /// Sends a request with a JSON document, and waits for its JSON answer.
    ///
    /// # Errors
    ///
    /// The model's error, or `Internal` if the worker is lost in the meantime.
    pub(crate) fn ask(
        &mut self,
        kind: u8,
        document: &str,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<String, Status> {
        self.worker.link.send_a(&Frame::json(kind, document).finish());
        self.answer(None, is_cancelled)
    }

    /// Puts the worker into service. `has_check` is true if its model has its own readiness check.
    pub(crate) fn begin_serving(&self, has_check: bool) {
        self.worker.has_check.store(has_check, Ordering::Relaxed);
        self.worker.link.a.limit_reads(self.worker.execute_timeout);
    }

    /// Waits for an answer while handling the worker's requests.
    fn answer(
        &mut self,
        patience: Option<Duration>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<String, Status> {
        let deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
        loop {
            match self.look() {
                Ok(Some(answer)) => return answer,
                Ok(None) => {}
                Err(lost) => return Err(self.lost(&lost, patience.unwrap_or_default())),
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(self.lost(&WorkerLoss::TimedOut, patience.unwrap_or_default()));
            }
            if is_cancelled() {
                self.process.kill();
                return Err(Status::unavailable("the model is being unloaded"));
            }
        }
    }

    fn lost(&mut self, lost: &WorkerLoss, patience: Duration) -> Status {
        // If the process ended on its own, its exit status explains the loss.
        let grace = if matches!(lost, WorkerLoss::Ended) { CHECK_INTERVAL } else { Duration::ZERO };
        let how = self.process.stop(grace);
        let what = match lost {
            WorkerLoss::Ended => how,
            other => other.describe(patience),
        };
        super::unhealthy(&self.instance, &what)
    }

    /// Waits briefly for messages and handles them.
    fn look(&mut self) -> Result<Option<Result<String, Status>>, WorkerLoss> {
        let worker = &self.worker;
        let events = worker.link.wait_for_both(self.process.handle.as_ref(), CHECK_INTERVAL);
        if events.b {
            match worker.read_messages(&mut self.others) {
                // The other socket's reader notices the end, too.
                Ok(()) | Err(WorkerLoss::Ended) => {}
                Err(lost) => return Err(lost),
            }
        }
        if !events.a {
            return Ok(None);
        }
        worker.link.a.read(&mut self.executions).map_err(|_| WorkerLoss::Ended)?;
        let mut answer = None;
        while let Some(body) = self.executions.next().map_err(WorkerLoss::Malformed)? {
            match ExecutionFrame::decode(body).map_err(WorkerLoss::Malformed)? {
                ExecutionFrame::Done(document) => answer = Some(Ok(document)),
                ExecutionFrame::Failed(status) => answer = Some(Err(status)),
                ExecutionFrame::Call(call) => {
                    worker.begin_call(call, super::calls::CallSocket::Executions)
                }
                ExecutionFrame::Result { .. } => {
                    return Err(WorkerLoss::Malformed(MalformedFrame("a result of nothing")));
                }
            }
        }
        Ok(answer)
    }
}

/// Checks the name of a model or an instance. Triton refuses these characters because they have a
/// special meaning to the shell that starts its workers.
fn check_name(name: &str) -> Result<(), Status> {
    if name.contains(SHELL_CHARACTERS) {
        return Err(Status::invalid_argument("Invalid stub name: contains invalid characters"));
    }
    Ok(())
}

/// The sockets and memory that connect a worker to the server.
fn sockets_and_memory(
    launch: &WorkerLaunch<'_>,
) -> Result<(WorkerSockets, WorkerEnds, Arenas), Status> {
    let memory = launch.confined.and_then(|confined| confined.confinement.memory_bytes());
    let arenas = Arenas::new(memory, launch.model.gpus.clone())?;
    let (link, ends) = WorkerSockets::pair()
        .map_err(|error| Status::internal(format!("failed to make sockets: {error}")))?;
    Ok((link, ends, arenas))
}
