//! Templates: processes that have imported what workers need, and fork them.
//!
//! An interpreter's start and its imports cost a hundred times what a fork does. Each environment
//! has a template, which is started when its first worker is, and a second one with numpy as soon
//! as a worker is started for whose model that was seen to change nothing
//! (`workers/python/galatea_worker/template.py`). Workers that are confined have none. Without a
//! template, or when it fails, a worker starts by itself.

mod ambience;
mod files;
mod process;

use std::collections::HashMap;
use std::ffi::OsString;
use std::process::ExitStatus;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use galatea_infer::LogLevel;
use galatea_policy::{TEMPLATE_START_NS, TemplateEvent, TemplateLife, Time};
use galatea_stdx::Lock;
use rustix::process::Pid;

use crate::interpreter::Interpreter;
use crate::process::{Equipment, Parent, Process};
use crate::server::ServerAccess;
use ambience::Ambience;
use process::{TemplateError, TemplateProcess};

/// The environments that models use. One is kept for the model that comes next, since a model's
/// configuration is completed before it is loaded.
#[derive(Default)]
pub(crate) struct Templates {
    environments: Lock<Known>,
}

#[derive(Default)]
struct Known {
    by_name: HashMap<Name, Weak<Environment>>,
    last: Option<Arc<Environment>>,
}

/// The parts of the server that templates need.
#[derive(Clone)]
pub(crate) struct TemplateOptions {
    /// The time that one may take until it can fork.
    pub(crate) patience: Duration,
    /// The server, whose log tells that one can't.
    pub(crate) server: Arc<dyn ServerAccess>,
    /// The variables that a process would inherit now.
    pub(crate) inherited: fn() -> Vec<(OsString, OsString)>,
}

/// The facts that tell environments apart: the command of the interpreter, and its variables.
type Name = (Vec<OsString>, Vec<(&'static str, OsString)>);

/// The templates of an environment. They end when neither models nor workers use it.
pub(crate) struct Environment {
    interpreter: Interpreter,
    variables: Vec<(&'static str, OsString)>,
    options: TemplateOptions,
    by_ambience: Lock<Vec<(Ambience, Arc<TemplateSlot>)>>,
}

/// The imports that a template shall have done.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Imports {
    /// Those of every worker.
    Own,
    /// numpy too.
    Numpy,
}

/// Forks workers, or has to be given up.
pub(crate) struct Template(TemplateProcess);

/// The templates that were started in the same surroundings.
pub(crate) struct TemplateSlot {
    origin: Instant,
    state: Lock<SlotState>,
}

#[derive(Default)]
struct SlotState {
    own: TemplatePlace,
    numpy: TemplatePlace,
}

/// The place of a template, with its life.
#[derive(Default)]
struct TemplatePlace {
    life: TemplateLife,
    template: Option<Arc<Template>>,
}

impl Templates {
    /// The environment of a model.
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
                by_ambience: Lock::default(),
            })
        });
        known.by_name.insert(name, Arc::downgrade(&environment));
        known.last = Some(environment.clone());
        environment
    }

    /// A model is gone: none is expected that uses what it used.
    pub(crate) fn expect_none(&self) {
        let last = self.environments.lock("forget an environment").last.take();
        drop(last);
    }
}

impl Environment {
    /// Forks a worker; `None` if it has to be started by itself, with other equipment.
    pub(crate) fn fork(
        &self,
        imports: Imports,
        names: [&str; 2],
        equipment: &Equipment<'_>,
    ) -> Option<Forked> {
        let slot = self.slot(Ambience::of_this_thread((self.options.inherited)()));
        let mut state = slot.state.lock("fork a worker");
        let template = self.template(&slot, &mut state, imports)?;
        let is_with_numpy = state.numpy.is(&template);
        match template.fork(names, equipment) {
            Ok(process) => {
                drop(state);
                Some(Forked { process, slot, template, is_with_numpy })
            }
            Err(failure) => {
                let place = if is_with_numpy { &mut state.numpy } else { &mut state.own };
                self.failed(place, slot.now(), failure);
                None
            }
        }
    }

    /// A worker that was forked doesn't speak.
    pub(crate) fn suspect(&self, forked: &Lineage) {
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

    fn slot(&self, ambience: Ambience) -> Arc<TemplateSlot> {
        let mut all = self.by_ambience.lock("find a template");
        if let Some((_, slot)) = all.iter().find(|(known, _)| *known == ambience) {
            return slot.clone();
        }
        let slot = Arc::new(TemplateSlot { origin: Instant::now(), state: Lock::default() });
        // The oldest surroundings are the least likely to come back.
        if all.len() >= AMBIENCES_MAX {
            all.remove(0);
        }
        all.push((ambience, slot.clone()));
        slot
    }

    /// A template that can fork. One with numpy is a fork of one without.
    fn template(
        &self,
        slot: &TemplateSlot,
        state: &mut SlotState,
        imports: Imports,
    ) -> Option<Arc<Template>> {
        for place in [&mut state.own, &mut state.numpy] {
            place.template.take_if(|template| template.0.files.have_changed());
        }
        if imports == Imports::Numpy
            && let Some(template) = &state.numpy.template
        {
            return Some(template.clone());
        }
        let start = || Template::start(&self.interpreter, &self.variables, self.patience());
        let own = self.ensure(&mut state.own, slot, start)?;
        if imports == Imports::Own {
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
            // Others may hold it.
            template.0.end();
        }
        let (event, why) = match failure {
            TemplateError::NotStarted => return place.life.step(now, TemplateEvent::Failed),
            TemplateError::Lost(why) => (TemplateEvent::Failed, why),
            TemplateError::Unsuitable(why) => (TemplateEvent::Unsuitable, why),
        };
        place.life.step(now, event);
        let program = self.interpreter.program.display();
        let text = format!(
            "workers of '{program}' start slowly, because no template can fork them: {why}"
        );
        self.options.server.log(LogLevel::Warning, file!(), line!(), &text);
    }
}

/// The number of surroundings of an environment that have templates. They differ where host
/// policies bind instances to processors or memory.
const AMBIENCES_MAX: usize = 64;

/// A worker that was forked.
pub(crate) struct Forked {
    pub(crate) process: Process,
    slot: Arc<TemplateSlot>,
    template: Arc<Template>,
    is_with_numpy: bool,
}

/// The origin of a worker that was forked.
pub(crate) struct Lineage {
    slot: Arc<TemplateSlot>,
    template: Arc<Template>,
    is_with_numpy: bool,
}

impl Forked {
    pub(crate) fn split(self) -> (Process, Lineage) {
        let Self { process, slot, template, is_with_numpy } = self;
        (process, Lineage { slot, template, is_with_numpy })
    }
}

impl Lineage {
    /// The worker speaks.
    pub(crate) fn approve(&self) {
        let mut state = self.slot.state.lock("approve of a template");
        let place = if self.is_with_numpy { &mut state.numpy } else { &mut state.own };
        place.life.step(self.slot.now(), TemplateEvent::Forked);
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
        equipment: &Equipment<'_>,
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
