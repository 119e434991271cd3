//! Instances that come, take their time, give requests back early or late, go
//! and die.

use std::collections::BTreeMap;

use galatea_policy::{BatchEntry, Event, InstanceId, Release, RequestKey, Time};

use super::{Happening, World};

#[derive(Debug, Default)]
pub(super) struct Instances {
    /// Those that nobody has told to go.
    present: Vec<InstanceId>,
    running: BTreeMap<InstanceId, Running>,
    /// Steps of sequences that were not given back, and their execution's number.
    unreleased: BTreeMap<RequestKey, u64>,
}

#[derive(Debug)]
struct Running {
    number: u64,
    requests: Vec<RequestKey>,
}

impl World {
    /// An instance gets a batch.
    pub(super) fn execute(&mut self, instance: InstanceId, entries: &[BatchEntry]) {
        let requests: Vec<RequestKey> = entries.iter().filter_map(BatchEntry::request).collect();
        self.executions += 1;
        let number = self.executions;
        let finishes_first = self.random.percent(50);
        let duration = self.weather.duration_max;
        if finishes_first {
            self.plan_within(duration, Happening::Finish(instance, number));
        }
        for entry in entries {
            if let BatchEntry::Step(step) = entry {
                self.executions += 1;
                self.instances.unreleased.insert(step.key, self.executions);
                let most = duration + self.weather.release_lateness_max;
                self.plan_within(most, Happening::Release(step.key, self.executions));
            }
        }
        if !finishes_first {
            self.plan_within(duration, Happening::Finish(instance, number));
        }
        self.instances.running.insert(instance, Running { number, requests });
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
        let running = self.instances.running.remove(&instance).expect("it was looked at");
        if !self.trace.setup.is_sequential() {
            for key in running.requests {
                self.completed += 1;
                self.settle(key);
            }
        }
        self.step_at(now, Event::LaneFree(instance))
    }

    /// The backend gives a request of a sequence back.
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
            return self.step_at(now, Event::Released { key, release: Release::Reschedule });
        }
        let (client, talk) = (open.client, open.talk);
        self.completed += 1;
        self.settle(key);
        self.step_at(now, Event::Released { key, release: Release::Done })?;
        self.note_word(client, talk);
        Ok(())
    }

    pub(super) fn join(&mut self) -> Result<(), String> {
        let now = self.harness.now();
        let is_new = |id: &InstanceId| self.harness.allows(now, &Event::AddInstance(*id));
        let id = (0..).map(InstanceId).find(is_new).expect("ids don't run out");
        self.instances.present.push(id);
        self.step(Event::AddInstance(id))
    }

    /// An instance is removed; perhaps another comes later.
    pub(super) fn leave(&mut self, now: Time) -> Result<(), String> {
        if !self.is_evening() && !self.draining {
            self.plan_within(300, Happening::Leave);
            self.plan_within(300, Happening::Join);
        }
        match self.pick_present() {
            Some(instance) => self.step_at(now, Event::RemoveInstance(instance)),
            None => Ok(()),
        }
    }

    /// An instance is removed because it broke: what it had comes back at once.
    pub(super) fn die(&mut self, now: Time) -> Result<(), String> {
        self.plan_within(100, Happening::Join);
        let Some(instance) = self.pick_present() else { return Ok(()) };
        self.step_at(now, Event::RemoveInstance(instance))?;
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
