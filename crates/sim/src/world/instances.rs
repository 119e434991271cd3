//! Instances that are added, execute batches, release requests early or late, and are removed or
//! fail.

use std::collections::BTreeMap;

use galatea_policy::{BatchEntry, InstanceId, RequestKey, RequestRelease, SchedulerEvent, Time};

use super::{PlannedEvent, World};

#[derive(Debug, Default)]
pub(super) struct Instances {
    /// Instances for which no `RemoveInstance` was sent.
    present: Vec<InstanceId>,
    running: BTreeMap<InstanceId, RunningBatch>,
    /// Sequence steps that haven't been released, with the numbers of their executions.
    unreleased: BTreeMap<RequestKey, u64>,
}

#[derive(Debug)]
struct RunningBatch {
    number: u64,
    requests: Vec<RequestKey>,
}

impl World {
    /// Executes a batch on an instance.
    pub(super) fn execute(&mut self, instance: InstanceId, entries: &[BatchEntry]) {
        let requests: Vec<RequestKey> = entries.iter().filter_map(BatchEntry::request).collect();
        self.executions += 1;
        let number = self.executions;
        let finishes_first = self.random.percent(50);
        let duration = self.timing.duration_max;
        if finishes_first {
            self.plan_within(duration, PlannedEvent::Finish(instance, number));
        }
        for entry in entries {
            if let BatchEntry::Step(step) = entry {
                self.executions += 1;
                self.instances.unreleased.insert(step.key, self.executions);
                let most = duration + self.timing.release_lateness_max;
                self.plan_within(most, PlannedEvent::Release(step.key, self.executions));
            }
        }
        if !finishes_first {
            self.plan_within(duration, PlannedEvent::Finish(instance, number));
        }
        self.instances.running.insert(instance, RunningBatch { number, requests });
    }

    pub(super) fn finish(
        &mut self,
        now: Time,
        instance: InstanceId,
        number: u64,
    ) -> Result<(), String> {
        if self.instances.running.get(&instance).is_none_or(|running| running.number != number) {
            return Ok(());
        }
        let running = self.instances.running.remove(&instance).expect("its number was checked");
        if !self.trace.setup.is_sequential() {
            for key in running.requests {
                self.completed += 1;
                self.settle(key);
            }
        }
        self.step_at(now, SchedulerEvent::LaneFree(instance))
    }

    /// Releases a request of a sequence on behalf of the backend.
    pub(super) fn release(
        &mut self,
        now: Time,
        key: RequestKey,
        number: u64,
    ) -> Result<(), String> {
        if self.instances.unreleased.get(&key) != Some(&number) {
            return Ok(());
        }
        self.instances.unreleased.remove(&key);
        let open = self.open.get_mut(&key).expect("it is in execution");
        if open.iterations_left > 0 {
            open.iterations_left -= 1;
            return self.step_at(
                now,
                SchedulerEvent::Released { key, release: RequestRelease::Reschedule },
            );
        }
        self.completed += 1;
        self.settle(key);
        self.step_at(now, SchedulerEvent::Released { key, release: RequestRelease::Done })
    }

    pub(super) fn add_instance(&mut self) -> Result<(), String> {
        let now = self.harness.now();
        let is_new = |id: &InstanceId| self.harness.allows(now, &SchedulerEvent::AddInstance(*id));
        let id = (0..).map(InstanceId).find(is_new).expect("ids don't run out");
        self.instances.present.push(id);
        self.step(SchedulerEvent::AddInstance(id))
    }

    /// Removes an instance and possibly adds another one later.
    pub(super) fn remove_instance(&mut self, now: Time) -> Result<(), String> {
        if !self.is_finishing() && !self.draining {
            self.plan_within(300, PlannedEvent::RemoveInstance);
            self.plan_within(300, PlannedEvent::AddInstance);
        }
        match self.pick_present() {
            Some(instance) => self.step_at(now, SchedulerEvent::RemoveInstance(instance)),
            None => Ok(()),
        }
    }

    /// Removes a broken instance. Its requests are released immediately.
    pub(super) fn break_instance(&mut self, now: Time) -> Result<(), String> {
        self.plan_within(100, PlannedEvent::AddInstance);
        let Some(instance) = self.pick_present() else { return Ok(()) };
        self.step_at(now, SchedulerEvent::RemoveInstance(instance))?;
        let Some(running) = self.instances.running.get(&instance) else { return Ok(()) };
        let number = running.number;
        for key in running.requests.clone() {
            if let Some(execution) = self.instances.unreleased.get(&key) {
                self.release(now, key, *execution)?;
            }
        }
        self.finish(now, instance, number)
    }

    fn pick_present(&mut self) -> Option<InstanceId> {
        let count = u64::try_from(self.instances.present.len()).ok()?;
        let last = count.checked_sub(1)?;
        let index = usize::try_from(self.random.between(0, last)).expect("an index");
        Some(self.instances.present.swap_remove(index))
    }
}
