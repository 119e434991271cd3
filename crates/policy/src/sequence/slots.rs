//! Assignment of slots to new sequences.
//!
//! A sequence gets the free slot with the lowest number, on the instance with the lowest id among
//! those where that slot is free. This spreads sequences over the instances and keeps batches of
//! the direct strategy short.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::InstanceId;
use crate::sequence::index::SequenceIndex;

/// A sequence's place on an instance.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    pub(super) instance: InstanceId,
    pub(super) number: u32,
}

/// All slots of all instances. Memory use grows with the number of slots that have ever been taken,
/// not with the configured capacity, which may be huge.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    /// The number of slots per instance.
    capacity: u32,
    instances: BTreeMap<InstanceId, InstanceSlots>,
    /// The lowest free slot of each instance that has one and isn't being removed.
    lowest: BTreeSet<(u32, InstanceId)>,
}

#[derive(Clone, Debug, Default)]
struct InstanceSlots {
    /// Free slots that were taken earlier.
    freed: BTreeSet<u32>,
    /// The first slot that was never taken.
    fresh: u32,
    /// The sequences in the occupied slots.
    taken: BTreeMap<u32, SequenceIndex>,
    is_closed: bool,
}

impl InstanceSlots {
    fn lowest(&self, capacity: u32) -> Option<u32> {
        let fresh = (self.fresh < capacity).then_some(self.fresh);
        // Freed slots have lower numbers than fresh ones.
        let lowest = self.freed.first().copied().or(fresh);
        lowest.filter(|_| !self.is_closed)
    }

    fn taken(&self) -> u32 {
        u32::try_from(self.taken.len()).expect("slots are numbered by u32")
    }
}

impl Slots {
    pub(super) fn new(capacity: u32) -> Self {
        assert!(capacity > 0, "an instance has at least one slot");
        Slots { capacity, instances: BTreeMap::new(), lowest: BTreeSet::new() }
    }

    pub(super) fn add(&mut self, instance: InstanceId) {
        let previous = self.instances.insert(instance, InstanceSlots::default());
        assert!(previous.is_none(), "{instance:?} was added twice");
        self.lowest.insert((0, instance));
    }

    /// Assigns the best free slot to the sequence, if there is one.
    pub(super) fn take_slot(&mut self, sequence: SequenceIndex) -> Option<Slot> {
        let (number, instance) = *self.lowest.first()?;
        self.update(instance, |slots| {
            if !slots.freed.remove(&number) {
                slots.fresh += 1;
            }
            slots.taken.insert(number, sequence);
        });
        Some(Slot { instance, number })
    }

    pub(super) fn free(&mut self, slot: Slot) {
        self.update(slot.instance, |slots| {
            let is_new = slots.freed.insert(slot.number);
            assert!(is_new && slot.number < slots.fresh, "{slot:?} was not taken");
            slots.taken.remove(&slot.number);
        });
    }

    /// Stops assigning sequences to the instance.
    pub(super) fn close_instance(&mut self, instance: InstanceId) {
        self.update(instance, |slots| slots.is_closed = true);
    }

    /// Deletes an instance without sequences.
    pub(super) fn remove(&mut self, instance: InstanceId) {
        self.update(instance, |slots| slots.is_closed = true);
        let removed = self.instances.remove(&instance);
        assert!(removed.is_some_and(|slots| slots.taken.is_empty()), "{instance:?} has sequences");
    }

    /// Returns the number of the instance's slots that are occupied by a sequence.
    pub(super) fn taken(&self, instance: InstanceId) -> u32 {
        self.instances.get(&instance).map_or(0, InstanceSlots::taken)
    }

    /// Returns the number of slots that a sequence could take.
    pub(super) fn free_count(&self) -> u64 {
        let open = self.instances.values().filter(|slots| !slots.is_closed);
        open.map(|slots| u64::from(self.capacity - slots.taken())).sum()
    }

    /// Returns the number of slots that are occupied by a sequence.
    pub(super) fn taken_count(&self) -> u64 {
        self.instances.values().map(|slots| u64::from(slots.taken())).sum()
    }

    /// Returns the sequences with their slots, ordered by instance and slot.
    pub(super) fn sequences(&self) -> impl Iterator<Item = (Slot, SequenceIndex)> {
        self.instances.iter().flat_map(|(&instance, slots)| {
            let taken = slots.taken.iter();
            taken.map(move |(&number, &sequence)| (Slot { instance, number }, sequence))
        })
    }

    fn update(&mut self, instance: InstanceId, change: impl FnOnce(&mut InstanceSlots)) {
        let slots =
            self.instances.get_mut(&instance).unwrap_or_else(|| panic!("{instance:?} is unknown"));
        if let Some(number) = slots.lowest(self.capacity) {
            self.lowest.remove(&(number, instance));
        }
        change(slots);
        if let Some(number) = slots.lowest(self.capacity) {
            self.lowest.insert((number, instance));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(capacity: u32, instances: u32) -> Slots {
        let mut slots = Slots::new(capacity);
        for id in 0..instances {
            slots.add(InstanceId(id));
        }
        slots
    }

    fn take(slots: &mut Slots) -> Option<(u32, u32)> {
        slots.take_slot(SequenceIndex(0)).map(|slot| (slot.instance.0, slot.number))
    }

    #[test]
    fn sequences_spread_over_the_instances() {
        let mut slots = slots(2, 2);
        let order: Vec<_> = std::iter::from_fn(|| take(&mut slots)).collect();
        assert_eq!(order, [(0, 0), (1, 0), (0, 1), (1, 1)]);
        slots.free(Slot { instance: InstanceId(1), number: 1 });
        slots.free(Slot { instance: InstanceId(1), number: 0 });
        assert_eq!(slots.free_count(), 2);
        assert_eq!(take(&mut slots), Some((1, 0)));
        assert_eq!(take(&mut slots), Some((1, 1)));
        assert_eq!(take(&mut slots), None);
    }

    #[test]
    fn a_closed_instance_gets_no_sequence() {
        let mut slots = slots(2, 2);
        assert_eq!(take(&mut slots), Some((0, 0)));
        slots.close_instance(InstanceId(0));
        assert_eq!(slots.free_count(), 2);
        assert_eq!(take(&mut slots), Some((1, 0)));
        slots.free(Slot { instance: InstanceId(0), number: 0 });
        assert_eq!(slots.taken(InstanceId(0)), 0);
        slots.remove(InstanceId(0));
        assert_eq!(take(&mut slots), Some((1, 1)));
        assert_eq!(take(&mut slots), None);
    }

    #[test]
    #[should_panic(expected = "was not taken")]
    fn a_slot_is_freed_once() {
        let mut slots = slots(1, 1);
        let slot = slots.take_slot(SequenceIndex(0)).unwrap();
        slots.free(slot);
        slots.free(slot);
    }
}
