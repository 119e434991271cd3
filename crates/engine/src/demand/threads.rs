//! The driver's threads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_control::ResidencyChangeKind;
use galatea_infer::Status;
use galatea_policy::{ModelId, ResidencyEvent};
use galatea_stdx::Inbox;

use super::Demand;
use super::waiter::{self, Waiter};

/// The interval at which the uses of models are counted while no request waits.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which the uses of models are counted while a request waits for memory.
const WAITING_INTERVAL: Duration = Duration::from_millis(20);

/// Work that may block, in the order in which it was requested.
pub(super) enum BlockingJob {
    /// Look up an unknown model, and continue its request.
    LookUp(Box<Waiter>),
    /// Take a model out of service.
    Unload(ModelId),
}

/// Starts the threads. They end when the driver is closed.
pub(super) fn start(demand: &Arc<Demand>) -> Result<(), Status> {
    let watch = demand.clone();
    spawn("galatea-demand", move || watch.watch())?;
    for inbox in [&demand.lookups, &demand.unloads] {
        let (demand, inbox): (Arc<Demand>, Arc<Inbox<BlockingJob>>) =
            (demand.clone(), inbox.clone());
        spawn("galatea-demand-io", move || {
            while let Some(job) = inbox.recv() {
                demand.run(job);
            }
        })?;
    }
    Ok(())
}

/// Starts a thread.
pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Status> {
    let thread = std::thread::Builder::new().name(String::from(name));
    let started = thread.spawn(run);
    started.map(drop).map_err(|error| Status::internal(format!("can't start a thread: {error}")))
}

impl Demand {
    /// Tells the decision the time and the uses of models until the driver is closed.
    fn watch(self: &Arc<Self>) {
        let mut next_reading = Instant::now();
        loop {
            let state = self.state.lock("wait for the next decision");
            if state.is_closed {
                return;
            }
            let interval = if state.waiting() == 0 { IDLE_INTERVAL } else { WAITING_INTERVAL };
            let due = state.residency.next_wakeup();
            let due = due.map(|at| Duration::from_nanos(at.saturating_since(self.now())));
            let wait = interval.min(due.unwrap_or(interval));
            drop(self.changed.wait_timeout(state, wait));
            self.update_uses();
            self.step(ResidencyEvent::Tick);
            self.withdraw_draining();
            self.settle_unloads();
            if Instant::now() >= next_reading {
                next_reading = self.measure_sizes();
            }
        }
    }

    fn run(self: &Arc<Self>, job: BlockingJob) {
        match job {
            BlockingJob::LookUp(waiter) => {
                let exists = self.look_up(&waiter.name);
                self.state.lock("end a lookup").lookups -= 1;
                if exists {
                    self.submit(*waiter);
                } else {
                    let found =
                        self.registry.snapshot().find(&waiter.name, waiter.version).cloned();
                    waiter.finish(found);
                }
            }
            BlockingJob::Unload(model) => {
                // The manager refuses only if the server stops.
                let _ = self.manager.unload_evicted(&model);
                self.state.lock("end an unload").withdrawn.insert(model);
                self.settle_unloads();
            }
        }
    }

    /// Takes draining models without live sequences out of service, along with the models that need
    /// them.
    fn withdraw_draining(self: &Arc<Self>) {
        let with_sequences = self.with_sequences();
        let mut state = self.state.lock("look for draining models");
        if state.is_closed || state.waiting() == 0 {
            return;
        }
        let leaving = state.take_draining(&with_sequences);
        drop(state);
        for model in leaving {
            let _ = self.unloads.push_and_wake(BlockingJob::Unload(model));
        }
    }

    /// Reports the unloads of models that have been destroyed.
    pub(super) fn settle_unloads(self: &Arc<Self>) {
        let mut state = self.state.lock("look for destroyed models");
        let mut effects = Vec::new();
        let mut parked = Vec::new();
        let snapshot = self.registry.snapshot();
        for model in state.unloads_in_progress() {
            // An unload that hasn't run yet would end the model's next load.
            if !state.withdrawn.contains(&model) || !snapshot.is_gone(&model) {
                continue;
            }
            while state.end_use(&model) {
                let released = ResidencyEvent::Released(model.clone());
                effects.append(&mut self.step_locked(&mut state, released));
            }
            state.unloading.remove(&model);
            state.note_change();
            let bytes = state.bytes_of(&model);
            state.journal.add(self.now(), &model, ResidencyChangeKind::Unloaded, bytes, "");
            state.withdrawn.remove(&model);
            let unloaded = ResidencyEvent::Unloaded(model.clone());
            effects.append(&mut self.step_locked(&mut state, unloaded));
            parked.extend(state.leaving.remove(&model).into_iter().flatten());
        }
        let is_closed = state.is_closed;
        drop(state);
        self.perform(effects);
        for waiter in parked {
            if is_closed {
                waiter.refuse(waiter::stopping());
            } else {
                self.submit(waiter);
            }
        }
    }

    /// Notes that a version was destroyed, so its memory is free.
    pub(crate) fn version_destroyed(self: &Arc<Self>) {
        (self.options.memory.release)();
        self.settle_unloads();
    }
}
