//! A scheduler and its instances on a virtual clock.
//!
//! A [`SimulationWorld`] provides execution durations and is notified of batches and failures.
//! Everything else is in this module: the clock, the instances and the order of events.

use std::collections::BTreeMap;

use galatea_policy::{
    Batch, FailReason, InstanceId, RequestKey, Scheduler, SchedulerAction, SchedulerActions,
    SchedulerEvent, SchedulingSpec, Time,
};

/// A world's scheduler, instances and clock.
#[derive(Clone, Debug)]
pub struct SchedulerSimulation {
    /// The scheduler.
    pub scheduler: Scheduler,
    /// The current time.
    pub now: Time,
    /// The instances, each with the end time of its execution if it is busy.
    pub lanes: BTreeMap<InstanceId, Option<Time>>,
    /// Number of executions that have ended.
    pub executions: u64,
    actions: SchedulerActions,
}

/// An event that happens by itself when its time has come.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SimulationEvent {
    /// The instance finishes its execution.
    End(InstanceId),
    /// The scheduler wakes.
    Wakeup,
}

impl SchedulerSimulation {
    /// Creates a scheduler without instances, at the beginning of time.
    pub fn new(spec: SchedulingSpec) -> Self {
        SchedulerSimulation {
            scheduler: Scheduler::new(spec),
            now: Time(0),
            lanes: BTreeMap::new(),
            executions: 0,
            actions: SchedulerActions::default(),
        }
    }

    /// The next event. If an execution ends at the time at which the scheduler wakes, its end comes
    /// first.
    pub fn peek_next_event(&self) -> Option<(Time, SimulationEvent)> {
        let ends = self.lanes.iter().filter_map(|(id, end)| Some(((*end)?, *id)));
        let end = ends.min().map(|(end, id)| (end, SimulationEvent::End(id)));
        let wakeup = self.scheduler.next_wakeup().filter(|time| *time < Time::MAX);
        match (end, wakeup) {
            (Some((end, _)), Some(wakeup)) if wakeup < end => {
                Some((wakeup, SimulationEvent::Wakeup))
            }
            (Some(end), _) => Some(end),
            (None, wakeup) => wakeup.map(|time| (time, SimulationEvent::Wakeup)),
        }
    }

    /// Number of executing instances.
    pub fn busy_count(&self) -> usize {
        self.lanes.values().flatten().count()
    }
}

/// The world that surrounds a scheduler.
pub trait SimulationWorld {
    /// The broken rule; [`Infallible`](std::convert::Infallible) in a world without rules.
    type Broken;

    /// The scheduler of this world.
    fn timed(&mut self) -> &mut SchedulerSimulation;

    /// Begins executing a batch. Returns the duration in nanoseconds.
    ///
    /// # Errors
    ///
    /// Returns the rule that the batch breaks.
    fn begin(&mut self, instance: InstanceId, batch: &Batch) -> Result<u64, Self::Broken>;

    /// Notes that an instance has finished its execution, which the scheduler doesn't know yet.
    fn end(&mut self, instance: InstanceId);

    /// Notes that a request fails in the step of this event.
    ///
    /// # Errors
    ///
    /// Returns the rule that the failure breaks.
    fn fail(
        &mut self,
        event: &SchedulerEvent,
        key: RequestKey,
        reason: FailReason,
    ) -> Result<(), Self::Broken>;

    /// Notes any other action of the scheduler.
    ///
    /// # Errors
    ///
    /// Returns the rule that the action breaks.
    fn notice(&mut self, action: &SchedulerAction) -> Result<(), Self::Broken>;

    /// Completes an event whose consequences have all been handled.
    ///
    /// # Errors
    ///
    /// Returns the rule that is now broken.
    fn settle(&mut self, event: &SchedulerEvent) -> Result<(), Self::Broken>;

    /// Passes an event to the scheduler.
    ///
    /// # Errors
    ///
    /// Returns the broken rule.
    fn step(&mut self, event: SchedulerEvent) -> Result<(), Self::Broken> {
        let timed = self.timed();
        timed.scheduler.step(timed.now, event, &mut timed.actions);
        let mut actions = std::mem::take(&mut timed.actions);
        for action in actions.drain() {
            match action {
                SchedulerAction::Dispatch { instance, batch } => {
                    let takes_ns = self.begin(instance, &batch)?;
                    let timed = self.timed();
                    let ends = timed.now.saturating_add(takes_ns);
                    timed.lanes.insert(instance, Some(ends));
                }
                SchedulerAction::Fail { key, reason } => self.fail(&event, key, reason)?,
                SchedulerAction::RequestPermit(_)
                | SchedulerAction::ReturnPermit { .. }
                | SchedulerAction::WithdrawPermit(_)
                | SchedulerAction::SequenceClosed(_)
                | SchedulerAction::SequenceEnded(_)
                | SchedulerAction::InstanceRemoved(_)
                | SchedulerAction::Drained => self.notice(&action)?,
            }
        }
        self.timed().actions = actions;
        self.settle(&event)
    }

    /// Adds an instance.
    ///
    /// # Errors
    ///
    /// Returns the broken rule.
    fn add_instance(&mut self) -> Result<(), Self::Broken> {
        let lanes = &mut self.timed().lanes;
        let id = InstanceId(u32::try_from(lanes.len()).unwrap_or(u32::MAX));
        lanes.insert(id, None);
        self.step(SchedulerEvent::AddInstance(id))
    }

    /// Advances to the next event.
    ///
    /// # Errors
    ///
    /// Returns the broken rule.
    fn pass(&mut self, (time, moment): (Time, SimulationEvent)) -> Result<(), Self::Broken> {
        let timed = self.timed();
        timed.now = time;
        match moment {
            SimulationEvent::Wakeup => self.step(SchedulerEvent::Tick),
            SimulationEvent::End(id) => {
                timed.lanes.insert(id, None);
                timed.executions += 1;
                self.end(id);
                self.step(SchedulerEvent::LaneFree(id))
            }
        }
    }
}
