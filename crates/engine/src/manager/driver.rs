//! The driver, which owns the plan and its lock, and performs the plan's effects.
//!
//! ```text
//! order or event ──► step of the plan ──► registry changes   (under the lock)
//!        ▲                          └───► effects            (outside the lock)
//!        └──── event ◄──── worker ◄─────────┘
//! ```

use std::sync::Arc;

use galatea_backend::LogLevel;
use galatea_dispatch::LogSink;
use galatea_infer::Status;
use galatea_policy::ModelId;
use galatea_stdx::{Condvar, Guard, Lock};

use super::effect::{Effect, LoadOrder, ManagerEvent, StepEffects, VersionWork};
use super::plan::Plan;
use super::pool::Pool;
use super::worker::LoadWorker;
use crate::registry::Registry;

/// The plan, and everything needed to perform its effects.
pub(super) struct Driver {
    plan: Lock<Plan>,
    /// Notified when the plan has changed and the resulting effects have at least begun.
    changed: Condvar,
    pub(super) worker: LoadWorker,
    pub(super) pool: Pool,
    pub(super) log: LogSink,
}

impl Driver {
    pub(super) fn new(plan: Plan, worker: LoadWorker, pool: Pool) -> Self {
        let log = worker.log.clone();
        Self { plan: Lock::new(plan), changed: Condvar::new(), worker, pool, log }
    }

    pub(super) fn lock(&self, purpose: &'static str) -> Guard<'_, Plan> {
        self.plan.lock(purpose)
    }

    /// Steps the plan, and applies the resulting effects.
    pub(super) fn step<T>(
        self: &Arc<Self>,
        plan: Guard<'_, Plan>,
        change: impl FnOnce(&mut Plan, &mut StepEffects) -> T,
    ) -> T {
        let (result, work) = self.step_until_work(plan, change);
        if let Some(work) = work {
            self.work_on_versions(work);
        }
        result
    }

    /// Waits until `is_done` returns true.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the manager is closed.
    pub(super) fn wait_until(
        &self,
        is_done: impl Fn(&Plan) -> bool,
    ) -> Result<Guard<'_, Plan>, Status> {
        let mut plan = self.plan.lock("wait for the plan");
        loop {
            if plan.is_closed {
                return Err(Status::unavailable("Server exiting"));
            }
            if is_done(&plan) {
                return Ok(plan);
            }
            plan = self.changed.wait(plan);
        }
    }

    /// Waits until `is_done` returns true. Meanwhile, ends loads for this name that are waiting for
    /// a pool thread, because other loads may occupy the threads for a long time.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Driver::wait_until`].
    pub(super) fn wait_without_loads(
        self: &Arc<Self>,
        name: &str,
        is_done: impl Fn(&Plan) -> bool,
    ) -> Result<Guard<'_, Plan>, Status> {
        let mut plan = self.plan.lock("wait for the plan");
        loop {
            if plan.is_closed {
                return Err(Status::unavailable("Server exiting"));
            }
            if is_done(&plan) {
                return Ok(plan);
            }
            // A job added later is still noticed: after adding it, an effect ends, which takes the
            // plan's lock and wakes this thread.
            let jobs = self.pool.withdraw(&plan.stop_independent_loads(name));
            if jobs.is_empty() {
                plan = self.changed.wait(plan);
                continue;
            }
            drop(plan);
            jobs.into_iter().for_each(|work| work());
            plan = self.plan.lock("wait for the plan");
        }
    }

    /// Wakes the threads waiting for the plan.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    pub(super) fn log_failure(&self, id: &str, reason: &str) {
        self.log.write(LogLevel::Error, format_args!("failed to load '{id}': {reason}"));
    }

    /// Steps the plan, and applies the resulting effects except the first work on a version, which
    /// this thread does itself.
    fn step_until_work<T>(
        self: &Arc<Self>,
        mut plan: Guard<'_, Plan>,
        change: impl FnOnce(&mut Plan, &mut StepEffects) -> T,
    ) -> (T, Option<VersionWork>) {
        let (result, effects, ended) = step_plan(&mut plan, &self.worker.registry, change);
        let guard = |effect: &Effect| EffectInProgress { driver: self, id: effect.id().clone() };
        let begun: Vec<(EffectInProgress<'_>, Effect)> =
            effects.into_iter().map(|effect| (guard(&effect), effect)).collect();
        drop(plan);
        drop(ended);
        let mut next = None;
        for (guard, effect) in begun {
            match effect {
                Effect::WorkOnVersion(work) if next.is_none() => next = Some(work),
                effect => self.perform(effect),
            }
            drop(guard);
        }
        self.changed.notify_all();
        (result, next)
    }

    fn perform(self: &Arc<Self>, effect: Effect) {
        let worker = &self.worker;
        match effect {
            Effect::Log(_, level, line) => self.log.write(level, line),
            Effect::ReportBlocked(id, reason) => self.log_failure(&id, &reason),
            Effect::Prepare(order) => {
                // Files in a bucket are downloaded while the load waits for a thread.
                order.model.definition.versions.iter().for_each(|files| files.fetch_ahead());
                let (driver, id) = (self.clone(), order.id.clone());
                self.pool.submit(
                    id,
                    Box::new(move || {
                        let prepared = driver.worker.prepare(&order);
                        driver.handle(ManagerEvent::Prepared(order.id.clone(), prepared));
                    }),
                );
            }
            Effect::WorkOnVersion(work) => {
                let (driver, id) = (self.clone(), work.order.id.clone());
                self.pool.submit(id, Box::new(move || driver.work_on_versions(work)));
            }
            Effect::Commit { order, lease, changes } => {
                self.handle(worker.commit(&order, lease, changes));
            }
            Effect::Abandon { order, lease, changes, notice } => {
                self.handle(worker.abandon(&order, lease, changes, notice));
            }
            Effect::AnnounceUnload(id) => {
                worker.announce_unload(&id, None);
                self.handle(ManagerEvent::UnloadAnnounced(id));
            }
        }
    }

    fn handle(self: &Arc<Self>, event: ManagerEvent) {
        let plan = self.plan.lock("take in an event");
        self.step(plan, |plan, step| plan.handle(event, step));
    }

    /// Works on a version, and then on other versions while the plan has work for this thread.
    fn work_on_versions(self: &Arc<Self>, work: VersionWork) {
        let mut next = Some(work);
        while let Some(work) = next {
            let event = self.work_on_version(work);
            let plan = self.plan.lock("take in the result of work on a version");
            next = self.step_until_work(plan, |plan, step| plan.handle(event, step)).1;
        }
    }

    fn work_on_version(&self, work: VersionWork) -> ManagerEvent {
        let is_closed = self.plan.lock("begin work on a version").is_closed;
        if is_closed && !work.is_retry() {
            let status = Status::unavailable("Server exiting");
            return ManagerEvent::VersionSkipped(work.order.id.clone(), work.version(), status);
        }
        if work.order.is_stopped() && !work.is_retry() {
            let status = LoadOrder::stopped();
            return ManagerEvent::VersionSkipped(work.order.id.clone(), work.version(), status);
        }
        self.worker.work_on_version(work)
    }
}

/// Steps the plan, and updates the registry to match. Returns the effects, which have begun, and
/// the loads that have ended.
pub(super) fn step_plan<T>(
    plan: &mut Plan,
    registry: &Registry,
    change: impl FnOnce(&mut Plan, &mut StepEffects) -> T,
) -> (T, Vec<Effect>, Vec<Arc<LoadOrder>>) {
    let mut step = StepEffects::default();
    let result = change(plan, &mut step);
    let StepEffects { changes, effects, ended } = step;
    registry.apply(plan.desired(), changes);
    effects.iter().for_each(|effect| plan.begin_effect(effect.id()));
    (result, effects, ended)
}

/// An effect in progress. Dropping it ends the effect, even during a panic.
struct EffectInProgress<'d> {
    driver: &'d Driver,
    id: ModelId,
}

impl Drop for EffectInProgress<'_> {
    fn drop(&mut self) {
        self.driver.plan.lock("end an effect").end_effect(&self.id);
        self.driver.changed.notify_all();
    }
}
