//! The predicted times at which demands are met.

use super::Residency;
use super::demand::Demand;
use super::event::ResidencyState;
use super::model::ModelIndex;
use super::order::DemandOrder;
use super::pools::MemoryByPool;
use crate::time::Time;

/// The predicted course of events.
struct Course {
    now: Time,
    /// The predicted time at which each model is resident.
    ready: Vec<Option<Time>>,
    /// The predicted times at which the next loads may begin.
    slots: Vec<Time>,
    /// The predicted times at which models have been evicted, with their memory.
    releases: Vec<(Time, MemoryByPool)>,
    used: MemoryByPool,
    /// The predicted time at which the memory of the latest demand is free.
    memory_at: Time,
}

impl Residency {
    /// Returns the predicted time at which the demand for a model is met.
    pub(super) fn predict(&mut self, now: Time, target: ModelIndex) -> Time {
        let is_due = |demand: &Demand| demand.ready_at <= now;
        let order = self.models[target].demand;
        let demand = order.and_then(|order| self.demands.get(&order));
        if self.is_prediction_stale || demand.is_some_and(is_due) {
            self.predict_all(now);
        }
        let demand = order.and_then(|order| self.demands.get(&order));
        demand.map_or(now, |demand| demand.ready_at)
    }

    fn predict_all(&mut self, now: Time) {
        self.is_prediction_stale = false;
        let mut course = self.course(now);
        let orders: Vec<DemandOrder> = self.demands.keys().copied().collect();
        for order in orders {
            let ready_at = self.follow(&mut course, &self.demands[&order]);
            if let Some(demand) = self.demands.get_mut(&order) {
                demand.ready_at = ready_at;
            }
        }
    }

    fn course(&self, now: Time) -> Course {
        let slots = self.settings.concurrent_loads_max.max(1);
        let mut course = Course {
            now,
            ready: vec![None; self.models.len()],
            slots: Vec::with_capacity(slots),
            releases: Vec::new(),
            used: self.used.clone(),
            memory_at: now,
        };
        let marks = self.marks();
        for (index, model) in self.models.iter().enumerate() {
            let unloaded = now.saturating_add(self.unload_ns);
            let release = match model.state {
                ResidencyState::Absent | ResidencyState::Reserved => continue,
                ResidencyState::Loading => {
                    let end = self.load_end(now, index);
                    course.ready[index] = Some(end);
                    course.slots.push(end);
                    continue;
                }
                ResidencyState::Resident => {
                    course.ready[index] = Some(now);
                    if marks[index].is_pinned || marks[index].is_needed {
                        continue;
                    }
                    let use_ns = if marks[index].is_in_use { self.use_ns } else { 0 };
                    model.leaves_at().max(now).saturating_add(use_ns + self.unload_ns)
                }
                ResidencyState::Draining => unloaded.saturating_add(self.use_ns),
                ResidencyState::Unloading => unloaded,
            };
            course.releases.push((release, model.counted.clone()));
        }
        course.slots.resize(course.slots.len().max(slots), now);
        course.releases.sort_by_key(|(time, _)| *time);
        course
    }

    /// Returns the predicted end of a load in progress. One that takes longer than predicted is
    /// expected to take half as long again.
    fn load_end(&self, now: Time, index: ModelIndex) -> Time {
        let model = &self.models[index];
        let elapsed_ns = now.saturating_since(model.changed_at);
        let end = model.changed_at.saturating_add(model.load.promised_ns());
        if end > now { end } else { now.saturating_add(elapsed_ns / 2 + 1) }
    }

    /// Returns the predicted time at which a demand is met, and lets the course continue to it.
    fn follow(&self, course: &mut Course, demand: &Demand) -> Time {
        let missing = self.missing(demand);
        for index in &missing {
            course.used.add(&self.models[*index].bytes);
        }
        if !missing.is_empty() {
            self.wait_for_memory(course);
        }
        let mut ready_at = course.now;
        for index in &demand.closure {
            let is_known = course.ready[*index].is_some() && !missing.contains(index);
            if !is_known {
                let end = self.predict_load(course, *index);
                course.ready[*index] = Some(end);
            }
            ready_at = ready_at.max(course.ready[*index].unwrap_or(course.now));
        }
        ready_at
    }

    fn wait_for_memory(&self, course: &mut Course) {
        loop {
            let short = self.settings.budget.excess(&course.used);
            let is_useful = |(_, bytes): &(Time, MemoryByPool)| bytes.overlaps(&short);
            let Some(position) = course.releases.iter().position(is_useful) else { return };
            let (time, bytes) = course.releases.remove(position);
            course.used.subtract(&bytes);
            course.memory_at = course.memory_at.max(time);
        }
    }

    fn predict_load(&self, course: &mut Course, index: ModelIndex) -> Time {
        let model = &self.models[index];
        let dependencies = model.dependencies.iter().filter_map(|name| self.index(name));
        let dependencies_at = dependencies.filter_map(|index| course.ready[index]).max();
        let slot = course.slots.iter_mut().min().expect("there is at least one slot");
        let start = (*slot).max(course.memory_at).max(dependencies_at.unwrap_or(course.now));
        let end = start.saturating_add(model.load.promised_ns());
        *slot = end;
        let stay_ns = model.load.promised_ns();
        let release = end.saturating_add(stay_ns);
        let position = course.releases.partition_point(|(time, _)| *time <= release);
        course.releases.insert(position, (release, model.bytes.clone()));
        end
    }
}
