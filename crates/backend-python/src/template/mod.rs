//! Templates: processes that have imported the modules that workers need, and that fork workers.
//!
//! Starting an interpreter and importing modules costs a hundred times as much as a fork. Each
//! environment has a template, which is started with the environment's first worker. A second
//! template, with numpy, is started with the first worker of a model that is known to be unaffected
//! by an early import of numpy (`workers/python/galatea_worker/template.py`). Confined workers
//! don't use templates. If there is no template, or if it fails, a worker starts its own
//! interpreter.

mod files;
mod process;
mod thread_environment;

use std::collections::HashMap;
use std::ffi::OsString;
use std::process::ExitStatus;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use galatea_infer::LogLevel;
use galatea_policy::{ForkTemplateEvent, ForkTemplateLifecycle, TEMPLATE_START_NS, Time};
use galatea_stdx::Lock;
use rustix::process::Pid;

use crate::interpreter::Interpreter;
use crate::process::{Parent, Process, WorkerResources};
use crate::server::ServerAccess;
use process::{TemplateError, TemplateProcess};
use thread_environment::ThreadEnvironment;

/// The environments that models use. The most recent one is kept for the next model, because a
/// model's configuration is completed before the model is loaded.
#[derive(Default)]
pub(crate) struct Templates {
    environments: Lock<KnownEnvironments>,
}

#[derive(Default)]
struct KnownEnvironments {
    by_name: HashMap<EnvironmentKey, Weak<Environment>>,
    last: Option<Arc<Environment>>,
}

/// The options for templates.
#[derive(Clone)]
pub(crate) struct TemplateOptions {
    /// The time that a template may take until it is ready to fork.
    pub(crate) patience: Duration,
    /// The server, which logs that a template can't fork.
    pub(crate) server: Arc<dyn ServerAccess>,
    /// A function that returns the variables that a new process would inherit.
    pub(crate) inherited: fn() -> Vec<(OsString, OsString)>,
}

/// The key of an environment: the interpreter's command line and variables.
type EnvironmentKey = (Vec<OsString>, Vec<(&'static str, OsString)>);

/// An environment's templates. They end when neither models nor workers use the environment.
pub(crate) struct Environment {
    interpreter: Interpreter,
    variables: Vec<(&'static str, OsString)>,
    options: TemplateOptions,
    by_thread_environment: Lock<Vec<(ThreadEnvironment, Arc<TemplateSlot>)>>,
}

/// The modules that a template should import.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum TemplateImports {
    /// The modules that every worker imports.
    Own,
    /// The modules that every worker imports, and numpy.
    Numpy,
}

/// A template that forks workers until it has to be given up.
pub(crate) struct Template(TemplateProcess);

/// The templates that were started in one particular thread environment.
pub(crate) struct TemplateSlot {
    origin: Instant,
    state: Lock<SlotState>,
}

#[derive(Default)]
struct SlotState {
    own: TemplatePlace,
    numpy: TemplatePlace,
}

/// A template and its life cycle.
#[derive(Default)]
struct TemplatePlace {
    life: ForkTemplateLifecycle,
    template: Option<Arc<Template>>,
}

impl Templates {
    /// The environment for a model.
    pub(crate) fn environment(
        &self,
        interpreter: &Interpreter,
        variables: Vec<(&'static str, OsString)>,
        options: &TemplateOptions,
    ) -> Arc<Environment> {
        let name = (interpreter.command(), variables.clone());
        let mut known = self.environments.lock("find an environment");
        known.by_name.retain(|_, one| one.strong_count() > 0);
        let found = known.by_name.get(&name).and_then(Weak::upgrade);
        let environment = found.unwrap_or_else(|| {
            Arc::new(Environment {
                interpreter: interpreter.clone(),
                variables,
                options: options.clone(),
                by_thread_environment: Lock::default(),
            })
        });
        known.by_name.insert(name, Arc::downgrade(&environment));
        known.last = Some(environment.clone());
        environment
    }

    /// Reports that a model is gone, so no other model is expected to use its environment.
    pub(crate) fn expect_none(&self) {
        let last = self.environments.lock("forget an environment").last.take();
        drop(last);
    }
}

impl Environment {
    /// Forks a worker; `None` if the worker has to be started without a template, and with new
    /// resources.
    pub(crate) fn fork(
        &self,
        imports: TemplateImports,
        names: [&str; 2],
        equipment: &WorkerResources<'_>,
    ) -> Option<ForkedWorker> {
        let slot = self.slot(ThreadEnvironment::of_this_thread((self.options.inherited)()));
        let mut state = slot.state.lock("fork a worker");
        let template = self.template(&slot, &mut state, imports)?;
        let is_with_numpy = state.numpy.is(&template);
        match template.fork(names, equipment) {
            Ok(process) => {
                drop(state);
                Some(ForkedWorker { process, slot, template, is_with_numpy })
            }
            Err(failure) => {
                let place = if is_with_numpy { &mut state.numpy } else { &mut state.own };
                self.failed(place, slot.now(), failure);
                None
            }
        }
    }

    /// Reports that a forked worker stays silent.
    pub(crate) fn suspect(&self, forked: &ForkOrigin) {
        let mut guard = forked.slot.state.lock("suspect a template");
        let (state, now) = (&mut *guard, forked.slot.now());
        for place in [&mut state.own, &mut state.numpy] {
            if place.is(&forked.template) {
                self.failed(
                    place,
                    now,
                    TemplateError::Lost(String::from("its worker didn't speak")),
                );
            }
        }
    }

    fn patience(&self) -> Duration {
        self.options.patience.min(Duration::from_nanos(TEMPLATE_START_NS))
    }

    fn slot(&self, thread_environment: ThreadEnvironment) -> Arc<TemplateSlot> {
        let mut all = self.by_thread_environment.lock("find a template");
        if let Some((_, slot)) = all.iter().find(|(known, _)| *known == thread_environment) {
            return slot.clone();
        }
        let slot = Arc::new(TemplateSlot { origin: Instant::now(), state: Lock::default() });
        // The oldest entry is the least likely to be needed again.
        if all.len() >= THREAD_ENVIRONMENTS_MAX {
            all.remove(0);
        }
        all.push((thread_environment, slot.clone()));
        slot
    }

    /// A template that is ready to fork. A template with numpy is forked from one without it.
    fn template(
        &self,
        slot: &TemplateSlot,
        state: &mut SlotState,
        imports: TemplateImports,
    ) -> Option<Arc<Template>> {
        for place in [&mut state.own, &mut state.numpy] {
            place.template.take_if(|template| template.0.files.have_changed());
        }
        if imports == TemplateImports::Numpy
            && let Some(template) = &state.numpy.template
        {
            return Some(template.clone());
        }
        let start = || Template::start(&self.interpreter, &self.variables, self.patience());
        let own = self.ensure(&mut state.own, slot, start)?;
        if imports == TemplateImports::Own {
            return Some(own);
        }
        let numpy = self.ensure(&mut state.numpy, slot, || own.with_numpy(self.patience()));
        numpy.or(Some(own))
    }

    fn ensure(
        &self,
        place: &mut TemplatePlace,
        slot: &TemplateSlot,
        start: impl FnOnce() -> Result<Template, TemplateError>,
    ) -> Option<Arc<Template>> {
        if place.template.is_none() && place.life.may_fork(slot.now()) {
            match start() {
                Ok(template) => place.template = Some(Arc::new(template)),
                Err(failure) => self.failed(place, slot.now(), failure),
            }
        }
        place.template.clone()
    }

    fn failed(&self, place: &mut TemplatePlace, now: Time, failure: TemplateError) {
        if let Some(template) = place.template.take() {
            // Other threads may still have the template.
            template.0.end();
        }
        let (event, why) = match failure {
            TemplateError::NotStarted => return place.life.step(now, ForkTemplateEvent::Failed),
            TemplateError::Lost(why) => (ForkTemplateEvent::Failed, why),
            TemplateError::Unsuitable(why) => (ForkTemplateEvent::Unsuitable, why),
        };
        place.life.step(now, event);
        let program = self.interpreter.program.display();
        let text = format!(
            "workers of '{program}' start slowly, because no template can fork them: {why}"
        );
        self.options.server.log(LogLevel::Warning, file!(), line!(), &text);
    }
}

/// The maximum number of thread environments with templates. Thread environments differ if host
/// policies bind instances to processors or memory.
const THREAD_ENVIRONMENTS_MAX: usize = 64;

/// A forked worker.
pub(crate) struct ForkedWorker {
    pub(crate) process: Process,
    slot: Arc<TemplateSlot>,
    template: Arc<Template>,
    is_with_numpy: bool,
}

/// The origin of a forked worker.
pub(crate) struct ForkOrigin {
    slot: Arc<TemplateSlot>,
    template: Arc<Template>,
    is_with_numpy: bool,
}

impl ForkedWorker {
    pub(crate) fn split(self) -> (Process, ForkOrigin) {
        let Self { process, slot, template, is_with_numpy } = self;
        (process, ForkOrigin { slot, template, is_with_numpy })
    }
}

impl ForkOrigin {
    /// Reports that the worker has sent a message.
    pub(crate) fn approve(&self) {
        let mut state = self.slot.state.lock("approve of a template");
        let place = if self.is_with_numpy { &mut state.numpy } else { &mut state.own };
        place.life.step(self.slot.now(), ForkTemplateEvent::Forked);
    }
}

impl TemplatePlace {
    fn is(&self, template: &Arc<Template>) -> bool {
        self.template.as_ref().is_some_and(|own| Arc::ptr_eq(own, template))
    }
}

impl TemplateSlot {
    fn now(&self) -> Time {
        let elapsed = self.origin.elapsed().as_nanos();
        Time(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }
}

impl Template {
    fn start(
        interpreter: &Interpreter,
        variables: &[(&'static str, OsString)],
        patience: Duration,
    ) -> Result<Self, TemplateError> {
        TemplateProcess::start(interpreter, variables.to_vec(), patience).map(Self)
    }

    fn with_numpy(self: &Arc<Self>, patience: Duration) -> Result<Self, TemplateError> {
        TemplateProcess::fork_template(self, patience).map(Self)
    }

    fn fork(
        self: &Arc<Self>,
        names: [&str; 2],
        equipment: &WorkerResources<'_>,
    ) -> Result<Process, TemplateError> {
        TemplateProcess::fork_worker(self, names, equipment)
    }
}

impl Parent for Template {
    fn reap(&self, pid: Pid) -> Option<ExitStatus> {
        self.0.reap(pid)
    }

    fn has_ended(&self) -> bool {
        self.0.has_ended()
    }
}

impl std::fmt::Debug for Template {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Template").finish_non_exhaustive()
    }
}
