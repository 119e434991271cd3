//! A scheduler and its instances on a virtual clock.
//!
//! A [`TimedWorld`] says how long executions take, and is told of batches and failures. All the
//! rest is here: the clock, the instances, and the order in which things happen.

use std::collections::BTreeMap;

use galatea_policy::{
    Action, Actions, Batch, Event, FailReason, InstanceId, RequestKey, Scheduler, SchedulingSpec,
    Time,
};

/// The scheduler of a world, its instances and the clock.
#[derive(Clone, Debug)]
pub struct TimedScheduler {
    /// The scheduler.
    pub scheduler: Scheduler,
    /// The time.
    pub now: Time,
    /// The instances, and when each busy one ends its execution.
    pub lanes: BTreeMap<InstanceId, Option<Time>>,
    /// Number of executions that have ended.
    pub executions: u64,
    actions: Actions,
}

/// Something that happens by itself when its time has come.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum TimedEvent {
    /// The instance ends its execution.
    End(InstanceId),
    /// The scheduler wakes.
    Wakeup,
}

impl TimedScheduler {
    /// A scheduler without instances, at the beginning of time.
    pub fn new(spec: SchedulingSpec) -> Self {
        TimedScheduler {
            scheduler: Scheduler::new(spec),
            now: Time(0),
            lanes: BTreeMap::new(),
            executions: 0,
            actions: Actions::default(),
        }
    }

    /// The moment that is next. An execution ends before the scheduler wakes at the same time.
    pub fn next_moment(&self) -> Option<(Time, TimedEvent)> {
        let ends = self.lanes.iter().filter_map(|(id, end)| Some(((*end)?, *id)));
        let end = ends.min().map(|(end, id)| (end, TimedEvent::End(id)));
        let wakeup = self.scheduler.next_wakeup().filter(|time| *time < Time::MAX);
        match (end, wakeup) {
            (Some((end, _)), Some(wakeup)) if wakeup < end => Some((wakeup, TimedEvent::Wakeup)),
            (Some(end), _) => Some(end),
            (None, wakeup) => wakeup.map(|time| (time, TimedEvent::Wakeup)),
        }
    }

    /// Number of instances that execute.
    pub fn busy(&self) -> usize {
        self.lanes.values().flatten().count()
    }
}

/// The world around a scheduler.
pub trait TimedWorld {
    /// A rule that was broken; [`Infallible`](std::convert::Infallible) in a world without rules.
    type Broken;

    /// The scheduler of this world.
    fn timed(&mut self) -> &mut TimedScheduler;

    /// A batch begins to execute. Returns for how many nanoseconds.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    fn begin(&mut self, instance: InstanceId, batch: &Batch) -> Result<u64, Self::Broken>;

    /// An instance has ended its execution, which the scheduler doesn't know yet.
    fn end(&mut self, instance: InstanceId);

    /// A request fails in the step of this event.
    ///
    /// # Errors
    ///
    /// The rule that this breaks.
    fn fail(
        &mut self,
        event: &Event,
        key: RequestKey,
        reason: FailReason,
    ) -> Result<(), Self::Broken>;

    /// The scheduler does something else.
    ///
    /// # Errors
    ///
    /// The rule that this breaks.
    fn notice(&mut self, action: &Action) -> Result<(), Self::Broken>;

    /// All that follows from the event is done.
    ///
    /// # Errors
    ///
    /// The rule that is broken now.
    fn settle(&mut self, event: &Event) -> Result<(), Self::Broken>;

    /// Tells the scheduler of an event.
    ///
    /// # Errors
    ///
    /// The rule that was broken.
    fn step(&mut self, event: Event) -> Result<(), Self::Broken> {
        let timed = self.timed();
        timed.scheduler.step(timed.now, event, &mut timed.actions);
        let mut actions = std::mem::take(&mut timed.actions);
        for action in actions.drain() {
            match action {
                Action::Dispatch { instance, batch } => {
                    let takes_ns = self.begin(instance, &batch)?;
                    let timed = self.timed();
                    let ends = timed.now.saturating_add(takes_ns);
                    timed.lanes.insert(instance, Some(ends));
                }
                Action::Fail { key, reason } => self.fail(&event, key, reason)?,
                Action::RequestPermit(_)
                | Action::ReturnPermit { .. }
                | Action::WithdrawPermit(_)
                | Action::SequenceClosed(_)
                | Action::SequenceEnded(_)
                | Action::InstanceRemoved(_)
                | Action::Drained => self.notice(&action)?,
            }
        }
        self.timed().actions = actions;
        self.settle(&event)
    }

    /// Adds an instance.
    ///
    /// # Errors
    ///
    /// The rule that was broken.
    fn add_instance(&mut self) -> Result<(), Self::Broken> {
        let lanes = &mut self.timed().lanes;
        let id = InstanceId(u32::try_from(lanes.len()).unwrap_or(u32::MAX));
        lanes.insert(id, None);
        self.step(Event::AddInstance(id))
    }

    /// Lets a moment come, which is the next one.
    ///
    /// # Errors
    ///
    /// The rule that was broken.
    fn pass(&mut self, (time, moment): (Time, TimedEvent)) -> Result<(), Self::Broken> {
        let timed = self.timed();
        timed.now = time;
        match moment {
            TimedEvent::Wakeup => self.step(Event::Tick),
            TimedEvent::End(id) => {
                timed.lanes.insert(id, None);
                timed.executions += 1;
                self.end(id);
                self.step(Event::LaneFree(id))
            }
        }
    }
}
