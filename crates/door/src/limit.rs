//! Limits on the number of connections.
//!
//! Connections and models all need file descriptors. Without a limit, clients could take all of
//! them. A connection takes a place in each limit that applies to its door. When a limit has no
//! place left, the connections that have been idle the longest are closed. If none is idle, the new
//! connection is refused.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use galatea_stdx::Lock;

use crate::activity::UptimeSeconds;
use crate::places::{ConnectionSlots, SlotCount};
use crate::watch::{Watch, WatchedConnection};

/// The divisor for the number of connections to close when all places are taken: one in this many,
/// but at least one. Finding the longest idle ones takes a while if there are many.
const EVICTED_SHARE: usize = 64;

/// The pause before the next search after a search found no idle connection.
const PAUSE: Duration = Duration::from_millis(20);

/// A limit on the connections of one or more doors.
pub struct ConnectionLimit {
    count: Arc<SlotCount>,
    /// The watches of the connections that hold places.
    watches: Lock<Vec<Weak<Watch>>>,
    /// The last time at which no connection was idle.
    none_idle: Lock<Option<Instant>>,
}

impl ConnectionLimit {
    /// Creates a limit of `max` connections.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            count: Arc::new(SlotCount::new(max)),
            watches: Lock::default(),
            none_idle: Lock::default(),
        })
    }

    /// The number of connections that hold places.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.count.taken()
    }

    pub(crate) fn add(&self, watch: &Arc<Watch>) {
        let mut watches = self.watches.lock("add connections");
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(watch));
    }

    /// Closes idle connections. Returns true if there were any.
    pub(crate) fn make_room(&self, now: Instant) -> bool {
        let pause_since = *self.none_idle.lock("look when none was idle");
        if pause_since.is_some_and(|since| now.saturating_duration_since(since) < PAUSE) {
            return false;
        }
        let mut idle = Vec::new();
        let watches = self.watches.lock("look for connections").clone();
        for watch in watches.iter().filter_map(Weak::upgrade) {
            watch.add_idle(&mut idle);
        }
        let evicted = evict_oldest(&mut idle, (self.open_connections() / EVICTED_SHARE).max(1));
        let none_idle = (evicted == 0).then_some(now);
        *self.none_idle.lock("note that none was idle") = none_idle;
        evicted > 0
    }
}

impl std::fmt::Debug for ConnectionLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.count.fmt(f)
    }
}

/// Closes the connections that have been idle the longest, up to `count`. Returns the number of
/// those that were still idle.
fn evict_oldest(idle: &mut [(UptimeSeconds, WatchedConnection)], count: usize) -> usize {
    let last = count.min(idle.len()).saturating_sub(1);
    if last < idle.len() {
        idle.select_nth_unstable_by_key(last, |(since, _)| *since);
    }
    let mut evicted: usize = 0;
    for (since, watched) in idle.iter().take(count) {
        if watched.activity.evict(*since) {
            // Its socket closes soon, but its place is free now.
            watched.places.release();
            evicted = evicted.saturating_add(1);
        }
    }
    evicted
}

/// Takes a place in each limit, closing idle connections if necessary. Returns `None` if a limit
/// has no free place.
pub(crate) fn take_places(limits: &[Arc<ConnectionLimit>]) -> Option<ConnectionSlots> {
    let mut places = ConnectionSlots::default();
    for limit in limits {
        let has_place = places.take_slot(&limit.count)
            || limit.make_room(Instant::now()) && places.take_slot(&limit.count);
        if !has_place {
            return None;
        }
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use crate::activity::{AwaitedClientStep, ClientTimeouts};
    use crate::watch::WatchedConnectionGuard;

    use super::*;

    struct World {
        door: Arc<ConnectionLimit>,
        all: Arc<ConnectionLimit>,
        watch: Arc<Watch>,
    }

    impl World {
        fn new(door_max: usize, all_max: usize) -> Self {
            let watch = Arc::new(Watch::new(ClientTimeouts::default(), Instant::now()));
            let (door, all) = (ConnectionLimit::new(door_max), ConnectionLimit::new(all_max));
            door.add(&watch);
            all.add(&watch);
            Self { door, all, watch }
        }

        /// Opens a connection that has been idle since `idle_since`, or is busy if that is `None`.
        fn open(&self, idle_since: Option<u32>) -> Option<WatchedConnectionGuard> {
            let places = take_places(&[self.door.clone(), self.all.clone()])?;
            let place = self.watch.open(places);
            if let Some(since) = idle_since {
                place.activity().begin_wait(AwaitedClientStep::Idle, UptimeSeconds(since));
            }
            Some(place)
        }

        fn counts(&self) -> (usize, usize) {
            (self.door.open_connections(), self.all.open_connections())
        }
    }

    #[test]
    fn connections_beyond_a_limit_are_refused_while_all_are_busy() {
        let world = World::new(3, 2);
        let open = [world.open(None).unwrap(), world.open(None).unwrap()];
        assert!(world.open(None).is_none());
        assert_eq!(world.counts(), (2, 2));
        drop(open);
        assert_eq!(world.counts(), (0, 0));
        assert!(world.open(None).is_some());
    }

    #[test]
    fn the_connection_that_is_idle_for_longest_makes_room() {
        let world = World::new(3, 9);
        let open = [Some(5), Some(3), None].map(|since| world.open(since).unwrap());
        let evicted = || open.each_ref().map(|place| place.activity().has_expired());
        let fourth = world.open(None).unwrap();
        assert_eq!(evicted(), [false, true, false]);
        assert_eq!(world.counts(), (3, 3));
        let fifth = world.open(None).unwrap();
        assert_eq!(evicted(), [true, true, false]);
        assert!(world.open(None).is_none());
        // The places of evicted connections are not returned a second time.
        drop(open);
        assert_eq!(world.counts(), (2, 2));
        drop((fourth, fifth));
        assert_eq!(world.counts(), (0, 0));
    }

    #[test]
    fn a_share_of_many_connections_makes_room_at_once() {
        let world = World::new(128, 128);
        let open: Vec<_> = (0..128).map(|since| world.open(Some(since)).unwrap()).collect();
        let _more = world.open(None).unwrap();
        assert_eq!(open.iter().filter(|place| place.activity().has_expired()).count(), 2);
        assert_eq!(world.counts(), (127, 127));
    }

    #[test]
    fn a_fruitless_look_is_not_repeated_at_once() {
        let world = World::new(1, 1);
        let now = Instant::now();
        let place = world.open(None).unwrap();
        assert!(!world.all.make_room(now));
        place.activity().begin_wait(AwaitedClientStep::Idle, UptimeSeconds(0));
        assert!(!world.all.make_room(now));
        assert!(world.all.make_room(now.checked_add(PAUSE).unwrap()));
    }
}
